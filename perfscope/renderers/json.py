"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import islice

from perfscope.report import Report

_INDENT = "  "
_JOINED_AT_ONCE = 4096
_PLAIN_TYPES = frozenset({int, float, str, bool, type(None)})


def render(report: Report) -> str:
    """Write a report's data; warnings are part of it.

    Raises:
        ValueError: A number is NaN or infinite, which is a defect of the analyzer that made it.
    """
    document = {**report.data, "warnings": list(report.warnings)}
    pieces = _pieces(document, "\n")
    # Joined all at once, the texts of a million values take many times the memory of the answer.
    blocks = iter(lambda: "".join(islice(pieces, _JOINED_AT_ONCE)), "")
    return "".join([*blocks, "\n"])


def _pieces(value: object, newline: str) -> Iterator[str]:
    """What ``json.dumps(value, indent=2)`` returns, with each list and object of plain values at once."""
    inner = newline + _INDENT
    if isinstance(value, dict) and value:
        if _PLAIN_TYPES.issuperset(map(type, value.values())):
            yield "{" + inner + _encode(value, inner)[1:-1] + newline + "}"
            return
        before = "{" + inner
        for key, member in value.items():
            yield before + (_key(key) if isinstance(key, str) else _encode({key: 0}, inner)[1:-2])
            yield from _pieces(member, inner)
            before = "," + inner
        yield newline + "}"
    elif isinstance(value, (list, tuple)) and value:
        if _PLAIN_TYPES.issuperset(map(type, value)):
            yield "[" + inner + _encode(value, inner)[1:-1] + newline + "]"
            return
        before = "[" + inner
        for member in value:
            yield before
            yield from _pieces(member, inner)
            before = "," + inner
        yield newline + "]"
    else:
        yield _encode(value, inner)


@cache
def _key(key: str) -> str:
    """A key with its colon; a job of many ranks has the same ones again and again."""
    return json.dumps(key) + ": "


def _encode(value: object, newline: str) -> str:
    return _encoder(newline).encode(value)


@cache
def _encoder(newline: str) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, separators=("," + newline, ": "))
