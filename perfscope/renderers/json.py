"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import msgspec

from perfscope.report import Report

_INDENT = 2
#: Numbers in MessagePack that the standard library may write with an exponent: below 1/8192, and from 2**53 on.
_TINY = re.compile(rb"\xcb(?:(?!.\0{7})[\x00-\x3e\x80-\xbe]|[\x3f\xbf][\x00-\x1f])", re.DOTALL)
_HUGE = re.compile(rb"\xcb(?:[\x43\xc3][\x40-\xff]|[\x44-\x7f\xc4-\xff])")
#: Numbers that are NaN or infinite, which compiled code would write as null.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
#: How what such numbers end a line with begins: small fractions and exponents.
_BEGINS_OF_TINY, _BEGINS_OF_HUGE = ("0.0000", "e-"), tuple(f"e{digit}" for digit in range(1, 10))
_END = re.compile(r"(?:0\.0000|e-?)\d+(?=,?\n)")
_DELETE = "\x7f"


def render(report: Report) -> str:
    """Write a report's data; warnings are part of it.

    Raises:
        ValueError: A number is NaN or infinite, which is a defect of the analyzer that made it.
    """
    return _indented({**report.data, "warnings": list(report.warnings)}) + "\n"


def _indented(value: object) -> str:
    """What ``json.dumps(value, indent=2)`` returns, by compiled code where that writes the same.

    Raises:
        ValueError: A number is NaN or infinite.
        TypeError: It holds what JSON does not have.
    """
    try:
        packed, text = _PACKER.encode(value), msgspec.json.format(_WRITER.encode(value), indent=_INDENT).decode()
    except (TypeError, ValueError, OverflowError):  # large integers, half a pair of surrogates, keys of other types
        return json.dumps(value, indent=_INDENT, allow_nan=False)
    begins = (_BEGINS_OF_TINY if _TINY.search(packed) else ()) + (_BEGINS_OF_HUGE if _HUGE.search(packed) else ())
    if not text.isascii() or _DELETE in text or (begins and _NOT_FINITE.search(packed)):
        return json.dumps(value, indent=_INDENT, allow_nan=False)
    return _with_exponents(text, begins) if begins else text


def _with_exponents(text: str, begins: Sequence[str]) -> str:
    """The same JSON with exponents as the standard library writes them; a line that ends with a digit ends a number."""
    lines = f"{text}\n"
    parts: list[str] = []
    begin = 0
    for end in sorted(end for each in begins for end in _ends(lines, each)):
        number = lines.rfind(" ", begin, end) + 1
        parts += lines[begin:number], repr(float(lines[number:end]))
        begin = end
    return "".join([*parts, text[begin:]])


def _ends(lines: str, begin: str) -> Iterator[int]:
    """Where numbers end whose last part begins so; an expression alone would look at each character."""
    offset = lines.find(begin)
    while offset >= 0:
        if match := _END.match(lines, offset):
            yield match.end()
        offset = lines.find(begin, offset + 1)


_WRITER = msgspec.json.Encoder()
_PACKER = msgspec.msgpack.Encoder()
