"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from perfscope.constants import MANY_RANKS
from perfscope.report import Entries, Json, Report

_INDENT = 2
#: So deep stand the entries of ranks: what is below is written at once, what is above member by member, because the
#: whole text several times would take several times the memory of the answer.
_MEMBERS_TO_DEPTH = 4
#: A list that deep has as many entries as there are ranks.
_LISTS_TO_DEPTH = 3
#: Of longer lists of numbers so many are written at once.
_BLOCK = 4096
_CONTAINERS = (dict, list, tuple, Entries)
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
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """The same text piece by piece, in the memory of one entry of a rank, however many ranks there are.

    Raises:
        ValueError: A number is NaN or infinite: a part of the text is out then.
    """
    yield from _pieces({**report.data, "warnings": list(report.warnings)}, 0)
    yield "\n"


def _pieces(value: object, depth: int) -> Iterator[str]:
    """What ``json.dumps(value, indent=2)`` returns, of a value that is so deep."""
    newline = "\n" + " " * (_INDENT * depth)
    if depth < _MEMBERS_TO_DEPTH and isinstance(value, dict) and value:
        before = "{"
        for key, member in value.items():
            yield f"{before}{newline}  {_key(key) if isinstance(key, str) else json.dumps({key: 0})[1:-2]}"
            yield from _pieces(member, depth + 1)
            before = ","
        yield newline + "}"
    elif isinstance(value, (list, tuple)) and len(value) > _BLOCK and not isinstance(value[0], _CONTAINERS):
        before = "["
        for first in range(0, len(value), _BLOCK):  # such as the times of all steps
            text = _indented(value[first : first + _BLOCK])
            yield before + text[1 : text.rindex("\n")].replace("\n", newline)
            before = ","
        yield newline + "]"
    elif isinstance(value, (list, tuple, Entries)) and value and _is_apart(value, depth):
        before = "["
        for member in value:
            yield f"{before}{newline}  "
            yield from _pieces(member, depth + 1)
            before = ","
        yield newline + "]"
    elif not isinstance(value, _CONTAINERS):
        yield _encode(value)
    else:
        yield _indented(value).replace("\n", newline)


def _is_apart(entries: Sequence[object], depth: int) -> bool:
    """Whether entries are written one by one: all of a short list take little memory, and less time at once."""
    is_short = depth >= _LISTS_TO_DEPTH and not isinstance(entries, Entries) and len(entries) <= MANY_RANKS
    return depth < _MEMBERS_TO_DEPTH and not is_short


def _listed(value: object) -> list[Json]:
    """A list whose entries are made as they are asked for, where it stands too deep to be written one by one.

    Raises:
        TypeError: It is another value, which JSON does not have.
    """
    if not isinstance(value, Entries):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return list(value)


def _indented(value: object) -> str:
    """What ``json.dumps(value, indent=2)`` returns, by compiled code where that writes the same.

    Raises:
        ValueError: A number is NaN or infinite.
        TypeError: It holds what JSON does not have.
    """
    try:
        packed, text = _PACKER.encode(value), msgspec.json.format(_WRITER.encode(value), indent=_INDENT).decode()
    except (TypeError, ValueError, OverflowError):  # large integers, half a pair of surrogates, keys of other types
        return json.dumps(value, indent=_INDENT, allow_nan=False, default=_listed)
    begins = (_BEGINS_OF_TINY if _TINY.search(packed) else ()) + (_BEGINS_OF_HUGE if _HUGE.search(packed) else ())
    if not text.isascii() or _DELETE in text or (begins and _NOT_FINITE.search(packed)):
        return json.dumps(value, indent=_INDENT, allow_nan=False, default=_listed)
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


_encode = json.JSONEncoder(allow_nan=False, default=_listed).encode
_WRITER = msgspec.json.Encoder(enc_hook=_listed)
_PACKER = msgspec.msgpack.Encoder(enc_hook=_listed)


@cache
def _key(key: str) -> str:
    """A key with its colon; a job of many ranks has the same ones again and again."""
    return json.dumps(key) + ": "
