"""The tables of a run as pandas DataFrames: one row an entry of the JSON, nested objects as further columns.

The type of each column follows from the type of the JSON's key, so that an empty table has its columns, too; what is
absent is ``<NA>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_type_hints, is_typeddict

import numpy as np
import pandas as pd

from perfscope.analyzers.energy import GpuEnergy
from perfscope.analyzers.gpus import Gpu
from perfscope.analyzers.saves.result import Save
from perfscope.analyzers.shared.step_selection import find_undisturbed, last_attempts
from perfscope.analyzers.steps.result import RankSteps
from perfscope.analyzers.throttling import GpuThrottling
from perfscope.api.schema.device import (
    CallerData,
    DevicePartsData,
    GapData,
    KernelData,
    PartsData,
    RankIdleData,
    StepPartsData,
    TimesData,
)
from perfscope.api.schema.device import OptimizerData as OptimizerRow
from perfscope.api.schema.findings import FindingData
from perfscope.api.schema.gpus import ConventionData
from perfscope.api.schema.host import HostPartsData, HostRankData, OperatorCountData, OperatorData, TermData
from perfscope.api.schema.modules import ModuleData, OperatorWorkData
from perfscope.api.schema.pipelines import PathPartData, ScenarioData, StageData, TimedStageData
from perfscope.api.schema.ranks import AxisOverlapData, CollectiveData, GroupOverlapData, RankClockData, RankPaceData
from perfscope.api.schema.steps import WindowCostData
from perfscope.errors import MissingInput, UsageError
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
_NO_RECORDS = "traces have no records of steps; open a run of `perfscope profile`"


@dataclass(frozen=True, slots=True)
class Entries:
    """A table of entries of one result.

    Attributes:
        result: The result.
        path: Where its entries are: the keys of lists, one inside the other.
        row: The type of an entry.
        carried: Keys of the outer entries that each row has, too.
    """

    result: str
    path: tuple[str, ...]
    row: type
    carried: tuple[str, ...] = ()


_ENTRIES = {
    "findings": Entries("findings", (), FindingData),
    "windows": Entries("cost", ("windows",), WindowCostData),
    "saves": Entries("saves", ("saves",), Save),
    "gpus": Entries("gpus", (), Gpu),
    "energy": Entries("energy", ("gpus",), GpuEnergy),
    "throttling": Entries("throttling", (), GpuThrottling),
    "mfu": Entries("mfu", ("conventions",), ConventionData),
    "breakdown": Entries("breakdown", ("ranks",), DevicePartsData),
    "breakdown_steps": Entries("breakdown", ("ranks", "steps"), StepPartsData, _RANK),
    "host": Entries("host", ("ranks",), HostRankData),
    "overlap": Entries("overlap", ("groups",), GroupOverlapData),
    "axes": Entries("overlap", ("axes",), AxisOverlapData),
    "idle": Entries("idle", ("ranks",), RankIdleData),
    "idle_gaps": Entries("idle", ("ranks", "longest"), GapData, _RANK),
    "calls": Entries("calls", ("ranks", "callers"), CallerData, _RANK),
    "optimizer": Entries("optimizer", ("ranks",), OptimizerRow),
    "modules": Entries("modules", ("ranks", "modules"), ModuleData, ("rank",)),
    "roofline": Entries("roofline", ("ranks", "operators"), OperatorWorkData, ("rank",)),
    "kernels": Entries("kernels", ("names",), KernelData),
    "operations": Entries("operations", ("ranks", "operators"), OperatorCountData, ("rank",)),
    "collectives": Entries("collectives", ("operations",), CollectiveData),
    "stragglers": Entries("stragglers", ("ranks",), RankPaceData),
    "clocks": Entries("clock", ("ranks",), RankClockData),
    "budget": Entries("budget", ("terms",), TermData),
    "scenarios": Entries("whatif", ("scenarios",), ScenarioData),
    "critical_path": Entries("whatif", ("critical_path",), PathPartData),
}


def to_frame(run: OpenedRun, name: str) -> pd.DataFrame:
    """A table by its name.

    Raises:
        UsageError: There is none of that name.
        MissingInput: The run does not have it.
    """
    if name in _ENTRIES:
        entries = _ENTRIES[name]
        return _to_frame(list(_walk(run.results[entries.result].data(), entries.path, entries.carried)), entries)
    if name in _TABLES:
        return _TABLES[name](run)
    raise UsageError(f"there is no frame {name!r}: the frames are {', '.join(NAMES)}")


def _walk(data: Untyped, path: Sequence[str], carried: Sequence[str]) -> Iterator[JsonRow]:
    """The entries of a list inside lists, each with what it carries of the outer ones."""
    if not path:
        yield from data
        return
    if len(path) == 1:
        yield from data[path[0]]
        return
    for outer in data[path[0]]:
        for row in _walk(outer, path[1:], ()):
            yield {**{key: outer[key] for key in carried}, **row}


def _to_frame(rows: Sequence[JsonRow], entries: Entries) -> pd.DataFrame:
    dtypes = {**dict.fromkeys(entries.carried, "Int64"), **_columns(entries.row)}
    return _build([_flatten(row) for row in rows], dtypes)


def _build(rows: Sequence[JsonRow], dtypes: Mapping[str, str]) -> pd.DataFrame:
    columns = {
        column: pd.Series([row.get(column) for row in rows], dtype=dtype, name=column)
        for column, dtype in dtypes.items()
    }
    return pd.DataFrame(columns)


def _columns(row: type, prefix: str = "") -> dict[str, str]:
    """The columns of an entry and their types; a nested object is further columns, ``means_step_s``."""
    columns: dict[str, str] = {}
    for key, hint in _hints(row).items():
        kind = _kind(hint)
        if is_typeddict(kind) or is_object(kind):
            columns.update(_columns(kind, f"{prefix}{key}_"))
        else:
            columns[f"{prefix}{key}"] = _DTYPES.get(kind, "object")
    return columns


def _hints(row: type) -> Mapping[str, Untyped]:
    if is_object(row):
        return {key: hint for key, (hint, _) in describe(row).items()}
    return get_type_hints(row)


def _kind(hint: Untyped) -> Untyped:
    """A type without None."""
    return next(kind for kind in get_args(hint) if kind is not type(None)) if isinstance(hint, UnionType) else hint


def _flatten(row: JsonRow, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}_"))
        else:
            flat[f"{prefix}{key}"] = value
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
    parts = PartsData if run.results.breakdown else HostPartsData
    dtypes = {
        "rank": "Int64", "host": "string", "device_name": "string",
        **_columns(RankSteps), **_columns(parts),
    }  # fmt: skip
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
        row.update({key: (entry.get("marked") or entry)[key] for key in _columns(parts)})
    if not rows:
        raise MissingInput("there is neither a record of a rank nor a trace")
    return _build(list(rows.values()), dtypes)


def _operators(run: OpenedRun) -> pd.DataFrame:
    """Kernels by the operator that launched them; operators of the host where there is no device."""
    kernels = run.with_operators().results.kernels
    if kernels:
        return _build([_flatten(row) for row in kernels.data()["operators"] or ()], _columns(TimesData))
    host = run.results.host.data()
    return _build([_flatten(row) for row in host["operators"]], _columns(OperatorData))


def _wall_clock(run: OpenedRun) -> pd.DataFrame:
    """All of the wall time: one row a process and part; the parts of a process add up to its wall time exactly."""
    rows = [
        {"rank": ledger["rank"], "attempt": ledger["attempt"], "host": ledger["host"], "part": part, "ns": part_ns}
        for ledger in run.results.wall_clock.data()["ranks"]
        for part, part_ns in _flatten(ledger["parts_ns"]).items()
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
        frame = to_columns({name: getattr(gpu, name) for name in (*names, "energy_mj")})
        frame.insert(0, "uuid", pd.Series([gpu.uuid] * len(frame), dtype="string"))
        frame.insert(0, "host", pd.Series([gpu.host] * len(frame), dtype="string"))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _pipeline(run: OpenedRun) -> pd.DataFrame:
    """The stages of a pipeline in a mean step: from traces, else from the passes that hooks timed."""
    bubble = run.results.pipeline_bubble
    if bubble:
        return _build([_flatten(stage) for stage in bubble.data()["stages"]], _columns(StageData))
    stages = run.results.pipeline_steps.data()["stages"]
    return _build([_flatten(stage) for stage in stages], _columns(TimedStageData))


def _records(run: OpenedRun) -> Run:
    records = run.records
    if records is None:
        raise MissingInput(_NO_RECORDS)
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
