"""How fast each rank's device computes, apart from how much it has to compute.

Ranks are compared over kernels that all of them ran: of the same name and, where the trace states it, the same grid.
*Relative compute* compares how long these same kernels take: the fastest rank's time over a rank's own, each kernel
with its median and counted equally often on all ranks. *Relative work* compares how much there is to do: a rank's
kernels, each with the median of the rank on which it is fastest, over those of the rank that has least. So a slow
device lowers the first figure, and more or larger kernels raise the second one. Kernels of one name and grid need not
do the same, but called equally often on all ranks they are the same mixture: others are not compared.

Products, attention and sums of recent libraries have a grid as large as the GPU, whatever they compute. Where kernels
that all ranks launch equally often have other grids on some of them, the inputs differ in size, and those of equal
grids say nothing either. Then only kernels of the optimizer are compared, whose work is that of the parameters; a
rank's work is the time of all of its kernels at the pace of the fastest rank.

A kernel beside a collective that waits takes up to twice its time, which says nothing about the device. Where kernels
that never run while the device communicates make up a tenth of the time of the common ones on every rank, only these
are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import TypeAlias
from zlib import adler32, crc32

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.intervals import Intervals
from perfscope.analyzers.shared.marked_steps import common_steps
from perfscope.report import Json
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

#: The kernels with the most time, of which a rank sends its medians; the others count by their time.
_MOST_KERNELS = 64
#: Ranks whose kernels are computed at once.
_AT_ONCE = 256
_ENOUGH_ALONE = 0.1
_GRID_BITS = 33
_FEWEST_RANKS = 2
#: Kernels whose work is that of the parameters, however large the inputs are.
_OF_PARAMETERS = re.compile(r"(?i)multi_tensor_apply|adam|lamb|_sgd|optimizer")
#: Kernels with other grids than on another rank take at least this share of its time where the inputs differ in size.
_RESIZED = 0.1

#: Columns of kernels: calls and median duration, both of all and of those alone.
_InSteps: TypeAlias = tuple[Int64, Float64, Int64, Float64]


class KernelMedians(Struct, frozen=True, eq=False):
    """The compute kernels of one device by step and kernel; a kernel is a name and a grid.

    Attributes:
        steps: The numbers of the marked steps; ABSENT alone where none is marked, for the whole window.
        keys: A number for each kernel, which is the same on all ranks, ascending.
        names: A number for the name of each.
        of_parameters: Whether each one's work does not depend on the inputs.
        calls: How often it ran: one row a step, one column a kernel.
        median_ns: The median of its durations, likewise; 0 where it did not run.
        calls_alone: How often it ran while the device did not communicate.
        median_alone_ns: The median of these.
        other_ns: The time of all other compute kernels, by step.
    """

    steps: tuple[int, ...]
    keys: Int64
    names: Int64
    of_parameters: Bool
    calls: Int64
    median_ns: Int64
    calls_alone: Int64
    median_alone_ns: Int64
    other_ns: Int64


class Pace(Struct, frozen=True):
    """One rank in the comparison.

    Attributes:
        relative_compute: The fastest rank's time for the same kernels over this rank's; at most 1. Absent where the
            inputs differ in size, and no kernel of the optimizer can be compared.
        relative_work: This rank's work over that of the rank with the least; at least 1.
    """

    relative_compute: float | None
    relative_work: float


class Comparison(Struct, frozen=True):
    """The paces of ranks.

    Attributes:
        paces: By rank.
        steps: The marked steps that they are compared over; empty for their whole windows.
        kernels: How many different kernels are compared.
        is_alone: Whether only their runs without communication beside them are compared.
        is_resized: Whether the inputs of the ranks differ in size.
    """

    paces: Mapping[int, Pace]
    steps: tuple[int, ...]
    kernels: int
    is_alone: bool
    is_resized: bool

    def data(self) -> dict[str, Json]:
        """``results.stragglers.compared``."""
        return {
            "steps": list(self.steps),
            "kernels": self.kernels,
            "without_communication": self.is_alone,
            "sizes_differ": self.is_resized,
        }

    def sentence(self) -> str:
        """What is compared, in words."""
        if self.is_resized:
            return (
                "The inputs of the ranks differ in size: kernels of one grid need not do the same. Relative compute "
                f"compares {self.kernels} kernels of the optimizer alone: the fastest rank's time over a rank's own. "
                "Relative work is the time of all kernels at the pace of the fastest rank, 1 for the least."
            )
        beside = "while the device did not communicate" if self.is_alone else "also beside communication"
        return (
            f"Relative compute compares the medians of {self.kernels} kernels that all ranks ran equally often, "
            f"{beside}: the fastest rank's time over a rank's own. Relative work is how much a rank has to compute, 1 "
            "for the least."
        )


def measure_kernels(trace: Trace, rows: Bool, numbers: Int64, communication: Intervals) -> KernelMedians | None:
    """The compute kernels of a device; None where there are none.

    Args:
        trace: The trace.
        rows: Which device events are the device's.
        numbers: For each device event the number of its marked step, or ABSENT.
        communication: When the device communicates.
    """
    events = trace.device
    chosen = rows & (events.work == Work.COMPUTE)
    if (chosen & (numbers != ABSENT)).any():
        chosen &= numbers != ABSENT
    index = np.flatnonzero(chosen)
    if not len(index):
        return None
    duration_ns = events.duration_ns[index]
    named = events.name[index].astype(np.int64) << _GRID_BITS
    shapes, kernel = np.unique(named | (events.grid[index] + 1), return_inverse=True)
    steps = distinct(numbers[index])
    step = np.searchsorted(np.array(steps), numbers[index])
    by_time = np.argsort(-np.bincount(kernel, duration_ns), kind="stable")[:_MOST_KERNELS]
    keys = np.array([_key(trace, int(shapes[number])) for number in by_time], np.int64)
    by_time, keys = by_time[np.argsort(keys)], np.sort(keys)
    names = [trace.names[int(shapes[number]) >> _GRID_BITS] for number in by_time]
    column = np.full(len(shapes), ABSENT, np.int64)
    column[by_time] = np.arange(len(by_time))
    of_kernel = column[kernel]
    is_listed = of_kernel != ABSENT
    shape = len(steps), len(by_time)
    group = step * len(by_time) + of_kernel
    start_ns = events.start_ns[index]
    is_alone = is_listed & (communication.measure_within(start_ns, start_ns + duration_ns) == 0)
    calls, medians = _medians(group[is_listed], duration_ns[is_listed], shape)
    calls_alone, medians_alone = _medians(group[is_alone], duration_ns[is_alone], shape)
    other_ns = np.bincount(step[~is_listed], duration_ns[~is_listed], len(steps)).astype(np.int64)
    return KernelMedians(
        steps=tuple(steps),
        keys=keys,
        names=np.array([_number(name) for name in names], np.int64),
        of_parameters=np.array([_OF_PARAMETERS.search(name) is not None for name in names], np.bool_),
        calls=calls,
        median_ns=medians,
        calls_alone=calls_alone,
        median_alone_ns=medians_alone,
        other_ns=other_ns,
    )


def compare(kernels: Mapping[int, KernelMedians]) -> Comparison | None:
    """Compare ranks over the steps and the kernels that all of them have; None where there are none."""
    if len(kernels) < _FEWEST_RANKS:
        return None
    steps = common_steps(medians.steps for medians in kernels.values())
    common = None
    for medians in kernels.values():
        common = medians.keys if common is None else np.intersect1d(common, medians.keys, assume_unique=True)
    if not steps or common is None or not len(common):
        return None
    columns = _in_steps(list(kernels.values()), steps)
    calls, times, alone, times_alone = _in_common(columns, list(kernels.values()), common)
    # Kernels of one name and grid may differ in what they do; called equally often, they are the same mixture.
    ran_everywhere = (calls > 0).all(axis=0) & (calls == calls[0]).all(axis=0)
    if not ran_everywhere.any():
        return None
    is_resized = _differ_in_size(list(kernels.values()), columns)
    if is_resized:
        first = next(iter(kernels.values()))
        ran_everywhere &= first.of_parameters[np.searchsorted(first.keys, common)]
    ran_alone = ran_everywhere & (alone == calls).all(axis=0)
    shares = _time(calls, times, ran_alone) / np.maximum(_time(calls, times, ran_everywhere), 1)
    is_alone = bool((shares >= _ENOUGH_ALONE).all())
    chosen = ran_alone if is_alone else ran_everywhere
    compared = times_alone if is_alone else times
    time = _time(calls, compared, chosen)
    paces = time.min() / time if time.all() else None
    if is_resized:
        work = _times(list(kernels.values()), columns, steps) * (1.0 if paces is None else paces)
    else:
        work = _work(list(kernels.values()), columns, steps)
    if not work.all() or (paces is None and not is_resized):
        return None
    by_rank = {
        rank: Pace(None if paces is None else float(paces[row]), float(work[row] / work.min()))
        for row, rank in enumerate(kernels)
    }
    numbers = tuple(step for step in steps if step != ABSENT)
    return Comparison(by_rank, numbers, int(chosen.sum()), is_alone, is_resized)


def _time(calls: Int64, times: Float64, chosen: Bool) -> Float64:
    """The time of each rank's chosen kernels; of few ranks at once, because products of all would fill the memory."""
    blocks = [slice(begin, begin + _AT_ONCE) for begin in range(0, len(calls), _AT_ONCE)]
    return np.concatenate([(calls[block] * times[block] * chosen).sum(axis=1) for block in blocks])


def _differ_in_size(kernels: Sequence[KernelMedians], columns: Sequence[_InSteps]) -> bool:
    """Whether kernels that all ranks launch equally often have other grids on some of them."""
    of_pattern: dict[tuple[bytes, ...], dict[int, dict[int, int]]] = {}  # most ranks launch the same
    for medians, (calls, *_) in zip(kernels, _rows(columns), strict=True):
        pattern = medians.keys.tobytes(), medians.names.tobytes(), calls.tobytes()
        if pattern not in of_pattern:
            of_pattern[pattern] = _launches(medians, calls)
    launches = list(of_pattern.values())
    common = set.intersection(*(set(grids) for grids in launches))
    resized = {
        name
        for name in common
        if len({sum(grids[name].values()) for grids in launches}) == 1
        and any(grids[name] != launches[0][name] for grids in launches)
    }
    for medians, (calls, median_ns, *_) in zip(kernels, _rows(columns), strict=True):
        time = calls * median_ns
        is_resized = np.array([name in resized for name in medians.names.tolist()], np.bool_)
        if time[is_resized].sum() < _RESIZED * time.sum():
            return False
    return True


def _launches(medians: KernelMedians, calls: Int64) -> dict[int, dict[int, int]]:
    """How often the kernels of each name were launched with each grid."""
    grids: dict[int, dict[int, int]] = {}
    for key, name, count in zip(medians.keys.tolist(), medians.names.tolist(), calls.tolist(), strict=True):
        if count:
            grids.setdefault(name, {})[key] = count
    return grids


def join_windows(earlier: KernelMedians | None, later: KernelMedians | None) -> KernelMedians | None:
    """The kernels of two windows of one rank, whose steps follow each other."""
    if earlier is None or later is None:
        return earlier or later
    keys = np.union1d(earlier.keys, later.keys)
    columns = []
    for name in ("calls", "median_ns", "calls_alone", "median_alone_ns"):
        rows = []
        for window in (earlier, later):
            column = np.zeros((len(window.steps), len(keys)), np.int64)
            column[:, np.searchsorted(keys, window.keys)] = getattr(window, name)
            rows.append(column)
        columns.append(np.concatenate(rows))
    calls, median_ns, calls_alone, median_alone_ns = columns
    names, of_parameters = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    for window in (earlier, later):
        places = np.searchsorted(keys, window.keys)
        names[places], of_parameters[places] = window.names, window.of_parameters
    return KernelMedians(
        steps=earlier.steps + later.steps,
        keys=keys,
        names=names,
        of_parameters=of_parameters,
        calls=calls,
        median_ns=median_ns,
        calls_alone=calls_alone,
        median_alone_ns=median_alone_ns,
        other_ns=np.concatenate([earlier.other_ns, later.other_ns]),
    )


def _key(trace: Trace, shape: int) -> int:
    """A number for a kernel that is the same in all processes."""
    return _number(f"{trace.names[shape >> _GRID_BITS]}\0{shape & ((1 << _GRID_BITS) - 1)}")


def _number(name: str) -> int:
    text = name.encode("utf-8", "replace")
    # Enough to tell some hundred kernels apart; hashlib loads OpenSSL, which takes longer than to compare them.
    return (crc32(text) - (1 << 31) << 32) | adler32(text)


def _medians(group: Int64, duration_ns: Int64, shape: tuple[int, int]) -> tuple[Int64, Int64]:
    """How many durations there are of each group, and their medians, both in a shape; 0 where there are none."""
    order = np.lexsort((duration_ns, group))
    calls = np.bincount(group, minlength=shape[0] * shape[1])
    begins, ordered = np.cumsum(calls) - calls, duration_ns[order]
    medians = np.zeros(len(calls), np.int64)
    present = np.flatnonzero(calls)
    low, high = begins[present] + (calls[present] - 1) // 2, begins[present] + calls[present] // 2
    medians[present] = (ordered[low] + ordered[high]) // 2
    return calls.reshape(shape), medians.reshape(shape)


def _in_steps(kernels: Sequence[KernelMedians], steps: Sequence[int]) -> list[_InSteps]:
    """Of each rank's kernels over some steps: calls, medians of the steps' medians, and both of those that ran alone.

    Neighbours that have the same steps and kernels are rows of the same columns.
    """
    columns: list[_InSteps] = []
    for (own_steps, _), neighbours in groupby(kernels, lambda medians: (medians.steps, medians.keys.tobytes())):
        alike = list(neighbours)
        rows = [own_steps.index(step) for step in steps]
        shape = len(alike), len(alike[0].keys)
        calls, calls_alone = np.empty(shape, np.int64), np.empty(shape, np.int64)
        times, times_alone = np.empty(shape), np.empty(shape)
        for begin in range(0, len(alike), _AT_ONCE):
            block, at = alike[begin : begin + _AT_ONCE], slice(begin, begin + _AT_ONCE)
            calls[at] = np.stack([medians.calls[rows] for medians in block]).sum(axis=1)
            times[at] = _median_of_present(np.stack([medians.median_ns[rows] for medians in block]))
            calls_alone[at] = np.stack([medians.calls_alone[rows] for medians in block]).sum(axis=1)
            times_alone[at] = _median_of_present(np.stack([medians.median_alone_ns[rows] for medians in block]))
        columns.append((calls, times, calls_alone, times_alone))
    return columns


def _rows(columns: Sequence[_InSteps]) -> Iterator[_InSteps]:
    """Each rank's own, without a copy."""
    return (row for block in columns for row in zip(*block, strict=True))


def _in_common(columns: Sequence[_InSteps], kernels: Sequence[KernelMedians], common: Int64) -> _InSteps:
    """The columns of the kernels that all ranks have, a row a rank."""
    if len(columns) == 1 and all(len(medians.keys) == len(common) for medians in kernels):
        return columns[0]
    every = [_of_kernels(row, medians.keys, common) for row, medians in zip(_rows(columns), kernels, strict=True)]
    calls, times, alone, times_alone = (np.stack(column) for column in zip(*every, strict=True))
    return calls, times, alone, times_alone


def _of_kernels(in_steps: _InSteps, keys: Int64, common: Int64) -> _InSteps:
    """The columns of some kernels."""
    if len(keys) == len(common):
        return in_steps
    columns = np.searchsorted(keys, common)
    calls, times, alone, times_alone = in_steps
    return calls[columns], times[columns], alone[columns], times_alone[columns]


def _median_of_present(values: Int64) -> Float64:
    """The median of each rank's columns without its zeros; 0 of nothing else. Values are by rank, step and column."""
    ordered, present = np.sort(values, axis=1), (values > 0).sum(axis=1)
    steps = values.shape[1]
    first, last = steps - present, steps - 1
    places = np.stack([first + (present - 1) // 2, first + present // 2], axis=1)
    pairs = np.take_along_axis(ordered, np.minimum(places, last), axis=1)
    return np.where(present > 0, (pairs[:, 0] + pairs[:, 1]) / 2, 0.0)


def _times(kernels: Sequence[KernelMedians], columns: Sequence[_InSteps], steps: Sequence[int]) -> Float64:
    """The time of each rank's kernels, by their medians."""
    times = np.zeros(len(kernels))
    for row, (medians, (calls, median_ns, *_)) in enumerate(zip(kernels, _rows(columns), strict=True)):
        others = medians.other_ns[[medians.steps.index(step) for step in steps]].sum()
        times[row] = float((calls * median_ns).sum() + others)
    return times


def _work(kernels: Sequence[KernelMedians], columns: Sequence[_InSteps], steps: Sequence[int]) -> Float64:
    """Each rank's work: every kernel counts with the least median of all ranks."""
    begins = accumulate((len(calls) for calls, *_ in columns[:-1]), initial=0)
    own = [kernels[begin].keys for begin in begins]
    keys = np.unique(np.concatenate(own))
    places = [np.searchsorted(keys, of_block) for of_block in own]
    least = np.full(len(keys), np.inf)
    for place, (_, times, *_) in zip(places, columns, strict=True):
        for begin in range(0, len(times), _AT_ONCE):
            block = times[begin : begin + _AT_ONCE]
            least[place] = np.minimum(least[place], np.where(block > 0, block, np.inf).min(axis=0))
    least[~np.isfinite(least)] = 0
    work = [
        _time(calls, np.broadcast_to(least[place], calls.shape), np.ones(len(place), np.bool_))
        for place, (calls, *_) in zip(places, columns, strict=True)
    ]
    others = [medians.other_ns[[medians.steps.index(step) for step in steps]].sum() for medians in kernels]
    whole: Float64 = np.concatenate(work) + np.array(others)
    return whole
