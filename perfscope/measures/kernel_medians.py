"""The compute kernels of one rank's device: how often each ran in its marked steps, and how long it took.

A kernel is a name and, where the trace states it, a grid. ``perfscope.analyzers.stragglers`` compares ranks by them.
"""

from __future__ import annotations

import re
from zlib import adler32, crc32

import numpy as np
from msgspec import Struct

from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import Intervals
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

#: The kernels with the most time, of which a rank sends its medians; the others count by their time.
_MOST_KERNELS = 64
_GRID_BITS = 33
#: Kernels whose work is that of the parameters, however large the inputs are.
_OF_PARAMETERS = re.compile(r"(?i)multi_tensor_apply|adam|lamb|_sgd|optimizer")


class KernelMedians(Struct, frozen=True, eq=False, array_like=True):
    """The compute kernels of one device in its marked steps; a kernel is a name and a grid.

    ``steps`` is ABSENT alone where none is marked, for the whole window. ``keys`` and ``names`` are numbers that are
    the same on all ranks. ``of_parameters``: its work does not depend on the inputs. ``is_alone``: it never ran while
    the device communicated. ``other_ns`` is the time of all other compute kernels.
    """

    steps: tuple[int, ...]
    keys: Int64
    names: Int64
    of_parameters: Bool
    is_alone: Bool
    calls: Int64
    median_ns: Int64
    other_ns: int


def measure_kernels(trace: Trace, rows: Bool, numbers: Int64, communication: Intervals) -> KernelMedians | None:
    """The compute kernels of the device whose events are ``rows``; None where there are none."""
    events = trace.device
    chosen = rows & (events.work == Work.COMPUTE)
    if (chosen & (numbers != ABSENT)).any():
        chosen &= numbers != ABSENT
    index = np.flatnonzero(chosen)
    if not len(index):
        return None
    start_ns, duration_ns = events.start_ns[index], events.duration_ns[index]
    named = events.name[index].astype(np.int64) << _GRID_BITS
    shapes, kernel = np.unique(named | (events.grid[index] + 1), return_inverse=True)
    calls = np.bincount(kernel)
    ordered, begins = duration_ns[np.lexsort((duration_ns, kernel))], np.cumsum(calls) - calls
    medians = (ordered[begins + (calls - 1) // 2] + ordered[begins + calls // 2]) // 2
    beside = np.bincount(kernel, communication.measure_within(start_ns, start_ns + duration_ns) > 0)
    time_ns = np.bincount(kernel, duration_ns)
    listed = np.argsort(-time_ns, kind="stable")[:_MOST_KERNELS]
    keys = np.array([_key(trace, int(shapes[number])) for number in listed], np.int64)
    listed, keys = listed[np.argsort(keys)], np.sort(keys)
    names = [trace.names[int(shapes[number]) >> _GRID_BITS] for number in listed]
    return KernelMedians(
        steps=tuple(distinct(numbers[index])),
        keys=keys,
        names=np.array([_number(name) for name in names], np.int64),
        of_parameters=np.array([_OF_PARAMETERS.search(name) is not None for name in names], np.bool_),
        is_alone=beside[listed] == 0,
        calls=calls[listed],
        median_ns=medians[listed],
        other_ns=int(time_ns.sum() - time_ns[listed].sum()),
    )


def join_windows(earlier: KernelMedians | None, later: KernelMedians | None) -> KernelMedians | None:
    """The kernels of two windows of one rank; a kernel of both has the mean of its medians, weighted by calls."""
    if earlier is None or later is None:
        return earlier or later
    keys = np.union1d(earlier.keys, later.keys)
    names, calls, time_ns = np.zeros((3, len(keys)), np.int64)
    of_parameters, is_alone = np.zeros(len(keys), np.bool_), np.ones(len(keys), np.bool_)
    for window in (earlier, later):
        places = np.searchsorted(keys, window.keys)
        names[places], of_parameters[places] = window.names, window.of_parameters
        is_alone[places] &= window.is_alone
        calls[places] += window.calls
        time_ns[places] += window.calls * window.median_ns
    steps, other_ns = earlier.steps + later.steps, earlier.other_ns + later.other_ns
    return KernelMedians(steps, keys, names, of_parameters, is_alone, calls, time_ns // calls, other_ns)


def _key(trace: Trace, shape: int) -> int:
    return _number(f"{trace.names[shape >> _GRID_BITS]}\0{shape & ((1 << _GRID_BITS) - 1)}")


def _number(name: str) -> int:
    text = name.encode("utf-8", "replace")
    # Enough to tell some hundred kernels apart; hashlib loads OpenSSL, which takes longer than to compare them.
    return (crc32(text) - (1 << 31) << 32) | adler32(text)
