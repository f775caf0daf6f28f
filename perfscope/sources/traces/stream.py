"""Decodes the events of a trace block by block, whatever its layout and whatever is damaged in it.

Text from the beginning of an event to the end of another one is valid JSON only where both are real. So parsing decides
what a block's events are, never their look. No more than a few blocks are in memory, and a damaged event costs only
itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from perfscope.constants import KIB, MIB
from perfscope.sources.traces.salvage import FAILURES, Salvager, list_decoder

_E = TypeVar("_E")  # the type of a decoded event
_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_CHUNK_BYTES = MIB
_NEAR_BYTES = 64 * KIB
_BOUNDARIES_TRIED = 16
_LARGEST_EVENT_BYTES = 16 * MIB
_LARGEST_TAIL_BYTES = 64 * MIB


class _Last(msgspec.Struct):
    events: msgspec.Raw


class EventStream(Generic[_E]):
    """The events of one trace.

    Attributes:
        events: How many were read.
        lost: How many could not be read.
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

        Args:
            text: What stands behind the bracket of the list, as far as it was read.
            blocks: What follows.
        """
        self._rest = text
        wanted = _CHUNK_BYTES
        for chunk in chunks(blocks):
            self._rest += chunk
            while not self.is_closed and len(self._rest) >= wanted:
                before = len(self._rest)
                yield from self._advance(is_last=before > _LARGEST_EVENT_BYTES)
                wanted = _CHUNK_BYTES if len(self._rest) < before else 2 * before
            if self.is_closed and len(self._rest) > _LARGEST_TAIL_BYTES:
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
        """The last events, and the end of the list."""
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
        """The events of a damaged text one by one."""
        salvage = self._salvager.salvage(self._rest[:end])
        self._rest = self._rest[salvage.end :]
        self.is_closed = salvage.is_closed
        self.lost += salvage.lost
        self._is_last_lost = salvage.is_last_lost
        self.events += len(salvage.events)
        return salvage.events


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
