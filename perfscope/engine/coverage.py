"""Which ranks a set of traces covers, and which of them are missing, duplicate or without a device.

A rank that was profiled in several windows has several traces, one after the other; traces of a rank that overlap in
time are duplicates.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from perfscope.tables.columns import Bool
from perfscope.tables.trace import ABSENT, KERNEL_LAUNCH, Trace, join

_MOST_LISTED = 8
#: Above this share of launches without a kernel the profiler has lost device events.
MOST_LOST_FRACTION = 0.01
_CAPTURE_BEGINS = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture")
_CAPTURE_ENDS = re.compile(r"^(?:cuda|cu|hip)StreamEndCapture")


class TraceSummary(Struct, frozen=True, array_like=True):
    """What the coverage of a set of traces is judged by, for one trace.

    Attributes:
        rank, world_size: Absent where nothing states them.
        device_events: How many things ran on devices.
        launches: How many calls launched a kernel on a device; what a capture of a graph recorded was not launched.
        launches_without_event: How many of them have no device event.
        first_ns, last_ns: The time that it covers, on the wall clock; both 0 where it covers none.
        is_of_device: Whether it names GPUs or calls that only a run on a GPU makes.
        is_cut: Whether it is cut off, or damaged otherwise.
        records_graphs: Whether all that it launched was recorded as a graph, which runs nothing.
        without_twin: See ``Trace``.
    """

    path: str
    rank: int | None
    world_size: int | None
    device_events: int
    launches: int
    launches_without_event: int
    first_ns: int
    last_ns: int
    is_of_device: bool = False
    is_cut: bool = False
    records_graphs: bool = False
    without_twin: int = 0

    @property
    def lost_device_events(self) -> bool:
        """Whether it is of a device, and was cut off or damaged before the device's events."""
        return self.is_of_device and self.is_cut and not self.device_events


def summarize(trace: Trace) -> TraceSummary:
    """Summarize one trace."""
    # Copies and fills are not counted: those of nothing, and fills inside a graph, have no event in sound traces.
    called, recorded = trace.called(KERNEL_LAUNCH), _in_capture(trace)
    launches = called & ~recorded
    correlation = trace.calls.correlation
    has_event = (correlation == ABSENT) | (join(correlation, trace.device.correlation) != ABSENT)
    tables = [table for table in (trace.device, trace.annotations, trace.calls, trace.operators) if len(table)]
    return TraceSummary(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        device_events=len(trace.device),
        launches=int(launches.sum()),
        launches_without_event=int((launches & ~has_event).sum()),
        first_ns=min((trace.base_ns + int(table.start_ns[0]) for table in tables), default=0),
        last_ns=max((trace.base_ns + int(table.start_ns[-1]) for table in tables), default=0),
        is_of_device=bool(trace.devices) or bool(launches.any()),
        is_cut=bool(trace.damage),
        records_graphs=bool((called & recorded).any()) and not launches.any(),
        without_twin=trace.without_twin,
    )


def _in_capture(trace: Trace) -> Bool:
    """Which calls a thread made while it recorded a graph: they run when the graph is launched."""
    begins, ends = trace.called(_CAPTURE_BEGINS), trace.called(_CAPTURE_ENDS)
    inside = np.zeros(len(begins), np.bool_)
    if not begins.any() and not ends.any():
        return inside
    calls = trace.calls
    for process, thread in sorted(set(zip(calls.process[begins | ends], calls.thread[begins | ends], strict=True))):
        rows = np.flatnonzero((calls.process == process) & (calls.thread == thread))
        change = begins[rows].astype(np.int64) - ends[rows]
        depth = np.cumsum(change)
        # A capture that began before the trace did.
        inside[rows] = depth - min(0, int(depth.min())) > 0
    return inside


def find_problems(summaries: Sequence[TraceSummary]) -> list[str]:
    """Ranks that are missing, duplicate or without events, as sentences; of a single trace no rank is missing."""
    return [
        *_missing_ranks(summaries),
        *_duplicates(summaries),
        *_without_device_events(summaries),
        *_without_kernels(summaries),
        *_without_rank(summaries),
    ]


def _missing_ranks(summaries: Sequence[TraceSummary]) -> list[str]:
    world_sizes = {summary.world_size for summary in summaries if summary.world_size}
    if len(world_sizes) > 1:
        return [f"the traces are of jobs of different sizes: {_enumerate(sorted(world_sizes))} ranks"]
    if not world_sizes or len(summaries) == 1:
        return []
    expected = world_sizes.pop()
    missing = sorted(set(range(expected)) - {summary.rank for summary in summaries if summary.rank is not None})
    return [f"{len(missing)} of {expected} ranks have no trace: {_enumerate(missing)}"] if missing else []


def _duplicates(summaries: Sequence[TraceSummary]) -> list[str]:
    traces_of = Counter(summary.rank for summary in summaries)
    by_rank: dict[int, list[TraceSummary]] = defaultdict(list)
    for summary in summaries:
        if summary.rank is not None and traces_of[summary.rank] > 1:
            by_rank[summary.rank].append(summary)
    problems = []
    for rank, windows in sorted(by_rank.items()):
        windows.sort(key=lambda summary: (summary.first_ns, summary.path))
        overlapping = [later.path for earlier, later in pairwise(windows) if later.first_ns < earlier.last_ns]
        if overlapping:
            problems.append(
                f"rank {rank} has {len(overlapping) + 1} traces of the same time, all of them shown: "
                f"{_enumerate([windows[0].path, *overlapping])}"
            )
    return problems


def _without_device_events(summaries: Sequence[TraceSummary]) -> list[str]:
    empty = [summary for summary in summaries if not summary.device_events and not summary.records_graphs]
    if not empty or len(empty) == len(summaries):
        return []
    return [f"{len(empty)} of {len(summaries)} traces contain no GPU events, others do: {_enumerate(_names(empty))}"]


def _without_kernels(summaries: Sequence[TraceSummary]) -> list[str]:
    """Launches whose kernels the profiler lost, which is what happens when two profilers want the same GPU."""
    cause = "another profiler (DCGM, Nsight, a second torch.profiler) may hold the GPU's counters"
    problems = []
    cut = [summary for summary in summaries if summary.lost_device_events]
    if cut:
        what = "1 trace of a GPU is" if len(cut) == 1 else f"{len(cut)} traces of a GPU are"
        problems.append(f"{what} cut off or damaged before the GPU events: {_enumerate(_names(cut))}")
    blind = [
        summary
        for summary in summaries
        if summary.launches and summary.launches_without_event and not summary.device_events and not summary.is_cut
    ]
    if blind:
        what = "1 trace contains" if len(blind) == 1 else f"{len(blind)} traces contain"
        problems.append(f"{what} launches but none of their kernels: {_enumerate(_names(blind))}; {cause}")
    for summary in summaries:
        lost = summary.launches_without_event
        if summary.device_events and not summary.is_cut and lost > MOST_LOST_FRACTION * summary.launches:
            (name,) = _names([summary])
            problems.append(f"{name}: {lost} of {summary.launches} launches have no GPU event; {cause}")
    return problems


def _without_rank(summaries: Sequence[TraceSummary]) -> list[str]:
    paths = [summary.path for summary in summaries if summary.rank is None]
    if not paths or len(summaries) == 1:
        return []
    return [f"{len(paths)} traces state no rank, and neither do their file names: {_enumerate(paths)}"]


def _names(summaries: Sequence[TraceSummary]) -> list[str]:
    return [summary.path if summary.rank is None else f"rank {summary.rank}" for summary in summaries]


def _enumerate(labels: list[str] | list[int]) -> str:
    listed = ", ".join(str(label) for label in labels[:_MOST_LISTED])
    return listed if len(labels) <= _MOST_LISTED else f"{listed} and {len(labels) - _MOST_LISTED} more"
