"""The tables of a run as pandas DataFrames: one row an entry of the JSON, nested objects as further columns.

The type of each column follows from the type of the JSON's key, so that an empty table has its columns, too; what is
absent is ``<NA>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

import numpy as np
import pandas as pd

from perfscope.api.results import type_of
from perfscope.errors import MissingInput, UsageError
from perfscope.measures.step_selection import find_undisturbed, last_attempts
from perfscope.result import describe, is_object, to_object
from perfscope.tables.columns import to_frame as to_columns

if TYPE_CHECKING:
    from perfscope.api.opened_run import OpenedRun
    from perfscope.api.results import AnyResult
    from perfscope.tables.run import Run

#: An object of JSON.
JsonRow: TypeAlias = Mapping[str, Any]
#: A value of JSON, and a type: what they are is known when they are looked at.
Untyped: TypeAlias = Any

_DTYPES = {int: "Int64", float: "Float64", str: "string", bool: "boolean"}
_RANK = ("rank", "device")
#: Types of lists.
_LISTS: tuple[Untyped, ...] = (list, tuple, Sequence)

#: Where the rows of each table are: a result, and the keys of lists in it, one inside the other.
_ENTRIES = {
    "findings": "findings",
    "windows": "cost/windows",
    "saves": "saves/saves",
    "gpus": "gpus",
    "energy": "energy/gpus",
    "throttling": "throttling",
    "mfu": "mfu/conventions",
    "breakdown": "breakdown/ranks",
    "breakdown_steps": "breakdown/ranks/steps",
    "host": "host/ranks",
    "overlap": "overlap/axes",
    "idle": "idle/ranks",
    "idle_gaps": "idle/ranks/longest",
    "calls": "calls/ranks/callers",
    "optimizer": "optimizer/ranks",
    "modules": "modules/ranks/modules",
    "roofline": "roofline/ranks/operators",
    "kernels": "kernels/names",
    "operations": "operations/ranks/operators",
    "collectives": "collectives/operations",
    "stragglers": "stragglers/ranks",
    "clocks": "clock/ranks",
    "budget": "budget/terms",
    "scenarios": "whatif/scenarios",
    "critical_path": "whatif/critical_path",
}


def to_frame(run: OpenedRun, name: str) -> pd.DataFrame:
    """A table by its name; ``UsageError`` without one of that name, ``MissingInput`` where the run does not have it."""
    path = _ENTRIES.get(name) or _first_list(run, name)
    if name in _TABLES:
        return _TABLES[name](run)
    if path:
        result, *keys = path.split("/")
        outer = _type_of(f"{result}/{keys[0]}") if len(keys) > 1 else None
        carried = [key for key in _RANK if outer is not None and key in _hints(outer)]
        rows = _walk(run.results[result].data(), keys, carried)
        return _build([_flatten(row) for row in rows], {**dict.fromkeys(carried, "Int64"), **_columns(path)})
    raise UsageError(f"there is no frame {name!r}: the frames are {', '.join(NAMES)}")


def _first_list(run: OpenedRun, name: str) -> str:
    """Where the rows of a result without a line in ``_ENTRIES`` are: in its first list of objects."""
    if name in _TABLES or name not in run.results:
        return ""
    lists = (key for key, hint in _hints(type_of(name)).items() if is_object(_entry(hint)) and _entry(hint) != hint)
    return next((f"{name}/{key}" for key in lists), "")


def _walk(data: Untyped, path: Sequence[str], carried: Sequence[str]) -> Iterator[JsonRow]:
    """The entries of a list inside lists, each with what it carries of the outer ones."""
    if len(path) < 2:  # noqa: PLR2004 - a list, or a key of one
        yield from data[path[0]] if path else data
        return
    for outer in data[path[0]]:
        for row in _walk(outer, path[1:], ()):
            yield {**{key: outer[key] for key in carried}, **row}


def _build(rows: Sequence[JsonRow], dtypes: Mapping[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series([row.get(name) for row in rows], dtype=of) for name, of in dtypes.items()})


def _type_of(path: str) -> Untyped:
    """The type of an entry, by the keys that lead to it from a result."""
    result, *keys = path.split("/")
    kind = _entry(type_of(result))
    for key in keys:
        kind = _entry(_hints(kind)[key])
    return kind


def _entry(hint: Untyped) -> Untyped:
    """The type of the entries of a list; another type as it is."""
    kind = _kind(hint)
    return get_args(kind)[0] if get_origin(kind) in _LISTS else kind


def _columns(row: Untyped, prefix: str = "") -> dict[str, str]:
    """The columns of an entry, by its type or its path, and their types; a nested object is ``means_step_s``."""
    columns: dict[str, str] = {}
    for key, hint in _hints(_type_of(row) if isinstance(row, str) else row).items():
        kind, name = _kind(hint), f"{prefix}{key}"
        columns |= _columns(kind, f"{name}_") if is_object(kind) else {name: _DTYPES.get(kind, "object")}
    return columns


def _hints(row: type) -> Mapping[str, Untyped]:
    return {key: hint for key, (hint, _) in describe(row).items()}


def _kind(hint: Untyped) -> Untyped:
    """A type without None."""
    return next(kind for kind in get_args(hint) if kind is not type(None)) if isinstance(hint, UnionType) else hint


def _flatten(row: JsonRow, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat |= _flatten(value, f"{prefix}{key}_") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _steps(run: OpenedRun) -> pd.DataFrame:
    """Every step of every process, as its hooks recorded it; ``undisturbed`` says which enter the median."""
    tables = _records(run).steps
    if not tables:
        raise MissingInput(run.results["steps"].sections()[0].notes[0])
    undisturbed = find_undisturbed(tables)
    last = {id(steps) for steps in last_attempts(tables)}
    frames = []
    for steps in tables:
        frame = to_columns({"rank": np.full(len(steps), steps.rank), "attempt": np.full(len(steps), steps.attempt)})
        frame = pd.concat([frame, steps.frame().drop(columns=["rank", "attempt"])], axis=1)
        frame["undisturbed"] = undisturbed.mask(steps) if id(steps) in last else np.zeros(len(steps), np.bool_)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _ranks(run: OpenedRun) -> pd.DataFrame:
    """One row a rank: where it ran, its steps, and where its device's or host's time went in the marked steps."""
    parts = _columns("breakdown/ranks/marked" if run.results.breakdown else "host/ranks/steps")
    parts.pop("name", None)
    dtypes = {"rank": "Int64", "host": "string", "device_name": "string", **_columns("steps/ranks"), **parts}
    rows: dict[int | None, dict[str, Any]] = {}
    records = run.records
    for rank in records.ranks if records else ():
        rows.setdefault(rank.rank, {}).update(rank=rank.rank, host=rank.host, device_name=rank.device_name)
    if run.steps:
        for steps in run.steps.ranks:
            rows.setdefault(steps.rank, {}).update(_flatten(to_object(steps)))
    times: AnyResult = run.results.breakdown or run.results.host
    for entry in times.data()["ranks"] if times else ():
        row = rows.setdefault(entry["rank"], {"rank": entry["rank"]})
        row.update({key: (entry.get("marked") or entry)[key] for key in parts})
    if not rows:
        raise MissingInput("there is neither a record of a rank nor a trace")
    return _build(list(rows.values()), dtypes)


def _operators(run: OpenedRun) -> pd.DataFrame:
    """Kernels by the operator that launched them; operators of the host where there is no device."""
    kernels = run.with_operators().results.kernels
    if kernels:
        return _build([_flatten(to_object(row)) for row in kernels.operators or ()], _columns("kernels/operators"))
    return _build([_flatten(to_object(row)) for row in run.results.host.operators], _columns("host/operators"))


def _wall_clock(run: OpenedRun) -> pd.DataFrame:
    """All of the wall time: one row a process and part; the parts of a process add up to its wall time exactly."""
    rows = [
        {"rank": life.rank, "attempt": life.attempt, "host": life.host, "part": str(part), "ns": part_ns}
        for life in run.results.wall_clock.ranks
        for part, part_ns in life.parts_ns.items()
    ]
    return _build(rows, {"rank": "Int64", "attempt": "Int64", "host": "string", "part": "string", "ns": "Int64"})


def _gpu_samples(run: OpenedRun) -> pd.DataFrame:
    """Every sample of NVML."""
    gpus = _records(run).gpus
    if not gpus:
        raise MissingInput(run.results["gpus"].sections()[0].notes[0])
    frames = []
    for gpu in gpus:
        names = ("t_ns", "power_mw", "util_percent", "memory_used_bytes", "sm_clock_mhz", "temperature_c", "throttle")
        frame = to_columns({name: getattr(gpu, name) for name in names})
        frame.insert(0, "uuid", pd.Series([gpu.uuid] * len(frame), dtype="string"))
        frame.insert(0, "host", pd.Series([gpu.host] * len(frame), dtype="string"))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _pipeline(run: OpenedRun) -> pd.DataFrame:
    """The stages of a pipeline in a mean step: from traces, else from the passes that hooks timed."""
    name = "pipeline_bubble" if run.results.pipeline_bubble else "pipeline_steps"
    return _build([_flatten(stage) for stage in run.results[name].data()["stages"]], _columns(f"{name}/stages"))


def _records(run: OpenedRun) -> Run:
    records = run.records
    if records is None:
        raise MissingInput("traces have no records of steps; open a run of `perfscope profile`")
    return records


_TABLES: dict[str, Callable[[OpenedRun], pd.DataFrame]] = {
    "steps": _steps,
    "ranks": _ranks,
    "operators": _operators,
    "wall_clock": _wall_clock,
    "gpu_samples": _gpu_samples,
    "pipeline": _pipeline,
}

#: What ``OpenedRun.frame`` takes.
NAMES = (*_TABLES, *_ENTRIES)
