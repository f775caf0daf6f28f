"""The JSON of a result is what its type says, key by key, and every key is defined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from perfscope.analyzers.memory import MemoryUse
from perfscope.analyzers.memory.peak import find_peak
from perfscope.api.opening import open_run
from perfscope.api.results import Results, type_of
from perfscope.engine.registry import DERIVATIONS, FINDINGS, analyzers
from perfscope.result import Doc, Figures, describe, figure, is_object
from perfscope.sources.memory.recorded import read_histories
from tests.api.inputs import all_inputs
from tests.conftest import ROOT

LISTS, MAPPINGS = (list, tuple, Sequence), (dict, Mapping)
#: Computed when they are asked for; they read every trace once more.
ON_DEMAND = ("budget", "modules", "roofline", "whatif")
WITH_THESE = ("fixtures/whatif/base", "fixtures/findings/h200/unpinned", "fixtures/runs/h200_zero1")


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


def hints_of(kind: Any) -> dict[str, Any]:
    """The type of each key of an object."""
    return {key: hint for key, (hint, _) in describe(kind).items()}


def differences(value: object, hint: Any, where: str) -> Iterator[str]:
    """How a value differs from its type: another type, a key too many or too few."""
    if isinstance(hint, UnionType):
        if value is None and type(None) in get_args(hint):
            return
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        hint = next((kind for kind in kinds if not any(differences(value, kind, where))), kinds[0])
    if is_object(hint):
        yield from object_differences(value, hint, where)
    elif get_origin(hint) in LISTS and isinstance(value, list):
        for entry in value:
            yield from differences(entry, get_args(hint)[0], f"{where}[]")
    elif get_origin(hint) in MAPPINGS and isinstance(value, dict):
        for entry in value.values():
            yield from differences(entry, get_args(hint)[1], f"{where}{{}}")
    elif not fits(value, get_origin(hint) or hint):
        yield f"{where} is {type(value).__name__}, not {hint.__name__}"


def object_differences(value: object, hint: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is {type(value).__name__}, not an object"
        return
    hints = hints_of(hint)
    yield from (f"{where}/{key} has no type" for key in value.keys() - hints.keys() - {"window"})
    yield from (f"{where}/{key} is missing" for key in hints.keys() - value.keys())
    for key in value.keys() & hints.keys():
        yield from differences(value[key], hints[key], f"{where}/{key}")


def fits(value: object, kind: type) -> bool:
    """A whole number is a float, too; a boolean is no number."""
    if issubclass(kind, Enum):
        return value in {member.value for member in kind}
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, kind) or (kind is float and isinstance(value, int))


def wrong(name: str, data: object) -> set[str]:
    return set(differences(json.loads(json.dumps(data)), types()[name], name))


def test_every_result_has_a_type() -> None:
    names = {FINDINGS, *(analyzer.name for analyzer in analyzers()), *(derived.name for derived in DERIVATIONS)}
    assert types().keys() == names


@pytest.mark.parametrize("path", all_inputs()[::12], ids=lambda path: str(path.relative_to(ROOT / "fixtures")))
def test_results_are_what_their_types_say(path: Path) -> None:
    run = open_run(path, operators=True)
    for name in run.results:
        if name not in ON_DEMAND or run.location.endswith(WITH_THESE):
            result = run.results[name]
            assert not result or not wrong(name, result.data())


def test_memory_is_what_its_type_says() -> None:
    """No run of the fixtures has a history of its allocator."""
    peak = find_peak(read_histories(ROOT / "fixtures" / "memory" / "oom.pickle.gz")[0])
    assert not wrong("memory", MemoryUse((peak,)).data())


def test_every_figure_of_a_typed_result_is_defined() -> None:
    kinds: dict[str, type] = {}
    for hint in types().values():
        structs(hint, kinds)
    assert len(kinds) > 80
    for kind in kinds.values():
        undefined = [key for key, (_, text) in describe(kind).items() if not text.endswith((".", ")"))]
        assert not undefined, kind
        assert not [key for key, (hint, _) in describe(kind).items() if hint in (Any, object)], kind


class Speed(Figures, frozen=True):
    """A result for these tests."""

    tokens: Annotated[int, Doc("Tokens of a step.")]
    step_s: Annotated[float | None, Doc("Mean step.")]
    began_ns: int

    @figure
    def rate(self) -> float:
        """Tokens in a second."""
        return self.tokens / (self.step_s or 1)


def test_a_difference_is_seen() -> None:
    assert not set(differences(Speed(1, None, 3).data(), Speed, ""))
    seen = set(differences({"tokens": True, "step_s": "text", "more": 1}, Speed, ""))
    assert seen == {
        "/tokens is bool, not int", "/step_s is str, not float", "/more has no type", "/rate is missing",
    }  # fmt: skip
