"""Reads what is intact of damaged JSON: cut off by a killed process, or written wrongly.

The text is split where events begin, and each event is decoded by itself. One that fails is repaired where exporters
are known to go wrong: control characters, ``NaN``, wrong escapes, bytes that are not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

_E = TypeVar("_E")  # the type of a decoded event
_KEYS = b"ph|cat|name|pid|tid|ts|dur|args|id|s|bp"
_EVENT_START = re.compile(rb"[\[,]\s*(?=\{\s*\"(?:" + _KEYS + rb")\"\s*:)")
_WITHOUT_CONTROL_CHARACTERS = bytes(max(code, ord(" ")) for code in range(256))
_STRING_OR_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf|infinity|undefined|N/A|none)\b', re.IGNORECASE)
_WRONG_ESCAPE = re.compile(rb'\\(\\|"|/|b|f|n|r|t|u[0-9a-fA-F]{4}|)')
_NESTED_PIECES = 4
_ENDS_TRIED = 1000
FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Salvage(Generic[_E]):
    """The events of a damaged text.

    Attributes:
        events: Those that could be read.
        repaired: How many of them had to be repaired.
        lost: How many could not be read at all.
        is_closed: Whether the list of events has an end.
    """

    events: list[_E]
    repaired: int
    lost: int
    is_closed: bool


def repair(text: bytes) -> bytes:
    """Make valid JSON of the errors that exporters are known to write.

    >>> repair(b'{"occupancy": nan, "escape": "C:/x"}')
    b'{"occupancy": null, "escape": "C:/x"}'
    """
    text = text.translate(_WITHOUT_CONTROL_CHARACTERS)
    text = _WRONG_ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    text = _STRING_OR_WORD.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", text)
    return text.decode("utf-8", "replace").encode()


def salvage(text: bytes, start: int, decode: Callable[[bytes], _E]) -> Salvage[_E]:
    """Decode the events of ``text`` from ``start`` on, each by itself."""
    starts = [match.end() for match in _EVENT_START.finditer(text, start)]
    events: list[_E] = []
    repaired = lost = index = 0
    is_closed = False
    while index < len(starts):
        is_last = index == len(starts) - 1
        end = len(text) if is_last else starts[index + 1]
        event, was_repaired = decode_event(text[starts[index] : end].rstrip(b", \r\n\t"), decode)
        if event is None and is_last:
            event, _, is_closed = decode_last(text[starts[index] :], decode)
        pieces = 1
        while event is None and pieces < _NESTED_PIECES and index + pieces < len(starts):
            pieces += 1
            end = starts[index + pieces] if index + pieces < len(starts) else len(text)
            event, was_repaired = decode_event(text[starts[index] : end].rstrip(b", \r\n\t"), decode)
        if event is None:
            lost, pieces = lost + 1, 1
        else:
            events.append(event)
            repaired += was_repaired
        index += pieces
    return Salvage(events, repaired, lost, is_closed)


def decode_event(piece: bytes, decode: Callable[[bytes], _E]) -> tuple[_E | None, bool]:
    """An event and whether it had to be repaired; None where it cannot be read."""
    for candidate, is_repaired in ((piece, False), (repair(piece), True)):
        try:
            return decode(candidate), is_repaired
        except FAILURES:
            continue
    return None, False


def decode_last(piece: bytes, decode: Callable[[bytes], _E]) -> tuple[_E | None, bytes, bool]:
    """The last event of a list, the text behind it, and whether that text closes the list."""
    end = -1
    for _ in range(_ENDS_TRIED):
        end = piece.find(b"}", end + 1)
        if end < 0:
            break
        event, _ = decode_event(piece[: end + 1], decode)
        if event is not None:
            tail = piece[end + 1 :].lstrip()
            return event, tail, tail.startswith(b"]")
    return None, b"", False
