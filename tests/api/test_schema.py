"""Every result has a type, and every key of its JSON is defined."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_type_hints

from perfscope.api.results import Results, type_of
from perfscope.engine.registry import FINDINGS, analyzers
from perfscope.result import describe, is_object


@cache
def types() -> dict[str, Any]:
    """The type of each result's data, by the result's name."""
    return {name: type_of(name) for name in get_type_hints(Results)}


def structs(kind: Any, found: dict[str, type]) -> dict[str, type]:
    """A typed result, and all types in it, by name."""
    if is_object(kind) and kind.__name__ not in found:
        found[kind.__name__] = kind
        for hint, _ in describe(kind).values():
            structs(hint, found)
    for inner in get_args(kind):
        structs(inner, found)
    return found


def test_every_result_has_a_type() -> None:
    names = {FINDINGS, *(analyzer.name for analyzer in analyzers())}
    assert types().keys() == names


def test_every_figure_of_a_typed_result_is_defined() -> None:
    kinds: dict[str, type] = {}
    for hint in types().values():
        structs(hint, kinds)
    assert len(kinds) > 80
    for kind in kinds.values():
        undefined = [key for key, (_, text) in describe(kind).items() if not text.endswith((".", ")"))]
        assert not undefined, kind
        assert not [key for key, (hint, _) in describe(kind).items() if hint in (Any, object)], kind
