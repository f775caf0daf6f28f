"""Why a device was idle: every gap in which nothing ran on it, told by what it was waiting for.

A gap ends where the next device event begins, so the cause is what that event was waiting for:

- *host launch*: the host had not yet asked for it. Where the host was meanwhile fetching data the time is *data
  loading*; where the gap holds a call that waits for the device it is *synchronisation*, because that let the queue run
  dry.
- *launch latency*: the launch was under way.
- *launch gap*: launched before, and the gap is shorter than 5 us, which is what a device needs between two kernels.
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
from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.analyzers.shared.rank_labels import rank_labels
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
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
        cause: What most of it was waiting for.
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
        rank: The rank; absent where nothing tells.
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
            (label, sum(rank.causes) / NS_PER_MS, *(_share(ns, sum(rank.causes)) for ns in rank.causes))
            for label, rank in zip(self._labels(), self.ranks, strict=True)
        )
        note = (
            "A gap's cause is what the next device event was waiting for; a launch gap is one below "
            f"{LAUNCH_GAP_NS // NS_PER_US} us. The causes add up to the idle time."
        )
        return (Section("Idle time by cause", columns, rows, (note,)), self._longest())

    def _labels(self) -> list[str]:
        return rank_labels([(rank.rank, rank.device) for rank in self.ranks])

    def _longest(self) -> Section:
        labelled = zip(self._labels(), self.ranks, strict=True)
        gaps = sorted(
            ((gap, label, rank.rank or 0) for label, rank in labelled for gap in rank.longest),
            key=lambda found: (-found[0].duration_ns, found[2], found[0].start_ns),
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
            Column("At (ms)", 2),
            Column("Length (us)"),
            Column("Cause"),
            Column("After"),
            Column("Before"),
        )
        return Section("Longest idle times", columns, rows)


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


def measure_before(intervals: Intervals, moments: Int64) -> Int64:
    """How much of a set lies before each moment, in nanoseconds."""
    if not len(intervals):
        return np.zeros(len(moments), np.int64)
    total = np.concatenate([[0], np.cumsum(intervals.end - intervals.start)])
    place = np.searchsorted(intervals.start, moments, side="right")
    inside = np.minimum(moments, intervals.end[np.maximum(place - 1, 0)]) - intervals.start[np.maximum(place - 1, 0)]
    return np.where(place > 0, total[np.maximum(place - 1, 0)] + inside, 0)


def _measure_device(trace: Trace, device: int) -> RankIdle:
    rows = np.flatnonzero(trace.device.device == device)
    start, end = trace.device.start_ns[rows], trace.device.end_ns[rows]
    window = (int(start.min()), int(end.max()))
    gaps = union(start, end).gaps(*window)
    following = _following(trace, rows, start, gaps.end)
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


def _following(trace: Trace, rows: Int64, start: Int64, ends: Int64) -> Int64:
    """The event that ended each gap; of those that begin together, the first that is known to have been launched."""
    first, behind = np.searchsorted(start, ends), np.searchsorted(start, ends, side="right")
    following = rows[first]
    for gap in np.flatnonzero(behind - first > 1).tolist():
        tied = rows[first[gap] : behind[gap]]
        known = tied[trace.launch[tied] != ABSENT]
        if len(known):
            call = trace.launch[known]
            following[gap] = known[np.lexsort((trace.calls.end_ns[call], trace.calls.start_ns[call]))[0]]
    return following


def _by_cause(trace: Trace, gaps: Intervals, following: Int64) -> Int64:
    """Nanoseconds of each gap by cause: one row a cause, in the order of CAUSES, one column a gap."""
    launch = trace.launch[following]
    is_known = launch != ABSENT
    length = gaps.end - gaps.start
    parts = np.zeros((len(CAUSES), len(gaps)), np.int64)
    part = dict(zip(CAUSES, parts, strict=True))
    part["unknown"][~is_known] = length[~is_known]
    if not is_known.any():
        return parts
    launched, returned = trace.calls.start_ns[launch], trace.calls.end_ns[launch]
    is_late = is_known & (launched >= gaps.start)
    waited = np.where(is_late, np.minimum(launched, gaps.end) - gaps.start, 0)
    part["launch_latency"][is_late] = (length - waited)[is_late]
    loading = _loading(trace, gaps.start, gaps.start + waited)
    part["data_loading"][:] = loading
    rest = "synchronisation", "host_launch"
    synchronises = _synchronises(trace, gaps.start, gaps.start + waited, trace.calls.thread[launch])
    for cause, chosen in zip(rest, (is_late & synchronises, is_late & ~synchronises), strict=True):
        part[cause][chosen] = (waited - loading)[chosen]
    early = is_known & ~is_late
    in_graph = early & _named(trace, _LAUNCHES_GRAPH)[trace.calls.name[launch]]
    under_way = early & ~in_graph & (returned > gaps.start)
    short = early & ~in_graph & ~under_way & (length < LAUNCH_GAP_NS)
    kinds = {"graph": in_graph, "launch_latency": under_way, "launch_gap": short}
    kinds["dependency"] = early & ~in_graph & ~under_way & ~short
    for cause, chosen in kinds.items():
        part[cause][chosen] = length[chosen]
    return parts


def _loading(trace: Trace, start: Int64, end: Int64) -> Int64:
    """How long a data loader was fetching in each interval."""
    spans = trace.annotations.take(_named(trace, _LOADS_DATA)[trace.annotations.name])
    loading = union(spans.start_ns, spans.end_ns)
    return measure_before(loading, end) - measure_before(loading, start)


def _synchronises(trace: Trace, start: Int64, end: Int64, thread: Int64) -> Bool:
    """Whether a thread was in a call that waits for the device at any time of each interval."""
    waits = _named(trace, _WAITS_FOR_DEVICE) & ~_named(trace, _NEVER_BLOCKS)
    calls = trace.calls.take(waits[trace.calls.name])
    found = np.zeros(len(start), np.bool_)
    for one in distinct(calls.thread):
        mine = calls.take(calls.thread == one)
        waiting = union(mine.start_ns, mine.end_ns)
        rows = thread == one
        found[rows] = (measure_before(waiting, end[rows]) - measure_before(waiting, start[rows])) > 0
    return found


def _named(trace: Trace, pattern: re.Pattern[str]) -> Bool:
    return np.array([bool(pattern.search(name)) for name in trace.names], np.bool_)


def _share(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
