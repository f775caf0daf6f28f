"""Why a device was idle: every gap in which nothing ran on it, split by what it was waiting for.

A gap is split at what the host did in it: a synchronisation that ends 20 ms before the next launch is the cause of its
own time, and not of these 20 ms. ``perfscope.analyzers.shared.idle_gaps`` has the causes and
``perfscope.analyzers.shared.host_activity`` what the host did. The causes add up to the idle time of ``breakdown``
exactly: over the marked steps, whose gaps are those between the events of a step, and over the whole window.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import chain

import numpy as np
from msgspec import Struct

from perfscope.analyzers.breakdown import no_device_events
from perfscope.analyzers.shared.host_activity import PAUSE_NS
from perfscope.analyzers.shared.idle_gaps import CAUSES, LAUNCH_GAP_NS, DeviceGaps, gaps_of_device, gaps_of_steps
from perfscope.analyzers.shared.rank_labels import list_labels, rank_labels
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import NoDevice
from perfscope.report import Column, Json, Section, percent_of
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import ABSENT, Trace, distinct

_LONGEST = 5
_MOST_LABELS = 16
#: Causes that get a column only where there is such time.
_SHOWN_WHERE_PRESENT = frozenset(("host_launch", "graph", "unknown"))


class Gap(Struct, frozen=True, array_like=True):
    """One stretch of idle time.

    Attributes:
        start_ns: When it began, from the first device event on.
        duration_ns: How long it lasted.
        cause: What the largest part of it was waiting for.
        cause_ns: How long that part is.
        before: The device event that ended last before it, its name shortened.
        after: The device event that ended it, likewise.
    """

    start_ns: int
    duration_ns: int
    cause: str
    cause_ns: int
    before: str
    after: str


class RankIdle(Struct, frozen=True, array_like=True):
    """The idle time of one device of one rank.

    Attributes:
        rank: The rank; absent where nothing states it.
        device: Index of its GPU.
        trace: The file.
        window: From the first to the last device event, in nanoseconds.
        causes: Idle time of the window by cause, in the order of CAUSES, in nanoseconds.
        marked: The same of its marked steps; absent where there are none.
        gaps: How many gaps there are.
        unknown_reason: Why the cause of some is unknown; absent where none is.
        longest: The longest of them.
    """

    rank: int | None
    device: int
    trace: str
    window: int
    causes: tuple[int, ...]
    marked: tuple[int, ...] | None
    gaps: int
    unknown_reason: str | None
    longest: tuple[Gap, ...]

    @property
    def row(self) -> tuple[int, ...]:
        """The causes that tables show: of the marked steps, or of the window where there are none."""
        return self.causes if self.marked is None else self.marked

    def data(self) -> dict[str, Json]:
        """One entry of ``results.idle.ranks``."""
        return {
            "rank": self.rank,
            "device": self.device,
            "trace": self.trace,
            "window_us": self.window / NS_PER_US,
            "idle_us": sum(self.causes) / NS_PER_US,
            "causes": _in_microseconds(self.causes),
            "marked": None if self.marked is None else _in_microseconds(self.marked),
            "gaps": self.gaps,
            "unknown_reason": self.unknown_reason,
            "longest": [
                {
                    "start_us": gap.start_ns / NS_PER_US,
                    "duration_us": gap.duration_ns / NS_PER_US,
                    "cause": gap.cause,
                    "cause_us": gap.cause_ns / NS_PER_US,
                    "before": gap.before,
                    "after": gap.after,
                }
                for gap in self.longest
            ],
        }


class Idle(Struct, frozen=True):
    """Every rank's idle time by cause."""

    ranks: Sequence[RankIdle]

    def data(self) -> Json:
        """``results.idle``."""
        return {"ranks": [item.data() for item in self.ranks]}

    def sections(self) -> tuple[Section, ...]:
        """A table of causes, and the longest gaps."""
        shown = [
            index for index, cause in enumerate(CAUSES) if cause not in _SHOWN_WHERE_PRESENT or self._is_present(index)
        ]
        columns = (
            Column("Rank"),
            Column("Idle (ms)", 2),
            *(Column(f"{_title(CAUSES[index])} (%)") for index in shown),
        )
        rows = tuple(
            (label, sum(rank.row) / NS_PER_MS, *(percent_of(rank.row[index], sum(rank.row)) for index in shown))
            for label, rank in zip(self._labels(), self.ranks, strict=True)
        )
        return (Section("Idle time by cause", columns, rows, self._notes()), self._longest())

    def _is_present(self, index: int) -> bool:
        return any(rank.row[index] for rank in self.ranks)

    def _notes(self) -> tuple[str, ...]:
        notes = [
            "Each gap is split at what the host did until it launched the next device event; the parts add up to the "
            "idle time of the marked steps, or of the window where no step is marked. Between operators is a pause of "
            f"less than {PAUSE_NS // NS_PER_MS} ms without operator or call, not shown a longer one (Python, a sleep, "
            f"data); a launch gap is shorter than {LAUNCH_GAP_NS // NS_PER_US} us."
        ]
        reasons: dict[str, list[str]] = {}
        for label, rank in zip(self._labels(), self.ranks, strict=True):
            if rank.unknown_reason is not None and rank.row[CAUSES.index("unknown")]:
                reasons.setdefault(rank.unknown_reason, []).append(label)
        for reason, labels in reasons.items():
            notes.append(f"Unknown, rank {list_labels(labels, _MOST_LABELS)}: {reason}.")
        if self._is_present(CAUSES.index("host_launch")):
            notes.append("Host launch: the host was late, and the trace shows no operators that tell what it did.")
        return tuple(notes)

    def _labels(self) -> list[str]:
        return rank_labels([(rank.rank, rank.device) for rank in self.ranks])

    def _longest(self) -> Section:
        labelled = zip(self._labels(), self.ranks, strict=True)
        gaps = nsmallest(
            _LONGEST,
            ((gap, label, rank.rank or 0) for label, rank in labelled for gap in rank.longest),
            key=lambda entry: (-entry[0].duration_ns, entry[2], entry[0].start_ns),
        )
        rows = tuple(
            (
                label,
                gap.start_ns / NS_PER_MS,
                gap.duration_ns / NS_PER_US,
                _title(gap.cause).lower() if gap.cause != "cuda_call" else _title(gap.cause),
                percent_of(gap.cause_ns, gap.duration_ns),
                gap.before,
                gap.after,
            )
            for gap, label, _ in gaps
        )
        columns = (
            Column("Rank"),
            Column("Start (ms)", 2),
            Column("Duration (us)"),
            Column("Main cause"),
            Column("Of it (%)"),
            Column("Previous event"),
            Column("Next event"),
        )
        return Section("Longest idle gaps", columns, rows)


_KEYS = tuple(f"{cause}_us" for cause in CAUSES)


def _in_microseconds(causes: tuple[int, ...]) -> dict[str, Json]:
    return {key: ns / NS_PER_US for key, ns in zip(_KEYS, causes, strict=True)}


def _title(cause: str) -> str:
    """A cause as people write it."""
    return "CUDA call" if cause == "cuda_call" else cause.replace("_", " ").capitalize()


def measure(trace: Trace) -> tuple[RankIdle, ...]:
    """The idle time of each device of one trace."""
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankIdle, ...]]) -> Idle:
    """Put the devices of all traces in order.

    Raises:
        NoDevice: No trace holds device events.
    """
    ranks = tuple(sorted(chain.from_iterable(partials), key=_order))
    if not ranks:
        raise NoDevice(no_device_events(len(partials)))
    return Idle(ranks)


def _order(rank: RankIdle) -> tuple[bool, int, int, str]:
    return rank.rank is None, rank.rank or 0, rank.device, rank.trace


def _measure_device(trace: Trace, device: int) -> RankIdle:
    is_of_device = trace.device.device == device
    idle = gaps_of_device(trace, device)
    rows = np.flatnonzero(is_of_device)
    start, end = trace.device.start_ns[rows], trace.device.end_ns[rows]
    first_ns = int(start.min())
    step_of = np.where(is_of_device, trace.step, ABSENT)
    steps = [np.flatnonzero(step_of == step) for step in distinct(step_of[step_of != ABSENT])]
    return RankIdle(
        rank=trace.rank,
        device=device,
        trace=trace.path,
        window=int(end.max()) - first_ns,
        causes=tuple(idle.parts.sum(axis=1).tolist()),
        marked=tuple(gaps_of_steps(trace, device, steps).sum(axis=1).tolist()) if steps else None,
        gaps=len(idle.gaps),
        unknown_reason=_why_unknown(trace, idle),
        longest=_longest(trace, idle, rows[np.argsort(end, kind="stable")], first_ns),
    )


def _why_unknown(trace: Trace, idle: DeviceGaps) -> str | None:
    """Why the launches of events that ended a gap are not known; None where all are."""
    unknown = idle.parts[CAUSES.index("unknown")] > 0
    if not unknown.any():
        return None
    if not len(trace.calls):
        return "the trace contains no calls of the device's runtime"
    without = trace.device.correlation[idle.following[unknown]] == ABSENT
    if without.all():
        return "the events behind the gaps state no correlation with a launch"
    return "the events behind the gaps were launched before the trace begins, or their launches are lost"


def _longest(trace: Trace, idle: DeviceGaps, by_end: Int64, first_ns: int) -> tuple[Gap, ...]:
    """The longest gaps; ``by_end`` are the device's events in the order of their ends."""
    gaps, names = idle.gaps, trace.device.name
    length = gaps.end - gaps.start
    longest = np.lexsort((gaps.start, -length))[:_LONGEST]
    before = by_end[np.searchsorted(trace.device.end_ns[by_end], gaps.start[longest], side="right") - 1]
    return tuple(
        Gap(
            start_ns=int(gaps.start[gap]) - first_ns,
            duration_ns=int(length[gap]),
            cause=CAUSES[int(np.argmax(idle.parts[:, gap]))],
            cause_ns=int(idle.parts[:, gap].max()),
            before=short_name(trace.names[names[event]]),
            after=short_name(trace.names[names[idle.following[gap]]]),
        )
        for gap, event in zip(longest, before, strict=True)
    )
