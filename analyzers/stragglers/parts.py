"""What each step of each rank is made of on the host, over the same steps: integers that add up to the step exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.shared.parts import HostPart
from perfscope.tables.columns import Bool, Int64, MaskedInt64, present
from perfscope.tables.steps import FEWEST_STEPS, HostTimes, Steps

#: Parts that show by themselves why a rank is late; the others depend on what the rank has to compute, or on others.
EVIDENCE = tuple(part for part in HostPart if part not in (HostPart.COMPUTE, HostPart.EXCHANGE))


@dataclass(frozen=True, slots=True, eq=False)
class ComparedSteps:
    """The same steps of several ranks; columns are by rank and step.

    A step is from the end of the step before to its own; its parts add up to it exactly. ``work`` is in ``work_unit``,
    zeros where a rank does not know it. ``times_exchange``: waits for other ranks were timed on all ranks. ``idle_ns``
    is for how long of a step a rank's process had no processor, without waits for data and saves.
    """

    ranks: tuple[int, ...]
    step: Int64
    total_ns: Int64
    parts_ns: dict[HostPart, Int64]
    faults: Int64
    work: Int64
    work_unit: str
    times_exchange: bool
    idle_ns: tuple[float, ...] = ()

    @property
    def own_ns(self) -> Int64:
        """Each step without the waits for other ranks."""
        return np.asarray(self.total_ns - self.parts_ns[HostPart.EXCHANGE], np.int64)


def split_steps(tables: Sequence[Steps]) -> ComparedSteps | None:
    """The parts of the steps that all ranks have and that no profiler or validation was in; None without any."""
    numbers = _common_steps(tables)
    if not len(numbers):
        return None
    rows = [np.searchsorted(table.step, numbers) for table in tables]
    total_ns = np.stack([np.diff(table.end_ns, prepend=0)[row] for table, row in zip(tables, rows, strict=True)])
    parts_ns = {part: np.zeros(total_ns.shape, np.int64) for part in HostPart}
    for index, (table, row) in enumerate(zip(tables, rows, strict=True)):
        _split_rank(table, row, total_ns[index], {part: times[index] for part, times in parts_ns.items()})
    unit, work = _work(tables, rows, len(numbers))
    parts = ComparedSteps(
        ranks=tuple(table.rank for table in tables),
        step=numbers,
        total_ns=total_ns,
        parts_ns=parts_ns,
        faults=np.stack([_values(_host(table).faults, row) for table, row in zip(tables, rows, strict=True)]),
        work=work,
        work_unit=unit,
        times_exchange=all(bool(present(_host(table).collectives_ns).any()) for table in tables),
        idle_ns=_idle(tables, parts_ns),
    )
    assert np.array_equal(sum(parts.parts_ns.values()), parts.total_ns), "the parts do not add up to the steps"
    return parts


def _idle(tables: Sequence[Steps], parts_ns: Mapping[HostPart, Int64]) -> tuple[float, ...]:
    probed = [[probe.idle_ns for probe in table.probes if probe.idle_ns is not None] for table in tables]
    if any(len(idle_ns) < FEWEST_STEPS for idle_ns in probed):
        return ()
    explained_ns = sum(
        np.median(parts_ns[part], axis=1) for part in (HostPart.SAVE, HostPart.DATA, HostPart.NO_PROCESSOR)
    )
    return tuple(np.maximum([np.median(idle_ns) for idle_ns in probed] - explained_ns, 0).tolist())


def _host(table: Steps) -> HostTimes:
    assert table.host is not None, "a step is comparable where its host was recorded"
    return table.host


def _common_steps(tables: Sequence[Steps]) -> Int64:
    common: Int64 | None = None
    for table in tables:
        if table.host is None:
            return np.zeros(0, np.int64)
        chosen = table.step[_is_comparable(table, table.host.cpu_ns)]
        if common is None or not np.array_equal(common, chosen):
            common = chosen if common is None else np.intersect1d(common, chosen, assume_unique=True)
    return np.zeros(0, np.int64) if common is None else common


def _is_comparable(table: Steps, counted: MaskedInt64) -> Bool:
    follows = np.zeros(len(table), np.bool_)
    follows[1:] = np.diff(table.step) == 1
    forward = np.zeros(len(table), np.bool_)
    forward[1:] = np.diff(table.end_ns) > 0
    plain = (table.window == "") & ~present(table.no_grad_ns) & present(table.wall_ns) & (table.step > 1)
    return np.asarray(plain & follows & forward & present(counted), np.bool_)


def _values(column: MaskedInt64, rows: Int64) -> Int64:
    return np.asarray(np.ma.filled(column, 0)[rows], np.int64)


def _split_rank(table: Steps, rows: Int64, total: Int64, parts: Mapping[HostPart, Int64]) -> None:
    """Write the parts of one rank's steps into columns of zeros; what several claim belongs to the first of them."""
    host = _host(table)
    rest = total.copy()
    exchange = _values(host.collectives_ns, rows) + _values(host.transfers_ns, rows)
    outside = total - _values(host.cpu_ns, rows)
    delay = _values(host.delay_ns, rows)
    known_off = exchange + _values(table.data_wait_ns, rows) + _values(table.save_ns, rows)
    blocked = outside - delay - known_off
    # While another thread launches a backward pass the one that trains is blocked, and has no processor where that
    # one has none.
    launcher_delay = np.clip(_values(host.launcher_delay_ns, rows), 0, np.maximum(blocked, 0))
    claims = {
        HostPart.SAVE: _values(table.save_ns, rows),
        HostPart.COMPILATION: _values(table.compile_ns, rows),
        HostPart.GARBAGE: _values(table.garbage_ns, rows),
        HostPart.EXCHANGE: exchange,
        HostPart.DATA: _values(table.data_wait_ns, rows),
        HostPart.NO_PROCESSOR: delay + launcher_delay,
        HostPart.BLOCKED: blocked - launcher_delay,
        HostPart.KERNEL: _values(host.system_ns, rows),
    }
    for part, claimed in claims.items():
        if claimed.any():
            np.clip(claimed, 0, rest, out=parts[part])
            rest -= parts[part]
    parts[HostPart.COMPUTE][:] = rest


def _work(tables: Sequence[Steps], rows: Sequence[Int64], count: int) -> tuple[str, Int64]:
    for unit, columns in (
        ("tokens", [table.tokens for table in tables]),
        ("samples", [table.samples for table in tables]),
        ("micro-batches", [table.micro_batches for table in tables]),
    ):
        if all(np.all(present(column)[row]) for column, row in zip(columns, rows, strict=True)):
            return unit, np.stack([_values(column, row) for column, row in zip(columns, rows, strict=True)])
    return "", np.zeros((len(tables), count), np.int64)
