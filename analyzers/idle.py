"""Why a device was idle: every gap in which nothing ran on it, by what it was waiting for.

A gap ends where the next device event begins, so the cause is what that event was waiting for:

- *host launch*: the host had not launched it yet. Where the host was meanwhile fetching data, the time is *data
  loading*; where the launching thread was in a call that waits for the device, it is *synchronisation*, because that
  call let the queue run dry.
- *launch latency*: the launch was under way.
- *launch gap*: launched before, and the gap is shorter than 5 us, the time that a device needs between two kernels.
- *dependency*: launched before, but it waited for an event, another stream or another device.
- *graph*: a gap inside a launched CUDA graph.
- *unknown*: the trace does not hold its launch.

The causes add up to the idle time of ``breakdown`` exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.breakdown import no_device_events
from perfscope.analyzers.shared.intervals import Intervals, covered, union
from perfscope.analyzers.shared.rank_labels import rank_labels
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section, percent_of
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import ABSENT, Trace, distinct

LAUNCH_GAP_NS = 5000
_LONGEST = 5
CAUSES = (
    "host_launch",
    "data_loading",
    "synchronisation",
    "launch_latency",
    "launch_gap",
    "dependency",
    "graph",
    "unknown",
)
_WAITS_FOR_DEVICE = re.compile(r"^(?:cuda|cu|hip|ur)\w*(?:Synchronize|Wait)(?:_v\d+)?$|^(?:cuda|hip)Memcpy(?!\w*Async)")
_NEVER_BLOCKS = re.compile(r"StreamWait")
_LOADS_DATA = re.compile(r"DataLoader", re.IGNORECASE)
_LAUNCHES_GRAPH = re.compile(r"GraphLaunch")


@dataclass(frozen=True, slots=True)
class Gap:
    """One stretch of idle time.

    Attributes:
        start_ns: When it began, from the first device event on.
        duration_ns: How long it lasted.
        cause: What the largest part of it was waiting for.
        before: The device event that ended last before it, its name shortened.
        after: The device event that ended it, likewise.
    """

    start_ns: int
    duration_ns: int
    cause: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RankIdle:
    """The idle time of one device of one rank.

    Attributes:
        rank: The rank; absent where nothing states it.
        device: Index of its GPU.
        trace: The file.
        window: From the first to the last device event, in nanoseconds.
        causes: Idle time by cause, in the order of CAUSES, in nanoseconds.
        gaps: How many gaps there are.
        longest: The longest of them.
    """

    rank: int | None
    device: int
    trace: str
    window: int
    causes: tuple[int, ...]
    gaps: int
    longest: tuple[Gap, ...]

    def data(self) -> dict[str, Json]:
        """One entry of ``results.idle.ranks``."""
        return {
            "rank": self.rank,
            "device": self.device,
            "trace": self.trace,
            "window_us": self.window / NS_PER_US,
            "idle_us": sum(self.causes) / NS_PER_US,
            "causes": {f"{cause}_us": ns / NS_PER_US for cause, ns in zip(CAUSES, self.causes, strict=True)},
            "gaps": self.gaps,
            "longest": [
                {
                    "start_us": gap.start_ns / NS_PER_US,
                    "duration_us": gap.duration_ns / NS_PER_US,
                    "cause": gap.cause,
                    "before": gap.before,
                    "after": gap.after,
                }
                for gap in self.longest
            ],
        }


@dataclass(frozen=True, slots=True)
class Idle:
    """Every rank's idle time by cause."""

    ranks: tuple[RankIdle, ...]

    def data(self) -> Json:
        """``results.idle``."""
        return {"ranks": [rank.data() for rank in self.ranks]}

    def sections(self) -> tuple[Section, ...]:
        """A table of causes, and the longest gaps."""
        columns = (
            Column("Rank"),
            Column("Idle (ms)", 2),
            *(Column(f"{cause.replace('_', ' ').capitalize()} (%)") for cause in CAUSES),
        )
        rows = tuple(
            (label, sum(rank.causes) / NS_PER_MS, *(percent_of(ns, sum(rank.causes)) for ns in rank.causes))
            for label, rank in zip(self._labels(), self.ranks, strict=True)
        )
        note = (
            "A gap's cause is what the next device event was waiting for; a launch gap is shorter than "
            f"{LAUNCH_GAP_NS // NS_PER_US} us. The causes add up to the idle time."
        )
        return (Section("Idle time by cause", columns, rows, (note,)), self._longest())

    def _labels(self) -> list[str]:
        return rank_labels([(rank.rank, rank.device) for rank in self.ranks])

    def _longest(self) -> Section:
        labelled = zip(self._labels(), self.ranks, strict=True)
        gaps = sorted(
            ((gap, label, rank.rank or 0) for label, rank in labelled for gap in rank.longest),
            key=lambda entry: (-entry[0].duration_ns, entry[2], entry[0].start_ns),
        )
        rows = tuple(
            (
                label,
                gap.start_ns / NS_PER_MS,
                gap.duration_ns / NS_PER_US,
                gap.cause.replace("_", " "),
                gap.before,
                gap.after,
            )
            for gap, label, _ in gaps[:_LONGEST]
        )
        columns = (
            Column("Rank"),
            Column("Start (ms)", 2),
            Column("Duration (us)"),
            Column("Cause"),
            Column("Previous event"),
            Column("Next event"),
        )
        return Section("Longest idle gaps", columns, rows)


def measure(trace: Trace) -> tuple[RankIdle, ...]:
    """The idle time of each device of one trace."""
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankIdle, ...]]) -> Idle:
    """Put the devices of all traces in order.

    Raises:
        MissingInput: No trace holds device events.
    """
    ranks = [rank for partial in partials for rank in partial]
    if not ranks:
        raise MissingInput(no_device_events(len(partials)))
    return Idle(tuple(sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.device, rank.trace))))


def _measure_device(trace: Trace, device: int) -> RankIdle:
    rows = np.flatnonzero(trace.device.device == device)
    start, end = trace.device.start_ns[rows], trace.device.end_ns[rows]
    window = (int(start.min()), int(end.max()))
    gaps = union(start, end).gaps(*window)
    following = _find_following(trace, rows, start, gaps.end)
    parts = _by_cause(trace, gaps, following)
    length = gaps.end - gaps.start
    longest = np.lexsort((gaps.start, -length))[:_LONGEST]
    last_before = rows[np.argsort(end, kind="stable")][
        np.searchsorted(np.sort(end), gaps.start[longest], side="right") - 1
    ]
    names = trace.device.name
    return RankIdle(
        rank=trace.rank,
        device=device,
        trace=trace.path,
        window=window[1] - window[0],
        causes=tuple(int(part.sum()) for part in parts),
        gaps=len(gaps),
        longest=tuple(
            Gap(
                start_ns=int(gaps.start[gap]) - window[0],
                duration_ns=int(length[gap]),
                cause=CAUSES[int(np.argmax(parts[:, gap]))],
                before=short_name(trace.names[names[before]]),
                after=short_name(trace.names[names[following[gap]]]),
            )
            for gap, before in zip(longest, last_before, strict=True)
        ),
    )


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


def _by_cause(trace: Trace, gaps: Intervals, following: Int64) -> Int64:
    """Nanoseconds of each gap by cause: one row a cause, in the order of CAUSES, one column a gap."""
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
    waited = np.where(is_late, np.minimum(launched, gaps.end) - gaps.start, 0)
    part["launch_latency"][is_late] = (length - waited)[is_late]
    loading = _loading(trace, gaps.start, gaps.start + waited)
    part["data_loading"][:] = loading
    rest = "synchronisation", "host_launch"
    synchronises = _synchronises(trace, gaps.start, gaps.start + waited, trace.calls.thread[launch])
    for cause, chosen in zip(rest, (is_late & synchronises, is_late & ~synchronises), strict=True):
        part[cause][chosen] = (waited - loading)[chosen]
    early = has_launch & ~is_late
    in_graph = early & _names_with(trace, _LAUNCHES_GRAPH)[trace.calls.name[launch]]
    under_way = early & ~in_graph & (returned > gaps.start)
    short = early & ~in_graph & ~under_way & (length < LAUNCH_GAP_NS)
    kinds = {"graph": in_graph, "launch_latency": under_way, "launch_gap": short}
    kinds["dependency"] = early & ~in_graph & ~under_way & ~short
    for cause, chosen in kinds.items():
        part[cause][chosen] = length[chosen]
    return parts


def _loading(trace: Trace, start: Int64, end: Int64) -> Int64:
    """How long a data loader was fetching in each interval, in nanoseconds."""
    loading = covered(trace.annotations, _names_with(trace, _LOADS_DATA)[trace.annotations.name])
    return loading.measure_before(end) - loading.measure_before(start)


def _synchronises(trace: Trace, start: Int64, end: Int64, thread: Int64) -> Bool:
    """Whether a thread was in a call that waits for the device at any time of each interval."""
    waits = _names_with(trace, _WAITS_FOR_DEVICE) & ~_names_with(trace, _NEVER_BLOCKS)
    calls = trace.calls.take(waits[trace.calls.name])
    synchronises = np.zeros(len(start), np.bool_)
    for waiting_thread in distinct(calls.thread):
        waiting = covered(calls, calls.thread == waiting_thread)
        rows = thread == waiting_thread
        synchronises[rows] = (waiting.measure_before(end[rows]) - waiting.measure_before(start[rows])) > 0
    return synchronises


def _names_with(trace: Trace, pattern: re.Pattern[str]) -> Bool:
    """Which of the trace's names match a pattern."""
    return np.array([bool(pattern.search(name)) for name in trace.names], np.bool_)
