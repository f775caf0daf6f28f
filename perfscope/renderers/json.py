"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json
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
    elif isinstance(value, (list, tuple, Entries)) and value and _is_apart(value, depth):
        before = "["
        for member in value:
            yield f"{before}{newline}  "
            yield from _pieces(member, depth + 1)
            before = ","
        yield newline + "]"
    elif not isinstance(value, (dict, list, tuple, Entries)):
        yield _encode(value)
    else:
        yield _indented(_encode(value)).replace("\n", newline)


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


def _indented(text: str) -> str:
    """JSON in one line over many lines: no text in it holds a line's end."""
    try:
        return msgspec.json.format(text, indent=_INDENT)
    except msgspec.DecodeError:  # half a pair of surrogates, as of a file's name that is no UTF-8
        return json.dumps(json.loads(text), indent=_INDENT)


_encode = json.JSONEncoder(allow_nan=False, default=_listed).encode


@cache
def _key(key: str) -> str:
    """A key with its colon; a job of many ranks has the same ones again and again."""
    return json.dumps(key) + ": "
