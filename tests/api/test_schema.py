"""The types of JSON are those of the JSON that perfscope gives, key by key, for every run and trace in fixtures/."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

import perfscope.api.schema
from perfscope.analyzers.memory import MemoryUse
from perfscope.analyzers.memory.peak import find_peak
from perfscope.analyzers.replay.scenarios import Regain
from perfscope.api.comparing import compare_locations
from perfscope.api.opened_run import OpenedRun
from perfscope.api.opening import open_run
from perfscope.api.results import Results, type_of
from perfscope.api.schema.comparison import ComparisonData
from perfscope.api.schema.findings import FindingData, RegainData
from perfscope.api.schema.windowed import SkippedData, WindowsData
from perfscope.engine.registry import DERIVATIONS, FINDINGS, analyzers
from perfscope.result import describe, is_object
from perfscope.sources.memory.recorded import read_histories
from tests.api.inputs import all_inputs
from tests.conftest import ROOT

LISTS, MAPPINGS = (list, tuple, Sequence), (dict, Mapping)
SCHEMA = Path(perfscope.api.schema.__file__).parent
#: Computed when they are asked for; they read every trace once more.
ON_DEMAND = ("budget", "modules", "roofline", "whatif")
WITH_THESE = ("fixtures/whatif/base", "fixtures/findings/h200/unpinned", "fixtures/runs/h200_zero1",
              "fixtures/whatif/pairs/changes/mlp2")  # fmt: skip


@cache
def types() -> dict[str, Any]:
    """The type of each result's data, by the result's name."""
    return {name: type_of(name) for name in get_type_hints(Results)}


def structs(kind: Any, found: dict[str, type] | None = None) -> dict[str, type]:
    """A typed result, and all types in it, by name."""
    found = {} if found is None else found
    if is_object(kind) and kind.__name__ not in found:
        found[kind.__name__] = kind
        for hint, _ in describe(kind).values():
            structs(hint, found)
    for inner in get_args(kind):
        structs(inner, found)
    return found


def hints_of(kind: Any) -> dict[str, Any]:
    """The type of each key of an object."""
    return {key: hint for key, (hint, _) in describe(kind).items()} if is_object(kind) else get_type_hints(kind)


def differences(value: object, hint: Any, where: str) -> Iterator[str]:
    """How a value differs from its type: another type, a key too many or too few."""
    if isinstance(hint, UnionType):
        if value is None and type(None) in get_args(hint):
            return
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        hint = next((kind for kind in kinds if not any(differences(value, kind, where))), kinds[0])
    if is_typeddict(hint) or is_object(hint):
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
    yield from (f"{where}/{key} has no type" for key in value.keys() - hints.keys())
    yield from (f"{where}/{key} is missing" for key in getattr(hint, "__required_keys__", hints.keys()) - value.keys())
    for key in value.keys() & hints.keys():
        yield from differences(value[key], hints[key], f"{where}/{key}")


def fits(value: object, kind: type) -> bool:
    """A whole number is a float, too; a boolean is no number."""
    if issubclass(kind, Enum):
        return value in {member.value for member in kind}
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, kind) or (kind is float and isinstance(value, int))


def as_json(data: object) -> Any:
    return json.loads(json.dumps(data))


def wrong_results(run: OpenedRun) -> set[str]:
    wrong: set[str] = set()
    for name in run.results:
        if name in ON_DEMAND and not run.location.endswith(WITH_THESE):
            continue
        result = run.results[name]
        if result:
            wrong.update(differences(as_json(result.data()), types()[name], name))
    return wrong


def test_every_result_has_a_type() -> None:
    names = {FINDINGS, *(analyzer.name for analyzer in analyzers()), *(derived.name for derived in DERIVATIONS)}
    assert types().keys() == names


@pytest.mark.parametrize("path", all_inputs()[::8], ids=lambda path: str(path.relative_to(ROOT / "fixtures")))
def test_results_are_what_their_types_say(path: Path) -> None:
    run = open_run(path, operators=True)
    assert not wrong_results(run)
    data = as_json(run.data)
    assert not list(differences(data["skipped"], list[SkippedData], "skipped"))
    assert not list(differences(data["windows"], WindowsData, "windows"))


def any_inner_types() -> Iterator[str]:
    """The keys whose values may be any object."""
    for module in sorted(SCHEMA.glob("[a-z]*.py")):
        for line in module.read_text().splitlines():
            if re.match(r"    \w+: .*\bobject\b", line):
                yield f"{module.name}: {line.strip()}"


def test_every_figure_of_a_typed_result_is_defined() -> None:
    kinds = {name: kind for hint in types().values() for name, kind in structs(hint).items()}
    for kind in kinds.values():
        undefined = [key for key, (_, text) in describe(kind).items() if not text.endswith((".", ")"))]
        assert not undefined, kind
        assert not [key for key, (hint, _) in describe(kind).items() if hint in (Any, object)], kind


def test_no_key_may_hold_any_object() -> None:
    assert not list(any_inner_types())


@pytest.mark.parametrize("name", ["pure.memory.jsonl.gz", "oom.pickle.gz", "fsdp2.pickle.gz"])
def test_memory_is_what_its_type_says(name: str, tmp_path: Path) -> None:
    """No run of the fixtures has a history of its allocator."""
    peak = find_peak(read_histories(ROOT / "fixtures" / "memory" / name)[0])
    assert not list(differences(as_json(MemoryUse((peak,)).data()), MemoryUse, "memory"))


def test_a_replay_is_what_its_type_says() -> None:
    regain = Regain("gil=free", 5e6, 1e6, 9e5, 1e4, 0.02, ("the host is as fast",))
    assert not list(differences(as_json(regain.data()), RegainData, "replay"))


@pytest.mark.parametrize("pair", [("ddp_1", "ddp_25"), ("base_1", "base_2"), ("clean", "eager_attention")])
def test_comparisons_are_what_their_type_says(pair: tuple[str, str]) -> None:
    a, b = (str(ROOT / "fixtures" / "compare" / f"{name}.json") for name in pair)
    compared = compare_locations(a, b, anyway=True, limits=["step_time>+3%"], between_runs=None, operators=False)
    assert not list(differences(as_json(compared.data), ComparisonData, ""))


def test_a_difference_is_seen() -> None:
    finding = dict.fromkeys(get_type_hints(FindingData), "text")
    seen = set(differences({**finding, "more": 1, "ranks": [True]}, FindingData, ""))
    assert {"/more has no type", "/ranks[] is bool, not int", "/cost_us is str, not float"} <= seen


def declared() -> Iterator[tuple[str, list[str], str]]:
    """Each class of the schema, its own keys, and its docstring."""
    for module in sorted(SCHEMA.glob("[a-z]*.py")):
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.ClassDef):
                keys = [line.target.id for line in node.body if isinstance(line, ast.AnnAssign)
                        and isinstance(line.target, ast.Name)]  # fmt: skip
                yield node.name, keys, ast.get_docstring(node) or ""


@pytest.mark.parametrize(("name", "keys", "docstring"), list(declared()))
def test_every_key_is_defined(name: str, keys: list[str], docstring: str) -> None:
    defined = re.findall(r"^    (\w[\w, ]*): .+", docstring, re.MULTILINE)
    assert sorted(key for line in defined for key in line.split(", ")) == sorted(keys), name
