"""The arguments that follow a pickle's opcodes, as ``pickletools`` describes them.

A reader takes the bytes and the position behind the opcode, and returns the argument and the position behind that.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping

_Reader = Callable[[bytes, int], tuple[object, int]]


def _fixed(layout: str) -> _Reader:
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(content: bytes, position: int) -> tuple[object, int]:
        end = position + size
        if end > len(content):
            raise IndexError("cut off")
        return unpack(content, position)[0], end

    return read


def _byte(content: bytes, position: int) -> tuple[object, int]:
    return content[position], position + 1


def _sized(layout: str, decode: Callable[[bytes], object]) -> _Reader:
    """Bytes behind their length."""
    unpack, size = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(content: bytes, position: int) -> tuple[object, int]:
        start = position + size
        if start > len(content):
            raise IndexError("cut off")
        length = unpack(content, position)[0]
        if length < 0 or start + length > len(content):
            raise IndexError(f"cut off: {length:,} bytes announced at position {position:,}")
        return decode(content[start : start + length]), start + length

    return read


def _line(decode: Callable[[bytes], object]) -> _Reader:
    def read(content: bytes, position: int) -> tuple[object, int]:
        end = content.index(b"\n", position)
        return decode(content[position:end]), end + 1

    return read


def _two_lines(content: bytes, position: int) -> tuple[object, int]:
    """The module and the name of a function."""
    middle = content.index(b"\n", position)
    end = content.index(b"\n", middle + 1)
    return f"{_text(content[position:middle])}.{_text(content[middle + 1 : end])}", end + 1


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


def _latin(content: bytes) -> str:
    return content.decode("latin-1")


def _long(content: bytes) -> int:
    return int.from_bytes(content, "little", signed=True)


def _whole_number(line: bytes) -> int | bool:
    """An int; ``00`` and ``01`` are False and True."""
    return line == b"01" if line in (b"00", b"01") else int(line)


def _long_number(line: bytes) -> int:
    return int(line.removesuffix(b"L"))


def _quoted(line: bytes) -> str:
    text = line.strip()
    if text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise ValueError("a string without quotes")
    return _latin(codecs.escape_decode(text[1:-1])[0])


def _raw_text(line: bytes) -> str:
    return line.decode("raw-unicode-escape")


ARGUMENTS: Mapping[bytes, _Reader] = {
    b"\x80": _byte,
    b"\x95": _fixed("<Q"),
    b"K": _byte,
    b"q": _byte,
    b"h": _byte,
    b"M": _fixed("<H"),
    b"J": _fixed("<i"),
    b"r": _fixed("<I"),
    b"j": _fixed("<I"),
    b"G": _fixed(">d"),
    b"\x8a": _sized("<B", _long),
    b"\x8b": _sized("<i", _long),
    b"U": _sized("<B", _latin),
    b"T": _sized("<i", _latin),
    b"C": _sized("<B", bytes),
    b"B": _sized("<I", bytes),
    b"\x8e": _sized("<Q", bytes),
    b"\x96": _sized("<Q", bytes),
    b"\x8c": _sized("<B", _text),
    b"X": _sized("<I", _text),
    b"\x8d": _sized("<Q", _text),
    b"I": _line(_whole_number),
    b"L": _line(_long_number),
    b"F": _line(float),
    b"S": _line(_quoted),
    b"V": _line(_raw_text),
    b"p": _line(int),
    b"g": _line(int),
    b"P": _line(_latin),
    b"c": _two_lines,
    b"i": _two_lines,
}
