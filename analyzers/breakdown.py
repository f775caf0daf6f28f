"""What a device did with its time: compute, exposed communication, exposed copies and idle add up to the window.

The window of a rank is from its first to its last device event; the window of a step is from the first to the last
event that was launched in it. Compute is the time that any compute kernel covers. Communication and copies are counted
the same way. Compute hides communication, and both hide copies; what is not hidden is *exposed*. The rest of the window
is idle. ``overlap_fraction`` is the share of communication time during which compute runs; without communication there
is no such number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.rank_labels import rank_labels
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section, first_rows, percent, percent_of
from perfscope.tables.trace import ABSENT, DeviceEvents, Trace, Work, distinct

_MOST_STEP_ROWS = 64


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a window went, in nanoseconds.

    ``compute + exposed_communication + exposed_copy + idle`` is the window.
    """

    window: int
    compute: int
    communication: int
    copy: int
    exposed_communication: int
    exposed_copy: int
    idle: int

    def __add__(self, addend: Parts) -> Parts:
        return Parts(*(getattr(self, field.name) + getattr(addend, field.name) for field in fields(self)))

    @property
    def overlap_fraction(self) -> float | None:
        """The share of communication time during which compute runs; absent without communication."""
        return (self.communication - self.exposed_communication) / self.communication if self.communication else None

    def data(self) -> dict[str, Json]:
        """The parts as microseconds."""
        times: dict[str, Json] = {f"{field.name}_us": getattr(self, field.name) / NS_PER_US for field in fields(self)}
        return {**times, "overlap_fraction": self.overlap_fraction}

    def cells(self) -> tuple[Cell, ...]:
        """The parts as a row of a table."""
        parts = (self.compute, self.exposed_communication, self.exposed_copy, self.idle)
        return (
            self.window / NS_PER_MS,
            *(percent_of(part, self.window) for part in parts),
            self.communication / NS_PER_MS,
            percent(self.overlap_fraction),
        )


@dataclass(frozen=True, slots=True)
class StepParts:
    """Where one step's window went.

    Attributes:
        name: The step.
        parts: Its time on the device.
        host: How long the host was in it, in nanoseconds.
    """

    name: str
    parts: Parts
    host: int

    def data(self) -> dict[str, Json]:
        """One entry of a rank's ``steps``."""
        return {"name": self.name, "host_us": self.host / NS_PER_US, **self.parts.data()}


@dataclass(frozen=True, slots=True)
class RankParts:
    """One device of one rank in one trace, or in several that follow each earlier.

    Attributes:
        rank: The rank; absent where nothing states it.
        device: Index of its GPU.
        process: The id of the profiled process; absent where the trace does not state it.
        trace: The file.
        first_ns, last_ns: When its first device event began and its last one ended, on the wall clock.
        total: Its whole window.
        steps: Its steps, in order.
        between_steps: Time between the windows of consecutive steps, in nanoseconds.
        events: Device events.
        is_damaged: A part of the trace is lost, and the numbers rest on the rest.
    """

    rank: int | None
    device: int
    process: int | None
    trace: str
    first_ns: int
    last_ns: int
    total: Parts
    steps: tuple[StepParts, ...]
    between_steps: int
    events: int
    is_damaged: bool

    def follows(self, earlier: RankParts) -> bool:
        """Whether this is a later window of the same process and device."""
        is_same_device = self.rank is not None and (self.rank, self.device) == (earlier.rank, earlier.device)
        return is_same_device and not self.is_another_run(earlier) and self.first_ns >= earlier.last_ns

    def is_another_run(self, earlier: RankParts) -> bool:
        """Whether another process made this trace: in another run, or after a restart."""
        return None not in (self.process, earlier.process) and self.process != earlier.process

    def joined_to(self, earlier: RankParts) -> RankParts:
        """An earlier window and this one, added up."""
        return RankParts(
            rank=self.rank,
            device=self.device,
            process=earlier.process,
            trace=earlier.trace,
            first_ns=earlier.first_ns,
            last_ns=self.last_ns,
            total=earlier.total + self.total,
            steps=earlier.steps + self.steps,
            between_steps=earlier.between_steps + self.between_steps,
            events=earlier.events + self.events,
            is_damaged=earlier.is_damaged or self.is_damaged,
        )

    def data(self) -> dict[str, Json]:
        """One entry of ``results.breakdown.ranks``."""
        return {
            "rank": self.rank,
            "device": self.device,
            "process": self.process,
            "trace": self.trace,
            **self.total.data(),
            "between_steps_us": self.between_steps / NS_PER_US if self.steps else None,
            "device_events": self.events,
            "damaged": self.is_damaged,
            "steps": [step.data() for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Every rank's device time.

    Attributes:
        ranks: One entry a rank and device, by rank.
        total: All of them added up.
        notes: What a reader must know.
    """

    ranks: tuple[RankParts, ...]
    total: Parts
    notes: tuple[str, ...]

    def data(self) -> Json:
        """``results.breakdown``."""
        return {"ranks": [rank.data() for rank in self.ranks], "all": self.total.data(), "notes": list(self.notes)}

    def sections(self) -> tuple[Section, ...]:
        """A table of ranks and one of steps."""
        labels = _labels(self.ranks)
        rows = [(label, *rank.total.cells()) for label, rank in zip(labels, self.ranks, strict=True)]
        if len(self.ranks) > 1:
            rows.append(("all", *self.total.cells()))
        sections = [Section("Device time", (Column("Rank"), *_COLUMNS), tuple(rows), self.notes)]
        steps = [
            (label, step.name, step.host / NS_PER_MS, *step.parts.cells())
            for label, rank in zip(labels, self.ranks, strict=True)
            for step in rank.steps
        ]
        if steps:
            columns = (Column("Rank"), Column("Step"), Column("Host (ms)", 2), *_COLUMNS)
            sections.append(Section("Device time by step", columns, *first_rows(steps, _MOST_STEP_ROWS)))
        return tuple(sections)


_COLUMNS = (
    Column("Window (ms)", 2),
    Column("Compute (%)"),
    Column("Exposed comm. (%)"),
    Column("Exposed copy (%)"),
    Column("Idle (%)"),
    Column("Comm. (ms)", 2),
    Column("Hidden comm. (%)"),
)


def measure(trace: Trace) -> tuple[RankParts, ...]:
    """One trace's devices; empty where the trace contains no device events."""
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankParts, ...]]) -> Breakdown:
    """Put the devices of all traces in order.

    Raises:
        MissingInput: No trace holds device events.
    """
    ranks = _join_windows(rank for partial in partials for rank in partial)
    if not ranks:
        raise MissingInput(no_device_events(len(partials)))
    total = ranks[0].total
    for rank in ranks[1:]:
        total += rank.total
    return Breakdown(ranks, total, _notes(ranks))


def no_device_events(traces: int) -> str:
    """Why there is no device time.

    >>> no_device_events(2)
    '2 ranks: the traces contain no GPU events: CPU run, or a profiler conflict'
    """
    ranks = "1 rank: the trace contains" if traces == 1 else f"{traces} ranks: the traces contain"
    return f"{ranks} no GPU events: CPU run, or a profiler conflict"


def split(events: DeviceEvents) -> Parts:
    """Where the window of some device events went; their window is from the first start to the last end."""
    compute, communication, copies = (
        covered(events, events.is_work(*kinds))
        for kinds in ((Work.COMPUTE, Work.FUSED), (Work.COMMUNICATION, Work.FUSED), (Work.COPY,))
    )
    window = int(events.end_ns.max() - events.start_ns.min())
    exposed_communication = (communication - compute).measure
    busy = compute | communication
    exposed_copy = (copies - busy).measure
    return Parts(
        window=window,
        compute=compute.measure,
        communication=communication.measure,
        copy=copies.measure,
        exposed_communication=exposed_communication,
        exposed_copy=exposed_copy,
        idle=window - (busy | copies).measure,
    )


def _measure_device(trace: Trace, device: int) -> RankParts:
    events = trace.device
    rows = events.device == device
    of_device = events.take(rows)
    steps: list[StepParts] = []
    windows: list[tuple[int, int]] = []
    step_of = np.where(rows, trace.step, ABSENT)
    for step in distinct(step_of[step_of != ABSENT]):
        members = events.take(step_of == step)
        name, host = trace.names[trace.steps.name[step]], int(trace.steps.duration_ns[step])
        steps.append(StepParts(name, split(members), host))
        windows.append((int(members.start_ns.min()), int(members.end_ns.max())))
    return RankParts(
        rank=trace.rank,
        device=device,
        process=None if trace.process == ABSENT else trace.process,
        trace=trace.path,
        first_ns=trace.base_ns + int(of_device.start_ns.min()),
        last_ns=trace.base_ns + int(of_device.end_ns.max()),
        total=split(of_device),
        steps=tuple(steps),
        between_steps=sum(max(0, after[0] - before[1]) for before, after in pairwise(windows)),
        events=len(of_device),
        is_damaged=bool(trace.damage),
    )


def _join_windows(parts: Iterable[RankParts]) -> tuple[RankParts, ...]:
    """Add later windows of a process to its earlier ones; traces that overlap in time stay apart, and so do runs."""
    entries: list[RankParts] = []
    first_of_device = 0
    for part in sorted(parts, key=_order):
        if entries and (part.rank, part.device) != (entries[-1].rank, entries[-1].device):
            first_of_device = len(entries)
        earlier = (index for index in range(len(entries) - 1, first_of_device - 1, -1) if part.follows(entries[index]))
        index = next(earlier, None)
        if index is None:
            entries.append(part)
        else:
            entries[index] = part.joined_to(entries[index])
    return tuple(entries)


def _order(part: RankParts) -> tuple[bool, int, int, int, str]:
    return part.rank is None, part.rank or 0, part.device, part.first_ns, part.trace


def _labels(ranks: Sequence[RankParts]) -> list[str]:
    names = rank_labels([(rank.rank, rank.device) for rank in ranks])
    return [f"{name} (damaged)" if rank.is_damaged else name for name, rank in zip(names, ranks, strict=True)]


def _notes(ranks: Sequence[RankParts]) -> tuple[str, ...]:
    notes = [
        "Compute, exposed communication, exposed copies and idle add up to the window. Compute hides communication, "
        "and both hide copies. A step's window is from the first to the last event launched in it."
    ]
    devices: dict[int | None, set[int]] = {}
    for rank in ranks:
        devices.setdefault(rank.rank, set()).add(rank.device)
    for number, indices in devices.items():
        if len(indices) > 1:
            notes.append(f"Rank {number} drives several devices: {sorted(indices)}.")
    restarted = {later.rank for earlier, later in pairwise(ranks) if _are_two_runs(earlier, later)}
    if restarted:
        numbers = ", ".join(str(number) for number in sorted(number for number in restarted if number is not None))
        notes.append(
            f"Rank {numbers}: traces of several processes (several runs, or restarts); only windows of one process are "
            "added up."
        )
    without_steps = [label for label, rank in zip(_labels(ranks), ranks, strict=True) if not rank.steps]
    if without_steps:
        notes.append(f"No profiler steps in the trace of rank {', '.join(without_steps)}: only totals are reported.")
    return tuple(notes)


def _are_two_runs(earlier: RankParts, later: RankParts) -> bool:
    is_same_device = earlier.rank is not None and (earlier.rank, earlier.device) == (later.rank, later.device)
    return is_same_device and later.is_another_run(earlier)
