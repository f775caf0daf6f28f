"""The wire format of protocol buffers, as much of it as profiles need (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

#: A field's value: a number, or the bytes of a text or of a message.
Value: TypeAlias = "int | memoryview"

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_BITS, _LAST, _SIGN, _WIDTH = 7, 0x80, 1 << 63, 64


def read_fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """The fields of a message: their numbers and values; numbers of a fixed width, which are doubles, are left out.

    Raises:
        IndexError: The message is cut off.
        ValueError: It is no message.
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = _read_number(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _read_number(message, position)
            yield number, value
            continue
        length = _FIXED.get(kind)
        if kind == _BYTES:
            length, position = _read_number(message, position)
        if length is None or not number:
            raise ValueError(tag)
        if position + length > end:
            raise IndexError(position)
        if kind == _BYTES:
            yield number, message[position : position + length]
        position += length


def text_of(value: Value | None) -> str:
    """A field as a text; ``""`` where it is none."""
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""


def message_of(value: Value | None) -> memoryview:
    """A field as a message; an empty one where it is none."""
    return value if isinstance(value, memoryview) else memoryview(b"")


def number_of(value: Value | None, default: int = 0) -> int:
    """A field as a signed number.

    >>> number_of(2**64 - 1), number_of(None, 7)
    (-1, 7)
    """
    if not isinstance(value, int):
        return default
    return value - (1 << _WIDTH) if value >= _SIGN else value


def _read_number(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & ~_LAST) << shift
        if byte < _LAST:
            return value, position
        shift += _BITS
        if shift >= _WIDTH:
            raise ValueError(shift)
