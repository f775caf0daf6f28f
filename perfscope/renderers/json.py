"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

from perfscope.report import Report

_INDENT = "  "
_PLAIN_TYPES = frozenset({int, float, str, bool, type(None)})


def render(report: Report) -> str:
    """Write a report's data; warnings are part of it.

    Raises:
        ValueError: A number is NaN or infinite, which is a defect of the analyzer that made it.
    """
    document = {**report.data, "warnings": list(report.warnings)}
    return "".join([*_pieces(document, "\n"), "\n"])


def _pieces(value: object, newline: str) -> Iterator[str]:
    """What ``json.dumps(value, indent=2)`` returns: a list of plain values, of which a week has a million, at once."""
    inner = newline + _INDENT
    if isinstance(value, dict) and value:
        before = "{" + inner
        for key, member in value.items():
            yield before + _encode({key: 0}, inner)[1:-2]
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


def _encode(value: object, newline: str) -> str:
    return _encoder(newline).encode(value)


@cache
def _encoder(newline: str) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, separators=("," + newline, ": "))
