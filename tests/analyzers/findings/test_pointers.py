"""Each figure that a rule asks for is in the types of JSON: a renamed one would be 0, and the rule silent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, is_typeddict

import pytest

from perfscope.analyzers.findings.facts import Facts
from perfscope.analyzers.findings.training import _HOST_KEYS
from perfscope.result import is_object
from tests.api.test_schema import LISTS, MAPPINGS, hints_of, types
from tests.conftest import ROOT

FINDINGS = ROOT / "analyzers/findings"
#: The functions of ``Facts`` that are given a pointer.
ASKING = {name for name in vars(Facts) if not name.startswith("_")}
#: What is put into a pointer.
ANYTHING = ".+"


def kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) else (hint,)


def is_object_of_json(kind: Any) -> bool:
    return is_typeddict(kind) or is_object(kind)


def members(hint: Any, key: str) -> Iterator[Any]:
    """The types of what a key, or several that a pattern matches, leads to."""
    for kind in kinds(hint):
        if is_object_of_json(kind):
            yield from (member for name, member in hints_of(kind).items() if re.fullmatch(key, name))
        elif get_origin(kind) in LISTS and re.fullmatch(key, "0"):
            yield get_args(kind)[0]
        elif get_origin(kind) in MAPPINGS:
            yield get_args(kind)[1]


@cache
def all_kinds() -> tuple[Any, ...]:
    """Every object, list and mapping in the JSON of some result."""
    found: list[Any] = []
    open_ones = list(types().values())
    while open_ones:
        for kind in kinds(open_ones.pop()):
            if kind not in found and (is_object_of_json(kind) or get_origin(kind) in (*LISTS, *MAPPINGS)):
                found.append(kind)
                open_ones += hints_of(kind).values() if is_object_of_json(kind) else get_args(kind)
    return tuple(found)


def leads_somewhere(pointer: str) -> bool:
    """Whether a pointer can lead to a value: from the results, or from any place where its beginning is put in."""
    start, *keys = pointer.split("/")
    if start:
        hints = list(all_kinds())
    else:
        name, *keys = keys
        if keys == ["window"]:  # the engine adds it to each result of traces
            return True
        hints = [hint for result, hint in types().items() if re.fullmatch(name, result)]
    for key in keys:
        hints = [member for hint in hints for member in members(hint, key)]
    return bool(hints)


def pointers(source: str) -> Iterator[str]:
    """The pointers that a module asks for, as patterns."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKING:
            for asked in node.args[:1]:
                if isinstance(asked, ast.JoinedStr):
                    pieces = (part.value if isinstance(part, ast.Constant) else None for part in asked.values)
                    yield "".join(ANYTHING if piece is None else re.escape(str(piece)) for piece in pieces)
                elif isinstance(asked, ast.Constant) and isinstance(asked.value, str):
                    yield re.escape(asked.value)


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*.py")), ids=lambda path: path.stem)
def test_rules_ask_for_figures_that_exist(path: Path) -> None:
    asked = [pointer for pointer in pointers(path.read_text()) if "/" in pointer]
    assert not [pointer for pointer in asked if not leads_somewhere(pointer)]


def test_causes_of_idle_time_are_asked_for_by_their_names() -> None:
    assert all(leads_somewhere(f"/idle/ranks/0/causes/{key}") for key in _HOST_KEYS.values())


def test_a_renamed_figure_is_noticed() -> None:
    asked = list(pointers('facts.amount("/steps/median_s") + facts.amount(f"{row}/means/garbage_s")'))
    assert all(map(leads_somewhere, asked))
    renamed = list(pointers('facts.amount("/steps/middle_s") + facts.amount(f"{row}/means/rubbish_s")'))
    assert len(renamed) == len(asked) == 2
    assert not any(map(leads_somewhere, renamed))
