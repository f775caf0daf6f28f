"""What can still be read of JSON that is not whole: cut off by a killed process, or written wrongly.

The text is split where events begin, each is decoded by itself, and one that fails is mended where exporters are known
to go wrong: control characters, ``NaN``, wrong escapes, bytes that are not UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

_KEYS = b"ph|cat|name|pid|tid|ts|dur|args|id|s|bp"
_EVENT_START = re.compile(rb"[\[,]\s*(?=\{\s*\"(?:" + _KEYS + rb")\"\s*:)")
_CONTROL = bytes(32 if code < 32 else code for code in range(256))  # noqa: PLR2004 - JSON's control characters
_STRING_OR_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+]?\b(?:nan|inf|infinity|undefined|N/A|none)\b', re.IGNORECASE)
_WRONG_ESCAPE = re.compile(rb'\\(\\|"|/|b|f|n|r|t|u[0-9a-fA-F]{4}|)')
_NESTED_PIECES = 4
_ENDS_TRIED = 1000
FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Salvage:
    """What was read of a damaged text.

    Attributes:
        events: The whole events.
        mended: How many of them had to be mended.
        lost: How many could not be read at all.
        is_closed: Whether the list of events has an end.
    """

    events: list[Any]
    mended: int
    lost: int
    is_closed: bool


def mend(text: bytes) -> bytes:
    """Make JSON of what exporters are known to write instead.

    >>> mend(b'{"occupancy": nan, "escape": "C:/x"}')
    b'{"occupancy": null, "escape": "C:/x"}'
    """
    text = text.translate(_CONTROL)
    text = _WRONG_ESCAPE.sub(lambda match: match[0] if match[1] else b"\\\\", text)
    text = _STRING_OR_WORD.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", text)
    return text.decode("utf-8", "replace").encode()


def salvage(text: bytes, start: int, decode: Callable[[bytes], Any]) -> Salvage:
    """Decode the events of ``text`` from ``start`` on, each by itself."""
    found = [match.end() for match in _EVENT_START.finditer(text, start)]
    events: list[Any] = []
    mended = lost = index = 0
    is_closed = False
    while index < len(found):
        is_last = index == len(found) - 1
        end = len(text) if is_last else found[index + 1]
        event, was_mended = decode_one(text[found[index] : end].rstrip(b", \r\n\t"), decode)
        if event is None and is_last:
            event, _, is_closed = decode_last(text[found[index] :], decode)
        used = 1
        while event is None and used < _NESTED_PIECES and index + used < len(found):
            used += 1
            end = found[index + used] if index + used < len(found) else len(text)
            event, was_mended = decode_one(text[found[index] : end].rstrip(b", \r\n\t"), decode)
        if event is None:
            lost, used = lost + 1, 1
        else:
            events.append(event)
            mended += was_mended
        index += used
    return Salvage(events, mended, lost, is_closed)


def decode_one(piece: bytes, decode: Callable[[bytes], Any]) -> tuple[Any, bool]:
    """An event and whether it had to be mended; None where it cannot be read."""
    for candidate, is_mended in ((piece, False), (mend(piece), True)):
        try:
            return decode(candidate), is_mended
        except FAILURES:
            continue
    return None, False


def decode_last(piece: bytes, decode: Callable[[bytes], Any]) -> tuple[Any, bytes, bool]:
    """The event that a list ends with, what comes after it, and whether that closes the list."""
    end = -1
    for _ in range(_ENDS_TRIED):
        end = piece.find(b"}", end + 1)
        if end < 0:
            break
        event, _mended = decode_one(piece[: end + 1], decode)
        if event is not None:
            tail = piece[end + 1 :].lstrip()
            return event, tail, tail.startswith(b"]")
    return None, b"", False
