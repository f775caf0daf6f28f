"""Decodes the events of a trace block by block, whatever its layout and whatever is damaged in it.

Text from the beginning of an event to the end of another one is valid JSON only where both are real. So parsing decides
what a block's events are, never their look. Where a block does not parse, each event is decoded by itself. One that
fails is repaired where exporters are known to go wrong: control characters, ``NaN``, wrong escapes, other bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import GenericAlias
from typing import Generic, TypeVar

import msgspec

from perfscope.constants import KIB, MIB
from perfscope.sources.traces.metadata import LARGEST_PART_BYTES

_E = TypeVar("_E")  # the type of a decoded event
_KEYS = b"ph|cat|name|pid|tid|ts|dur|args|id|s|bp"
_EVENT_START = re.compile(rb"[\[,]\s*(?=\{\s*\"(?:" + _KEYS + rb")\"\s*:)")
_WITHOUT_CONTROL_CHARACTERS = bytes(max(code, ord(" ")) for code in range(256))
_STRING_OR_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf|infinity|undefined|N/A|none)\b', re.IGNORECASE)
_WRONG_ESCAPE = re.compile(rb'\\(\\|"|/|b|f|n|r|t|u[0-9a-fA-F]{4}|)')
_END_OF_LIST = re.compile(rb"\s*\]")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
_NESTED_PIECES = 4
_LARGEST_MENDED_BYTES = 256 * KIB
_MOST_MENDED_BYTES = 2 * MIB
FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_CHUNK_BYTES = MIB
_NEAR_BYTES = 64 * KIB
_BOUNDARIES_TRIED = 16


def list_decoder(kind: type[_E]) -> Callable[[bytes], list[_E]]:
    """A decoder of lists of events."""
    decode: Callable[[bytes], list[_E]] = msgspec.json.Decoder(GenericAlias(list, (kind,)), strict=False).decode
    return decode


class DoesNotFit(Exception):
    """The text departs from the layout of its trace."""


def repair(text: bytes) -> bytes:
    """Make valid JSON of the errors that exporters are known to write.

    >>> repair(b'{"occupancy": nan, "escape": "C:/x"}')
    b'{"occupancy": null, "escape": "C:/x"}'
    """
    text = text.translate(_WITHOUT_CONTROL_CHARACTERS)
    text = _WRONG_ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    text = _STRING_OR_WORD.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", text)
    return text.decode("utf-8", "replace").encode()


class Salvager(Generic[_E]):
    """Decodes the events of damaged texts, each by itself.

    What is mended is limited, so that a text of any size costs no more than a few times what decoding it costs.
    """

    def __init__(self, decode: Callable[[bytes], _E]) -> None:
        self._decode = decode
        self._bytes_to_mend = _MOST_MENDED_BYTES

    def read(self, text: bytes) -> _E | None:
        """An event, mended where it had to be; None where it cannot be read."""
        try:
            return self._decode(text)
        except FAILURES:
            pass
        if len(text) > min(self._bytes_to_mend, _LARGEST_MENDED_BYTES):
            return None
        self._bytes_to_mend -= len(text)
        try:
            return self._decode(repair(text))
        except FAILURES:
            return None

    def read_at(self, text: bytes, starts: Sequence[int], index: int) -> tuple[_E | None, int]:
        """The event at a start, and how many starts are in it: those of objects that look like events."""
        ends = [*starts[index + 1 : index + _NESTED_PIECES], len(text)]
        if index + _NESTED_PIECES < len(starts):
            ends[-1] = starts[index + _NESTED_PIECES]
        for pieces, end in enumerate(ends, 1):
            if end - starts[index] > _LARGEST_MENDED_BYTES and pieces > 1:
                break
            try:
                return self._decode(text[starts[index] : end].rstrip(b", \r\n\t")), pieces
            except FAILURES:
                continue
        return self.read(text[starts[index] : ends[0]].rstrip(b", \r\n\t")), 1


def end_of_event(text: bytes, start: int, stop: int) -> int | None:
    """Where the object at a position of a text ends; None where it does not before ``stop``, or is not near."""
    depth = 0
    for token in _TOKEN.finditer(text, start, min(stop, start + _LARGEST_MENDED_BYTES)):
        if token[0] in (b"{", b"}"):
            depth += 1 if token[0] == b"{" else -1
            if not depth:
                return token.end()
    return None


class _Last(msgspec.Struct):
    events: msgspec.Raw


class EventStream(Generic[_E]):
    """The events of one trace.

    Attributes:
        events, lost: How many were read, and could not be read.
        is_closed: Whether the list of events has an end.
        tail: What follows the last event.
    """

    def __init__(self, kind: type[_E]) -> None:
        self.events = self.lost = 0
        self.is_closed = False
        self.tail = b""
        self._decode_list = list_decoder(kind)
        self._salvager = Salvager(msgspec.json.Decoder(kind, strict=False).decode)
        self._rest = b""
        self._is_last_lost = False

    def read(self, text: bytes, blocks: Iterator[bytes]) -> Iterator[tuple[list[_E], bytes]]:
        """Yield the events, those of a chunk together, with the text of each chunk where it is valid JSON.

        ``text`` is what follows the bracket of the list, as far as it was read, and ``blocks`` the rest.
        """
        self._rest = text
        wanted = _CHUNK_BYTES
        for chunk in chunks(blocks):
            self._rest += chunk
            while not self.is_closed and len(self._rest) >= wanted:
                before = len(self._rest)
                yield from self._advance(is_last=before > LARGEST_PART_BYTES)
                wanted = _CHUNK_BYTES if len(self._rest) < before else 2 * before
            if self.is_closed and len(self._rest) > LARGEST_PART_BYTES:
                break
        if not self.is_closed:
            yield from self._finish()
            # The last event of a file that is cut off.
            self.lost -= self._is_last_lost and not self.is_closed
        self.tail = self._rest

    def _advance(self, *, is_last: bool) -> Iterator[tuple[list[_E], bytes]]:
        rest = self._rest
        ends = [match.start() + 1 for match in _BOUNDARY.finditer(rest, max(0, len(rest) - _NEAR_BYTES))]
        for end in reversed(ends[-_BOUNDARIES_TRIED:]):
            text = b"[%b]" % rest[:end]
            try:
                events = self._decode_list(text)
            except FAILURES as error:
                if "truncated" in str(error):
                    continue
                is_last = True
                break
            self._rest = rest[end:].lstrip(b", \t\r\n")
            self.events += len(events)
            yield events, text
            return
        if is_last:
            yield self._salvage(ends[-1] if ends else len(rest)), b""

    def _finish(self) -> Iterator[tuple[list[_E], bytes]]:
        for end in (b"", b"}"):
            try:
                text = bytes(msgspec.json.decode(b'{"events":[' + self._rest + end, type=_Last).events)
                events = self._decode_list(text)
            except FAILURES:
                continue
            self.is_closed, self._rest = True, self._rest[len(text) - 2 :]
            self.events += len(events)
            yield events, text
            return
        yield self._salvage(len(self._rest)), b""

    def _salvage(self, end: int) -> list[_E]:
        """Decode the events of the rest up to ``end``, each by itself."""
        text = self._rest[:end]
        starts = [match.end() - 1 for match in _EVENT_START.finditer(b"," + text)]
        events: list[_E] = []
        index = 0
        while index < len(starts):
            event, pieces = self._salvager.read_at(text, starts, index)
            stop = starts[index + 1] if index + 1 < len(starts) else len(text)
            after = None if event is not None else end_of_event(text, starts[index], stop)
            if after is not None and _END_OF_LIST.match(text, after):
                event = self._salvager.read(text[starts[index] : after])
                self.is_closed, end = event is not None, after if event is not None else end
            if event is not None:
                events.append(event)
            self._is_last_lost = event is None
            self.lost += event is None
            index = len(starts) if self.is_closed else index + pieces
        if not starts:
            self.is_closed = text.lstrip().startswith(b"]")
            self._is_last_lost = not self.is_closed and bool(text.strip(b"]}, \r\n\t"))
            self.lost += self._is_last_lost
            end = 0 if self.is_closed else end
        self._rest = self._rest[end:]
        self.events += len(events)
        return events


def chunks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks together, so that few texts are joined."""
    pieces: list[bytes] = []
    size = 0
    for block in chain(blocks, (b"",)):
        pieces.append(block)
        size += len(block)
        if size >= _CHUNK_BYTES or not block:
            yield b"".join(pieces)
            pieces, size = [], 0
