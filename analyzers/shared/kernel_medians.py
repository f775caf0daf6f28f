"""The compute kernels of one rank's device: how often each ran in each step, and how long it took.

A kernel is a name and, where the trace states it, a grid. ``perfscope.analyzers.stragglers`` compares ranks by them.
"""

from __future__ import annotations

import re
from zlib import adler32, crc32

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.intervals import Intervals
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

#: The kernels with the most time, of which a rank sends its medians; the others count by their time.
_MOST_KERNELS = 64
_GRID_BITS = 33
#: Kernels whose work is that of the parameters, however large the inputs are.
_OF_PARAMETERS = re.compile(r"(?i)multi_tensor_apply|adam|lamb|_sgd|optimizer")


class KernelMedians(Struct, frozen=True, eq=False, array_like=True):
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
