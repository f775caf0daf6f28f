"""Why a device was idle: every gap in which nothing ran on it, split by what it was waiting for.

A gap is split by what the host did in it. A synchronisation that ends 20 ms before the next launch causes its own time,
and not these 20 ms. ``perfscope.measures.idle_gaps`` has the causes and
``perfscope.measures.host_activity`` what the host did. The causes add up to the idle time of ``breakdown``
exactly, over the marked steps and over the whole window. A marked step's gaps are those between its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import chain
from typing import Annotated

import numpy as np

from perfscope import report
from perfscope.analyzers.breakdown import no_device_events
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import NoDevice
from perfscope.measures.host_activity import PAUSE_NS
from perfscope.measures.idle_gaps import LAUNCH_GAP_NS, DeviceGaps, gaps_of_device, gaps_of_steps
from perfscope.measures.marked_steps import rows_by_step
from perfscope.measures.parts import CAUSES
from perfscope.measures.rank_labels import in_order, rank_labels
from perfscope.report import MOST_SHOWN, Section, percent_of
from perfscope.result import Column, Doc, Figures, InUnit, Result, Table, figure
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import Trace, distinct

#: Causes that get a column only where there is such time.
_SHOWN_WHERE_PRESENT = frozenset(("host_launch", "graph", "unknown"))


class Gap(Figures, frozen=True, array_like=True):
    """A long stretch of idle time."""

    start_ns: int
    duration_ns: int
    cause: Annotated[str, Doc("What the largest part of it waited for.")]
    cause_ns: int
    before: Annotated[str, Doc("The device event that ended last before it.")]
    after: Annotated[str, Doc("The device event that ended it.")]
    start_us = InUnit("start_ns", NS_PER_US, "When it began, from the first device event on.")
    duration_us = InUnit("duration_ns", NS_PER_US, "How long it lasted.")
    cause_us = InUnit("cause_ns", NS_PER_US, "How long that part is.")


class IdleCauses(Figures, frozen=True):
    """Idle time by what the device waited for; the parts add up to the idle time exactly."""

    data_loading_us: Annotated[float, Doc("A data loader was fetching, on any thread.")]
    synchronisation_us: Annotated[float, Doc("The host was in a call that waits for the device.")]
    cuda_call_us: Annotated[float, Doc("It was in another call of CUDA: a launch, an allocation, a module.")]
    operator_us: Annotated[float, Doc("It was inside an operator of the framework.")]
    between_operators_us: Annotated[float, Doc("None of these for less than a millisecond: Python, for example.")]
    not_shown_us: Annotated[float, Doc("None of these for a millisecond or more: Python, a sleep, another process.")]
    host_launch_us: Annotated[float, Doc("The last three together, where the trace has no operators.")]
    launch_latency_us: Annotated[float, Doc("The launch of the next event was under way.")]
    launch_gap_us: Annotated[float, Doc("The next event was launched before a gap that is shorter than 5 us.")]
    dependency_us: Annotated[float, Doc("It was launched before, but waited for an event, a stream or another device.")]
    graph_us: Annotated[float, Doc("Inside a launched CUDA graph.")]
    unknown_us: Annotated[float, Doc("The trace does not contain its launch.")]


class RankIdle(Figures, frozen=True, array_like=True):
    """The idle time of one device, in nanoseconds: of the window and of its marked steps, in the order of CAUSES."""

    rank: Annotated[int | None, Doc("The rank.")]
    device: Annotated[int, Doc("Index of its GPU.")]
    trace: Annotated[str, Doc("The file.")]
    window: int
    by_cause: tuple[int, ...]
    marked_by_cause: tuple[int, ...] | None
    gaps: Annotated[int, Doc("How many gaps there are.")]
    longest: Annotated[tuple[Gap, ...], Doc("The longest of them.")]
    window_us = InUnit("window", NS_PER_US, "From the first to the last device event.")

    @property
    def row(self) -> tuple[int, ...]:
        """The causes that tables show: of the marked steps, or of the window where there are none."""
        return self.by_cause if self.marked_by_cause is None else self.marked_by_cause

    @figure
    def idle_us(self) -> float:
        """Idle time in it."""
        return sum(self.by_cause) / NS_PER_US

    @figure
    def causes(self) -> IdleCauses:
        """The same by cause."""
        return IdleCauses(*(ns / NS_PER_US for ns in self.by_cause))

    @figure
    def marked(self) -> IdleCauses | None:
        """That of the marked steps."""
        return IdleCauses(*(ns / NS_PER_US for ns in self.marked_by_cause)) if self.marked_by_cause else None


class Idle(Result, frozen=True):
    """``results.idle``: why devices were idle."""

    ranks: Annotated[Sequence[RankIdle], Doc("Each device.")]

    TABLES = (
        Table(
            "Longest idle gaps",
            "",
            (
                Column("Rank", lambda row: row[1]),
                Column("Start (ms)", lambda row: row[0].start_ns / NS_PER_MS, None, 2),
                Column("Duration (us)", lambda row: row[0].duration_us),
                Column("Main cause", lambda row: _title(row[0].cause, capital=False)),
                Column("Of it (%)", lambda row: percent_of(row[0].cause_ns, row[0].duration_ns)),
                Column("Previous event", lambda row: row[0].before),
                Column("Next event", lambda row: row[0].after),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """A table of causes, and the longest gaps."""
        shown = [
            index for index, cause in enumerate(CAUSES) if cause not in _SHOWN_WHERE_PRESENT or self._is_present(index)
        ]
        columns = (
            report.Column("Rank"),
            report.Column("Idle (ms)", 2),
            *(report.Column(f"{_title(CAUSES[index])} (%)") for index in shown),
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
        if self._is_present(CAUSES.index("unknown")):
            notes.append("Unknown: the trace does not contain the launch of the next event.")
        if self._is_present(CAUSES.index("host_launch")):
            notes.append("Host launch: the host was late, and the trace has no operators that show the cause.")
        return tuple(notes)

    def _labels(self) -> list[str]:
        return rank_labels([(rank.rank, rank.device) for rank in self.ranks])

    def _longest(self) -> Section:
        labelled = zip(self._labels(), self.ranks, strict=True)
        gaps = nsmallest(
            MOST_SHOWN,
            ((gap, label, rank.rank or 0) for label, rank in labelled for gap in rank.longest),
            key=lambda entry: (-entry[0].duration_ns, entry[2], entry[0].start_ns),
        )
        return self.TABLES[0].section(gaps)


def _title(cause: str, *, capital: bool = True) -> str:
    words = "CUDA call" if cause == "cuda_call" else cause.replace("_", " ")
    return f"{words[0].upper()}{words[1:]}" if capital else words


def measure(trace: Trace) -> tuple[RankIdle, ...]:
    """The idle time of each device of one trace."""
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankIdle, ...]]) -> Idle:
    """Put the devices of all traces in order; NoDevice where no trace holds device events."""
    ranks = in_order(chain.from_iterable(partials), "device", "trace")
    if not ranks:
        raise NoDevice(no_device_events(len(partials)))
    return Idle(ranks)


def _measure_device(trace: Trace, device: int) -> RankIdle:
    is_of_device = trace.device.device == device
    idle = gaps_of_device(trace, device)
    rows = np.flatnonzero(is_of_device)
    start, end = trace.device.start_ns[rows], trace.device.end_ns[rows]
    first_ns = int(start.min())
    steps = list(rows_by_step(trace, is_of_device).values())
    return RankIdle(
        rank=trace.rank,
        device=device,
        trace=trace.path,
        window=int(end.max()) - first_ns,
        by_cause=tuple(idle.parts.sum(axis=1).tolist()),
        marked_by_cause=tuple(gaps_of_steps(trace, device, steps).sum(axis=1).tolist()) if steps else None,
        gaps=len(idle.gaps),
        longest=_longest(trace, idle, rows[np.argsort(end, kind="stable")], first_ns),
    )


def _longest(trace: Trace, idle: DeviceGaps, by_end: Int64, first_ns: int) -> tuple[Gap, ...]:
    """The longest gaps; ``by_end`` are the device's events in the order of their ends."""
    gaps, names = idle.gaps, trace.device.name
    length = gaps.end - gaps.start
    longest = np.lexsort((gaps.start, -length))[:MOST_SHOWN]
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
