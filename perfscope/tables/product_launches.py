"""Joins the products of a trace with the kernels that they launched, and with the graphs that recorded them.

Recording a graph runs nothing: the calls in it run when the graph is launched. A launch belongs to the recording that
has as many kernels and copies; where several have, they must have recorded the same products.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.kernel_precision import product_precision
from perfscope.tables.products import Launches, ProductCalls, Products
from perfscope.tables.trace import ABSENT, DeviceEvents, Trace, Work, distinct

#: Times of older exporters are rounded to a quarter of a microsecond.
_ROUNDING_NS = NS_PER_US // 2
_BEGINS = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture")
_ENDS = re.compile(r"^(?:cuda|cu|hip)StreamEndCapture")
_RECORDED = re.compile(r"^(?:cuda|cu|hip)\w*(?:Launch\w*Kernel|Mem(?:cpy|set)\w*Async)")
_REPLAYS = re.compile(r"^(?:cuda|cu|hip)GraphLaunch")
#: A graph may leave out as large a part of what was recorded, such as copies of nothing.
LEFT_OUT = 0.01


class Recording(Struct, frozen=True, eq=False):
    """A graph that was recorded.

    Attributes:
        calls: The rows of the calls of products in it.
        launches: How many launches it recorded.
    """

    calls: Int64
    launches: int

    def is_launched_as(self, events: int) -> bool:
        """Whether a launch of a graph with so many device events may be one of it."""
        return events > 0 and abs(self.launches - events) <= LEFT_OUT * self.launches


def find_launches(trace: Trace, products: Products) -> Launches:
    """What the products launched."""
    if products.launches is not None:
        return products.launches
    calls, device = products.calls, trace.device
    recordings = list(find_recordings(trace, calls))
    runs = np.ones(len(calls), np.int64)
    for recording in recordings:
        runs[recording.calls] = 0
    is_recorded = runs == 0
    is_multiplying = np.array([product_precision(name) is not None for name in trace.names], np.bool_)
    multiplies = is_multiplying[device.name]
    computes = device.is_work(Work.COMPUTE, Work.FUSED)
    launch = np.where(computes, trace.launch, ABSENT)
    is_replay = np.append(_called(trace, _REPLAYS), False)[launch]  # ABSENT is the last one
    launched = np.flatnonzero((launch != ABSENT) & ~is_replay)
    call = _innermost(calls, trace.calls.start_ns[launch[launched]], trace.calls.thread[launch[launched]])
    inside, call = launched[call != ABSENT], call[call != ABSENT]
    kernel_ns = _sum_by(call, device.duration_ns[inside], len(calls))
    multiplying_ns = _sum_by(call, np.where(multiplies[inside], device.duration_ns[inside], 0), len(calls))
    replays = _Replays(trace, calls, recordings, runs)
    own_ns, other_ns = (int(device.duration_ns[rows & multiplies & computes].sum()) for rows in replays.split(device))
    # A kernel without a launch was launched before the trace began, by a call that is not in it.
    in_all_ns = int(device.duration_ns[multiplies & computes & (launch != ABSENT)].sum())
    return Launches(
        kernel_ns=kernel_ns,
        multiplying_ns=multiplying_ns,
        multiplying_kernels=_sum_by(call, multiplies[inside].astype(np.int64), len(calls)),
        runs=runs,
        is_recorded=is_recorded,
        replayed_ns=own_ns,
        other_ns=in_all_ns - int(multiplying_ns.sum()) - own_ns,
        other_replays=replays.others,
        other_replays_ns=other_ns,
    )


class _Replays:
    """Which launches of graphs are of which recordings; counts the runs of the calls in them.

    Attributes:
        others: Launches of graphs that belong to no recording.
    """

    def __init__(self, trace: Trace, calls: ProductCalls, recordings: Sequence[Recording], runs: Int64) -> None:
        self._launch = trace.launch
        rows, counts = find_replays(trace)
        self._is_own = np.zeros(len(trace.calls) + 1, np.bool_)
        self._is_other = np.zeros(len(trace.calls) + 1, np.bool_)
        self.others = 0
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            recording = _match(recordings, count, calls)
            if recording is None:
                self._is_other[row] = True
                self.others += 1
            else:
                self._is_own[row] = True
                runs[recording.calls] += 1
        if self.others and recordings:
            # A launch that cannot be told apart may be one of them.
            for recording in recordings:
                unlaunched = recording.calls[runs[recording.calls] == 0]
                runs[unlaunched] = ABSENT if _may_be(recording, counts) else 0

    def split(self, device: DeviceEvents) -> tuple[Bool, Bool]:
        """Which device events are of launches of recordings, and which of other graphs."""
        assert len(device) == len(self._launch)
        return self._is_own[self._launch], self._is_other[self._launch]


def _may_be(recording: Recording, counts: Int64) -> bool:
    return any(recording.is_launched_as(int(count)) for count in counts)


def _match(recordings: Sequence[Recording], count: int, calls: ProductCalls) -> Recording | None:
    """The recording of a launched graph with as many events; None where there is none, or different ones fit."""
    exact = [recording for recording in recordings if recording.launches == count]
    fitting = exact or [recording for recording in recordings if recording.is_launched_as(count)]
    contents = {tuple(sorted(calls.product[recording.calls].tolist())) for recording in fitting}
    return fitting[0] if len(contents) == 1 else None


def find_recordings(trace: Trace, calls: ProductCalls) -> Iterator[Recording]:
    """The graphs that threads recorded; one that was begun before the trace has its end alone, and is left out."""
    begins, ends, recorded = (_called(trace, pattern) for pattern in (_BEGINS, _ENDS, _RECORDED))
    of_trace = trace.calls
    for thread in distinct(of_trace.thread[begins]):
        mine = of_trace.thread == thread
        starts_ns, stops_ns = of_trace.start_ns[begins & mine], of_trace.start_ns[ends & mine]
        for start_ns in starts_ns.tolist():
            later = stops_ns[stops_ns > start_ns]
            stop_ns = int(later[0]) if len(later) else int(of_trace.start_ns[-1]) + 1
            inside = mine & recorded & (of_trace.start_ns >= start_ns) & (of_trace.start_ns < stop_ns)
            rows = (calls.thread == thread) & (calls.start_ns >= start_ns) & (calls.start_ns < stop_ns)
            yield Recording(np.flatnonzero(rows), int(inside.sum()))


def find_replays(trace: Trace) -> tuple[Int64, Int64]:
    """The rows of ``trace.calls`` that launched a graph, and how many device events each of them has."""
    launch = trace.launch
    counts = np.bincount(launch[launch != ABSENT], minlength=len(trace.calls))
    rows = np.flatnonzero(_called(trace, _REPLAYS))
    return rows, counts[rows]


def _innermost(calls: ProductCalls, moments_ns: Int64, threads: Int64) -> Int64:
    """For each moment on a thread the innermost call there, or ABSENT."""
    innermost = np.full(len(moments_ns), ABSENT, np.int64)
    for thread in distinct(calls.thread):
        rows, mine = np.flatnonzero(calls.thread == thread), np.flatnonzero(threads == thread)
        if thread == ABSENT or not len(mine):
            continue
        last = np.searchsorted(calls.start_ns[rows], moments_ns[mine] + _ROUNDING_NS, side="right") - 1
        row = np.where(last < 0, ABSENT, rows[np.maximum(last, 0)])
        is_past = (row != ABSENT) & (calls.end_ns[row] + _ROUNDING_NS < moments_ns[mine])
        while is_past.any():
            row[is_past] = calls.parent[row[is_past]]
            is_past = (row != ABSENT) & (calls.end_ns[row] + _ROUNDING_NS < moments_ns[mine])
        innermost[mine] = row
    return innermost


def _sum_by(rows: Int64, values_ns: Int64, length: int) -> Int64:
    totals = np.zeros(length, np.int64)
    np.add.at(totals, rows, values_ns)
    return totals


def _called(trace: Trace, pattern: re.Pattern[str]) -> Bool:
    """Which calls have a name that the pattern finds."""
    return np.array([bool(pattern.search(name)) for name in trace.names], np.bool_)[trace.calls.name]
