"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import msgspec

from perfscope.report import Entries, Json, Report

_INDENT = 2
#: So deep stand the entries of ranks: what is below is written at once, what is above member by member, because the
#: whole text several times would take several times the memory of the answer.
_MEMBERS_TO_DEPTH = 4


def render(report: Report) -> str:
    """Write a report's data; warnings are part of it.

    Raises:
        ValueError: A number is NaN or infinite, which is a defect of the analyzer that made it.
    """
    document = {**report.data, "warnings": list(report.warnings)}
    return "".join([*_pieces(document, 0), "\n"])


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
    elif depth < _MEMBERS_TO_DEPTH and isinstance(value, (list, tuple, Entries)) and value:
        before = "["
        for member in value:
            yield f"{before}{newline}  "
            yield from _pieces(member, depth + 1)
            before = ","
        yield newline + "]"
    elif not isinstance(value, (dict, list, tuple, Entries)):
        yield json.dumps(value, allow_nan=False)
    else:
        yield _indented(json.dumps(value, allow_nan=False, default=_listed)).replace("\n", newline)


def _listed(value: object) -> list[Json]:
    """A list whose entries are made as they are asked for, where it stands too deep to be written one by one.

    Raises:
        TypeError: It is another value, which JSON does not have.
    """
    if not isinstance(value, Entries):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return list(value)


def _indented(text: str) -> str:
    """JSON in one line over many lines: no text in it holds a line's end."""
    try:
        return msgspec.json.format(text, indent=_INDENT)
    except msgspec.DecodeError:  # half a pair of surrogates, as of a file's name that is no UTF-8
        return json.dumps(json.loads(text), indent=_INDENT)


@cache
def _key(key: str) -> str:
    """A key with its colon; a job of many ranks has the same ones again and again."""
    return json.dumps(key) + ": "
