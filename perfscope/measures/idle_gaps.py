"""The stretches in which nothing runs on a device, and what each part of them was waiting for.

A gap ends where the next device event begins. Until the launch of that event began, the host was late, and the time is
split at what the launching thread did meanwhile (``perfscope.measures.host_activity``). From then on:

- *launch latency*: the launch was under way.
- *launch gap*: launched before the gap, which is shorter than 5 us, the time that a device needs between two kernels.
- *dependency*: launched before, but it waited for an event, another stream or another device.
- *graph*: a gap inside a launched CUDA graph.
- *unknown*: the trace does not contain its launch.

The parts of a gap add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct

from perfscope.measures.host_activity import HostActivity
from perfscope.measures.parts import CAUSES, HOST_CAUSES
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import Intervals, union
from perfscope.tables.trace import ABSENT, GRAPH_LAUNCH, Trace

LAUNCH_GAP_NS = 5000


class DeviceGaps(Struct, frozen=True, eq=False):
    """The idle time of some device events.

    ``following`` is the row of the device event that ended each gap. ``parts`` are nanoseconds: one row for each of
    CAUSES, one column a gap.
    """

    gaps: Intervals
    following: Int64
    parts: Int64

    def within(self, start: Int64, end: Int64) -> Int64:
        """The parts of the gaps that lie in intervals, none of which may cut a gap: one column an interval."""
        first, behind = (np.searchsorted(self.gaps.start, moments) for moments in (start, end))
        sums = np.zeros((len(CAUSES), len(start)), np.int64)
        for row, part in enumerate(self.parts):
            if part.any():
                total = np.concatenate([[0], np.cumsum(part)])
                sums[row] = total[np.maximum(behind, first)] - total[first]
        return sums


_KEPT: WeakKeyDictionary[Trace, dict[int, DeviceGaps]] = WeakKeyDictionary()


def gaps_of_device(trace: Trace, device: int) -> DeviceGaps:
    """The gaps of a device over the whole window; several analyzers of a trace need them."""
    of_trace = _KEPT.setdefault(trace, {})
    if device not in of_trace:
        of_trace[device] = find_gaps(trace, np.flatnonzero(trace.device.device == device), HostActivity(trace))
    return of_trace[device]


def gaps_of_steps(trace: Trace, device: int, steps: Sequence[Int64]) -> Int64:
    """Idle time within steps by cause, in nanoseconds: one row for each of CAUSES, one column a step.

    ``steps`` are for each step the rows of its device events, in the order of start.
    """
    idle, events = gaps_of_device(trace, device), trace.device
    rows = np.flatnonzero(events.device == device)
    starts, ends = events.start_ns[rows], np.sort(events.end_ns[rows])
    first = np.array([events.start_ns[members[0]] for members in steps], np.int64)
    last = np.array([events.end_ns[members].max() for members in steps], np.int64)
    beside = np.searchsorted(starts, last) - np.searchsorted(ends, first, side="right")
    # Where nothing else runs in a step's window, its gaps are those of the device.
    causes = idle.within(first, last)
    for step in np.flatnonzero(beside != [len(members) for members in steps]).tolist():
        causes[:, step] = find_gaps(trace, steps[step], HostActivity(trace)).parts.sum(axis=1)
    return causes


def find_gaps(trace: Trace, rows: Int64, host: HostActivity) -> DeviceGaps:
    """The gaps between some device events, by cause; ``rows`` are in the order of start."""
    start, end = trace.device.start_ns[rows], trace.device.end_ns[rows]
    gaps = union(start, end).gaps(int(start.min()), int(end.max()))
    following = _find_following(trace, rows, start, gaps.end)
    return DeviceGaps(gaps, following, _by_cause(trace, gaps, following, host))


def _find_following(trace: Trace, rows: Int64, start: Int64, ends: Int64) -> Int64:
    """The event that ended each gap; of those that begin together, the first whose launch the trace contains."""
    first, behind = np.searchsorted(start, ends), np.searchsorted(start, ends, side="right")
    following = rows[first]
    for gap in np.flatnonzero(behind - first > 1).tolist():
        tied = rows[first[gap] : behind[gap]]
        launched = tied[trace.launch[tied] != ABSENT]
        if len(launched):
            call = trace.launch[launched]
            following[gap] = launched[np.lexsort((trace.calls.end_ns[call], trace.calls.start_ns[call]))[0]]
    return following


def _by_cause(trace: Trace, gaps: Intervals, following: Int64, host: HostActivity) -> Int64:
    launch = trace.launch[following]
    has_launch = launch != ABSENT
    length = gaps.end - gaps.start
    parts = np.zeros((len(CAUSES), len(gaps)), np.int64)
    part = dict(zip(CAUSES, parts, strict=True))
    part["unknown"][~has_launch] = length[~has_launch]
    if not has_launch.any():
        return parts
    launched, returned = trace.calls.start_ns[launch], trace.calls.end_ns[launch]
    is_late = has_launch & (launched >= gaps.start)
    until = np.minimum(launched, gaps.end)
    part["launch_latency"][is_late] = (gaps.end - until)[is_late]
    late = np.flatnonzero(is_late & (until > gaps.start))
    if len(late):
        threads = trace.calls.thread[launch[late]]
        parts[: len(HOST_CAUSES), late] = host.split(gaps.start[late], until[late], threads)
    for cause, chosen in _on_time(trace, has_launch & ~is_late, launch, returned, gaps).items():
        part[cause][chosen] = length[chosen]
    return parts


def _on_time(trace: Trace, early: Bool, launch: Int64, returned: Int64, gaps: Intervals) -> dict[str, Bool]:
    in_graph = early & trace.called(GRAPH_LAUNCH)[launch]
    under_way = early & ~in_graph & (returned > gaps.start)
    short = early & ~in_graph & ~under_way & (gaps.end - gaps.start < LAUNCH_GAP_NS)
    dependency = early & ~in_graph & ~under_way & ~short
    return {"graph": in_graph, "launch_latency": under_way, "launch_gap": short, "dependency": dependency}
