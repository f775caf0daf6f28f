"""Which rank is late in which step, how much later than the others, and why.

In training that synchronises, a step takes equally long on all ranks: those that are done wait for the last one. What a
rank does outside of these waits is its own; the late rank has most of it. On GPUs the waits are not on the host, and
stages of a pipeline have different work by design. There only parts that cannot be a wait for another rank count: data,
garbage, saves, the run queue, page faults, sleep.

On GPUs a rank that waits for a late one waits on its device. Its host goes on, and is blocked once it needs a result of
the device: in the same step, or a few later. As much of this as the other rank was late is no lateness of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import field
from msgspec.structs import replace

from perfscope.measures.parts import HostPart, Labelled
from perfscope.report import MOST_SHOWN, SMALLEST_CHANGE
from perfscope.result import Doc, Figures
from perfscope.tables.columns import Bool, Float64, Int64, MaskedInt64, present
from perfscope.tables.steps import FEWEST_STEPS, HostTimes, Steps

#: For how much longer than the others a thread is blocked in every step, as a share of theirs: up to a third in
#: trainings where nobody was late, and 1.3 and more where a rank slept.
_LIKELY = 0.75
#: Page faults beyond the others' that explain time in the kernel.
MANY_FAULTS = 200
#: How many steps a host runs ahead of its device.
_MOST_AHEAD = 3
#: Without a rhythm steps pause, or a rank is late, by chance for up to this share, on a host that others use, too.
BY_CHANCE = 0.05
#: A single step is late, or its network slow, from this share of a median step on.
_RARE = 0.25
#: Work that differs by this ratio is different work, and a device that needs this much longer for the same work is
#: slow: clean runs in ``fixtures/stragglers`` have ratios of up to 1.046.
MORE = 1.05


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
    for unit, name in (("tokens", "tokens"), ("samples", "samples"), ("micro-batches", "micro_batches")):
        columns = [getattr(table, name) for table in tables]
        if all(np.all(present(column)[row]) for column, row in zip(columns, rows, strict=True)):
            return unit, np.stack([_values(column, row) for column, row in zip(columns, rows, strict=True)])
    return "", np.zeros((len(tables), count), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Excesses:
    """By how much ranks are later than the median of the others, by rank and step, in nanoseconds.

    Waits for other ranks are not in ``by_part``; ``counted`` are the parts that make a rank late, ``over_ns`` is all of
    these.
    """

    by_part: dict[HostPart, Float64]
    counted: tuple[HostPart, ...]
    over_ns: Float64


def measure_excesses(parts: ComparedSteps, *, counts_compute: bool) -> Excesses:
    """Compare the parts of all ranks; their own work only with ``counts_compute``, else only evidence counts."""
    excess: dict[HostPart, Float64] = {
        part: over_others(parts.parts_ns[part]) for part in HostPart if part is not HostPart.EXCHANGE
    }
    if not parts.times_exchange:
        excess[HostPart.BLOCKED] = _with_idle(excess[HostPart.BLOCKED], parts)
        # A thread that is blocked because its device lags polls it in the driver: it has no page faults.
        has_faults = over_others(parts.faults) > MANY_FAULTS
        excess[HostPart.KERNEL] = np.where(has_faults, excess[HostPart.KERNEL], 0.0)
    counted = tuple(part for part in excess if counts_compute or part in EVIDENCE)
    if not parts.times_exchange:
        excess[HostPart.BLOCKED] = without_peer_waits(excess, counted)
    if counts_compute and parts.times_exchange:
        over = over_others(parts.own_ns)
    else:  # a part that is short on this rank does not make up for one that is long
        over = np.zeros(parts.total_ns.shape)
        for part in counted:
            over += np.maximum(excess[part], 0)
    return Excesses(excess, counted, over)


def over_others(values: Int64) -> Float64:
    """By how much each rank's value is above the median of the other ranks, by rank and step."""
    rows = range(len(values))
    return np.stack([values[row] - np.median(np.delete(values, row, axis=0), axis=0) for row in rows])


def _with_idle(excess: Float64, parts: ComparedSteps) -> Float64:
    """By how much a rank is blocked longer than usual, and in every step for as long as its whole process is idle.

    The training thread waits while the backward thread launches, or while the device lags: one of the threads then
    works or spins. Where idle times are unknown, a rank counts as blocked in every step only if it is so for longer
    than backward passes differ.
    """
    usual, usual_ns = np.median(excess, axis=1), np.median(parts.parts_ns[HostPart.BLOCKED], axis=1)
    longer: Float64 | int = 0
    if parts.idle_ns:
        longer = np.maximum(over_others(np.clip(parts.idle_ns, 0, usual_ns)[:, None].astype(np.int64)), 0)
    else:
        usual[usual > _LIKELY * (usual_ns - usual)] = 0
    return np.asarray(excess - np.maximum(usual, 0)[:, None] + longer, np.float64)


def without_peer_waits(excess: dict[HostPart, Float64], counted: Sequence[HostPart]) -> Float64:
    """By how much ranks are blocked longer than the others, without the lateness of other ranks, by rank and step.

    A host waits for another rank in the step in which that rank is late, or up to three steps later. A host that was
    blocked in an earlier step is late, too.
    """
    blocked = excess[HostPart.BLOCKED]
    others = (np.maximum(excess[part], 0) for part in counted if part is not HostPart.BLOCKED)
    late = sum(others, np.zeros(blocked.shape))
    latest, before = late.copy(), late + np.maximum(blocked, 0)
    for ahead in range(1, _MOST_AHEAD + 1):
        latest[:, ahead:] = np.maximum(latest[:, ahead:], before[:, :-ahead])
    ordered = np.sort(latest, axis=0)
    most_of_others = np.where(latest == ordered[-1], ordered[-2], ordered[-1])
    return np.asarray(blocked - np.clip(most_of_others, 0, np.maximum(blocked, 0)), np.float64)


class LateCause(Labelled):
    """Why a rank is late."""

    SAVE = "save", "it saved a checkpoint and the others did not"
    COMPILATION = "compilation", "torch.compile compiled"
    GARBAGE = "garbage", "Python collected garbage"
    DATA = "data", "it waited for data"
    CONTENTION = "contention", "it had no processor: other threads or processes had it"
    FAULTS = "faults", "it touched new memory"
    KERNEL = "kernel", "more time in the operating system"
    BLOCKED = "blocked", "its host code slept or waited outside of collectives"
    WORK = "work", "it had more work"
    COMPUTE = "compute", "its processor took longer, or ran more code"
    DEVICE = "device", "its GPU is slower"
    CLOCK = "clock", "its GPU has a lower clock"
    NETWORK = "network", "the exchange took longer on all ranks"


class Lateness(Figures, frozen=True, kw_only=True):
    """A rank that is late for one reason, or a network that is slow on all."""

    rank: Annotated[int | None, Doc("The rank; None for the network.")]
    cause: Annotated[LateCause, Doc("What it did longer than the others.")]
    persistent: Annotated[bool, Doc("Whether it was late for that cause in most steps.")]
    steps: Annotated[int, Doc("In how many of the compared steps.")]
    examples: Annotated[tuple[int, ...], Doc("The worst of them, at most five, ascending.")] = ()
    cost_ns: Annotated[int, Doc("What it cost the job in all of them.")]
    cause_ns: Annotated[int, Doc("How much of the cost the cause explains.")]
    share: Annotated[float | None, Doc("``cost_ns`` over the time of the compared steps; None where that is 0.")] = None
    excess_ns: Annotated[Mapping[HostPart, int], Doc("How much longer than the others it took, by part.")] = field(
        default_factory=dict
    )
    detail: Annotated[str | None, Doc("What else is known of the cause.")] = None
    line: Annotated[
        str | None, Doc("Where its training thread was, and the other ranks' were not; None if unseen.")
    ] = None


def find_lateness(parts: ComparedSteps, excesses: Excesses) -> list[Lateness]:
    """The late ranks, the most expensive first."""
    over = excesses.over_ns
    median_ns, whole_ns = float(np.median(parts.total_ns)), float(parts.total_ns.max(axis=0).sum())
    usual = np.maximum(np.median(over, axis=1), 0)
    usual[usual < BY_CHANCE * median_ns] = 0
    entries: list[Lateness] = []
    for row in range(len(parts.ranks)):
        rank = _Rank(parts, excesses, row)
        if usual[row]:
            entries += rank.in_most_steps(over[row] > usual[row] / 2, median_ns)
        beyond = over[row] - usual[row]
        late = (beyond > _RARE * median_ns) & (over[row] >= over.max(axis=0))
        if beyond[late].sum() > SMALLEST_CHANGE * whole_ns:
            entries += rank.in_some_steps(late, beyond, SMALLEST_CHANGE * whole_ns / 2, is_known=usual[row] > 0)
    entries += _find_slow_network(parts, median_ns) if parts.times_exchange else []
    return sorted(entries, key=lambda late: -late.cost_ns)


class _Rank:
    def __init__(self, parts: ComparedSteps, excesses: Excesses, row: int) -> None:
        self._parts, self._row = parts, row
        self._excess = {part: excesses.by_part[part][row] for part in excesses.counted}
        self._over = excesses.over_ns[row]

    def in_most_steps(self, late: Bool, median_ns: float) -> list[Lateness]:
        typical = {part: float(np.median(excess[late])) for part, excess in self._excess.items()}
        entries: list[Lateness] = []
        remaining = float(self._over[late].sum())
        for part in sorted(typical, key=lambda part: -typical[part]):
            share_ns = min(typical[part], remaining / int(late.sum()))  # a few long ones are no part of most steps
            if not entries or share_ns > BY_CHANCE * median_ns:
                entry = self._describe(late, self._over, part)
                if entry.cause in {named.cause for named in entries}:
                    continue
                cost_ns = round(min(entry.cause_ns, remaining) if len(typical) > 1 else remaining)
                entries.append(replace(entry, persistent=True, cost_ns=cost_ns))
                remaining -= cost_ns
        return entries

    def in_some_steps(self, late: Bool, beyond: Float64, least_ns: float, *, is_known: bool) -> list[Lateness]:
        counted = tuple(self._excess)
        above = np.stack([self._excess[part] for part in counted])
        if is_known:  # what is longer in every step does not explain a rare one
            above = above - np.maximum(np.median(above, axis=1), 0)[:, None]
        longest = above.argmax(axis=0)
        entries = []
        for index, part in enumerate(counted):
            chosen = late & (longest == index)
            if part is HostPart.BLOCKED and not self._parts.times_exchange:
                chosen &= above[index] > np.median(self._parts.parts_ns[HostPart.BLOCKED][self._row])
            if beyond[chosen].sum() > least_ns:
                entries.append(self._describe(chosen, beyond, part))
        return entries

    def _describe(self, chosen: Bool, over: Float64, longest: HostPart) -> Lateness:
        sums = {part: round(float(excess[chosen].sum())) for part, excess in self._excess.items()}
        cost_ns = round(float(over[chosen].sum()))
        cause = LateCause["CONTENTION" if longest is HostPart.NO_PROCESSOR else longest.name]
        detail, cause_ns = None, sums[longest]
        faults = float(np.median(over_others(self._parts.faults)[self._row][chosen]))
        in_kernel = sums.get(HostPart.KERNEL, 0)
        is_kernel = longest is HostPart.KERNEL or (longest is HostPart.COMPUTE and 3 * in_kernel > sums[longest])
        if is_kernel and faults > MANY_FAULTS:
            cause, detail = LateCause.FAULTS, f"{faults:.0f} more page faults in a step"
            cause_ns = sums[HostPart.KERNEL] + max(sums.get(HostPart.COMPUTE, 0), 0)
        elif longest is HostPart.COMPUTE:
            cause, detail = self._explain_compute(chosen)
        return Lateness(
            rank=self._parts.ranks[self._row],
            persistent=False,
            steps=int(chosen.sum()),
            examples=_worst(self._parts, chosen, over),
            cost_ns=cost_ns,
            cause=cause,
            cause_ns=min(max(cause_ns, 0), cost_ns),
            excess_ns=sums,
            detail=detail,
        )

    def _explain_compute(self, chosen: Bool) -> tuple[LateCause, str | None]:
        work, unit = self._parts.work, self._parts.work_unit
        own = float(work[self._row][chosen].sum())
        usual = float(np.median(np.delete(work, self._row, axis=0)[:, chosen].sum(axis=1)))
        if usual and own > MORE * usual:
            return LateCause.WORK, f"{own / usual:.2f} times the {unit} of the others"
        return LateCause.COMPUTE, f"the same {unit}" if usual else None


def _worst(parts: ComparedSteps, chosen: Bool, over: Float64) -> tuple[int, ...]:
    worst = np.flatnonzero(chosen)[np.argsort(-over[chosen], kind="stable")[:MOST_SHOWN]]
    return tuple(sorted(parts.step[worst].tolist()))


def _find_slow_network(parts: ComparedSteps, median_ns: float) -> list[Lateness]:
    """Steps in which even the rank that waited least waited much longer than usual.

    Threads of the exchange have no processor either where the training thread has none: then only what is far
    longer than such delays shows the network.
    """
    least = parts.parts_ns[HostPart.EXCHANGE].min(axis=0)
    beyond = np.asarray(least - np.median(least), np.float64)
    delay_ns = parts.parts_ns[HostPart.NO_PROCESSOR].max(axis=0)
    slow = (beyond > _RARE * median_ns) & (beyond > delay_ns)
    cost_ns = round(float(beyond[slow].sum()))
    if cost_ns <= SMALLEST_CHANGE * float(parts.total_ns.max(axis=0).sum()):
        return []
    return [
        Lateness(
            rank=None,
            persistent=False,
            steps=int(slow.sum()),
            examples=_worst(parts, slow, beyond),
            cost_ns=cost_ns,
            cause=LateCause.NETWORK,
            cause_ns=cost_ns,
            excess_ns={HostPart.EXCHANGE: cost_ns},
        )
    ]
