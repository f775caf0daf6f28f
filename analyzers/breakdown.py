"""What a device did with its time: compute, exposed communication, exposed copies and idle add up to the window.

The window of a step is from the first to the last event that was launched in it. Where steps are marked, a rank's row
is the sum of its marked steps, and shares are of this sum. Otherwise it is the whole window, from the first to the last
device event. ``results.breakdown.ranks`` gives the window in either case. Work in the window outside its marked steps
is separate (``perfscope.measures.marked_steps``). Compute is the time that any compute kernel covers.
Communication and copies are counted the same way. Compute hides communication, and both hide copies; what is not hidden
is *exposed*. The rest of the window is idle. ``overlap_fraction`` is the share of communication time during which
compute runs; without communication there is no such number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain, groupby, pairwise
from operator import add
from typing import Annotated

from msgspec.structs import replace

from perfscope.constants import MANY_RANKS, NS_PER_MS
from perfscope.errors import NoDevice
from perfscope.measures.marked_steps import Outside, common_steps, measure_outside, rows_by_step, step_number
from perfscope.measures.parts import COLUMNS, DeviceStep, Parts, split
from perfscope.measures.rank_labels import in_order, rank_labels
from perfscope.report import MOST_ROWS, Column, Section, long_table
from perfscope.result import Doc, Figures, Result, figure
from perfscope.tables.trace import ABSENT, Trace, distinct
from perfscope.units import format_ranges


class RankParts(Figures, frozen=True, array_like=True):
    """One device of one rank in one trace, or in several that follow each earlier; times are on the wall clock."""

    INLINE = ("total",)
    rank: Annotated[int | None, Doc("The rank; None where nothing states it.")]
    device: Annotated[int, Doc("Index of its GPU.")]
    process: Annotated[int | None, Doc("The profiled process.")]
    trace: Annotated[str, Doc("The file.")]
    first_ns: int
    last_ns: int
    total: Parts
    steps: Annotated[tuple[DeviceStep, ...], Doc("Each marked step.")]
    outside: Annotated[Outside | None, Doc("What ran besides marked steps; None where there are none.")]
    device_events: Annotated[int, Doc("Kernels, copies and fills.")]
    damaged: Annotated[bool, Doc("Whether a part of the trace is lost.")]
    activities: str = ""
    world_size: int | None = None

    @figure
    def marked(self) -> Parts | None:
        """The marked steps added up; None where there are none."""
        return reduce(add, (step.parts for step in self.steps)) if self.steps else None

    @figure
    def between_steps_us(self) -> float | None:
        """Between the windows of marked steps; None where no step is marked."""
        return self.outside.between_us if self.outside else None

    @property
    def row(self) -> Parts:
        """What its shares are of: its marked steps, or its whole window where there are none."""
        return self.marked or self.total

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its marked steps."""
        return tuple(step_number(step.name) for step in self.steps)

    def is_another_run(self, earlier: RankParts) -> bool:
        """Whether another process of the rank made this trace: in another run, or after a restart."""
        return None not in (self.rank, self.process, earlier.process) and self.process != earlier.process

    def joined_to(self, earlier: RankParts) -> RankParts:
        """An earlier window and this one, added up."""
        return replace(
            earlier,
            last_ns=self.last_ns,
            total=earlier.total + self.total,
            steps=earlier.steps + self.steps,
            outside=earlier.outside.plus(self.outside)
            if earlier.outside and self.outside
            else earlier.outside or self.outside,
            device_events=earlier.device_events + self.device_events,
            damaged=earlier.damaged or self.damaged,
        )


class Breakdown(Result, frozen=True):
    """``results.breakdown``: where the device's time went; windows and rows of all devices are added up."""

    ranks: Annotated[Sequence[RankParts], Doc("Each device.")]
    total: Parts
    row: Parts
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]

    @figure
    def all(self) -> Parts:
        """All devices added up."""
        return self.total

    @figure
    def all_marked(self) -> Parts | None:
        """Their marked steps added up; None where a device has none."""
        return self.row if min(len(rank.steps) for rank in self.ranks) else None

    def sections(self) -> tuple[Section, ...]:
        """A table of ranks over their marked steps, one of steps, and one of the windows."""
        labels = _labels(self.ranks)
        columns = (Column("Rank"), Column("Steps"), *COLUMNS)
        rows = (
            (label, format_ranges(rank.numbers) if rank.steps else "whole window", *rank.row.cells())
            for label, rank in zip(labels, self.ranks, strict=True)
        )
        of_all = [("all", None, *self.row.cells())] if len(self.ranks) > 1 else []
        sections = [Section("Device time", columns, tuple(chain(rows, of_all)), self.notes)]
        steps = tuple(
            (label, step.name, step.host / NS_PER_MS, *step.parts.cells())
            for label, rank in zip(labels, self.ranks, strict=True)
            for step in rank.steps
        )
        if steps:
            of_steps = (Column("Rank"), Column("Step"), Column("Host (ms)", 2), *COLUMNS)
            sections.append(long_table("Device time by step", of_steps, steps, most=MOST_ROWS))
        return tuple(sections)


def measure(trace: Trace) -> tuple[RankParts, ...]:
    """One trace's devices; empty where the trace contains no device events."""
    return tuple(_measure_device(trace, device) for device in distinct(trace.device.device))


def analyze(partials: Sequence[tuple[RankParts, ...]]) -> Breakdown:
    """Put the devices of all traces in order; NoDevice where no trace holds device events."""
    ranks = tuple(_join_windows(chain.from_iterable(partials)))
    if not ranks:
        raise NoDevice(no_device_events(len(partials)))
    return Breakdown(
        ranks,
        total=reduce(add, (rank.total for rank in ranks)),
        row=reduce(add, (rank.row for rank in ranks)),
        notes=_notes(ranks),
    )


def no_device_events(traces: int) -> str:
    """Why there is no device time.

    >>> no_device_events(2)
    '2 ranks: the traces contain no GPU events: CPU run, or a profiler conflict'
    """
    ranks = "1 rank: the trace contains" if traces == 1 else f"{traces} ranks: the traces contain"
    return f"{ranks} no GPU events: CPU run, or a profiler conflict"


def _measure_device(trace: Trace, device: int) -> RankParts:
    events = trace.device
    rows = events.device == device
    of_device = events.take(rows)
    steps: list[DeviceStep] = []
    for step, members in rows_by_step(trace, rows).items():
        name, host = trace.names[trace.steps.name[step]], int(trace.steps.duration_ns[step])
        steps.append(DeviceStep(name, split(events.take(members)), host))
    return RankParts(
        rank=trace.rank,
        device=device,
        process=None if trace.process == ABSENT else trace.process,
        trace=trace.path,
        first_ns=trace.base_ns + int(of_device.start_ns.min()),
        last_ns=trace.base_ns + int(of_device.end_ns.max()),
        total=split(of_device),
        steps=tuple(steps),
        outside=measure_outside(trace, rows),
        device_events=len(of_device),
        damaged=bool(trace.damage),
        activities=trace.activities,
        world_size=trace.world_size,
    )


def _join_windows(parts: Iterable[RankParts]) -> Iterator[RankParts]:
    """Add later windows of a process to its earlier ones; traces that overlap in time stay apart, and so do runs."""
    ordered = in_order(parts, "device", "first_ns", "trace")
    for (rank, _), of_device in groupby(ordered, lambda part: (part.rank, part.device)):
        entries: list[RankParts] = []
        for part in of_device:
            for index in reversed(range(len(entries) if rank is not None else 0)):
                if not part.is_another_run(entries[index]) and part.first_ns >= entries[index].last_ns:
                    entries[index] = part.joined_to(entries[index])
                    break
            else:
                entries.append(part)
        yield from entries


def _labels(ranks: Sequence[RankParts]) -> list[str]:
    names = rank_labels([(rank.rank, rank.device) for rank in ranks])
    return [f"{name} (damaged)" if rank.damaged else name for name, rank in zip(names, ranks, strict=True)]


def _notes(ranks: Sequence[RankParts]) -> tuple[str, ...]:
    notes = [
        "Compute, exposed communication, exposed copies and idle add up to the window. Compute hides communication, "
        "and both hide copies. A step's window is from the first to the last event launched in it; a rank's row is the "
        "sum of its marked steps."
    ]
    devices = ((number, {rank.device for rank in group}) for number, group in groupby(ranks, lambda rank: rank.rank))
    several = {number: sorted(indices) for number, indices in devices if len(indices) > 1}
    if len(several) > MANY_RANKS:
        notes.append(f"{len(several):,} ranks drive several devices each.")
        several = {}
    for number, indices in several.items():
        owner = "A rank that is not stated" if number is None else f"Rank {number}"
        notes.append(f"{owner} drives several devices: {indices}.")
    restarted = {
        later.rank or 0
        for earlier, later in pairwise(ranks)
        if (earlier.rank, earlier.device) == (later.rank, later.device) and later.is_another_run(earlier)
    }
    if restarted:
        numbers = ", ".join(map(str, sorted(restarted)))
        notes.append(
            f"Rank {numbers}: traces of several processes (several runs, or restarts); only windows of one process are "
            "added up."
        )
    without_steps = [label for label, rank in zip(_labels(ranks), ranks, strict=True) if not rank.steps]
    if without_steps:
        more = len(without_steps) - MANY_RANKS
        listed = ", ".join(without_steps[:MANY_RANKS]) + (f" and {more:,} more" if more > 0 else "")
        notes.append(
            f"No profiler steps in the trace of rank {listed}: only totals are reported. Its row is the whole "
            "window, in which the number of steps may differ from rank to rank."
        )
    return (*notes, *_step_notes(ranks), *_doubt_silence(ranks))


def _doubt_silence(ranks: Sequence[RankParts]) -> list[str]:
    sizes = {rank.rank: rank.world_size or 0 for rank in ranks if rank.rank is not None}
    communicating = {rank.rank for rank in ranks if rank.total.communication}
    silent = sorted(rank for rank in sizes.keys() - communicating if max(len(sizes), sizes[rank]) > 1)
    if not silent:
        return []
    return [
        f"Doubtful: of a job of several ranks, rank {format_ranges(silent)} shows no communication. Its window may lie "
        "between two collectives, its ranks may be independent, or its library's kernels have names that are not known."
    ]


def _step_notes(ranks: Sequence[RankParts]) -> list[str]:
    notes = []
    marked = {rank.numbers for rank in ranks if rank.steps}
    if len(marked) > 1:
        common = common_steps(marked)
        shared = f"compared over steps {format_ranges(common)}, which all marked" if common else "not compared"
        notes.append(f"Ranks marked different steps: each row is of the rank's own steps; ranks are {shared}.")
    outside = (
        (rank.outside, label)
        for rank, label in zip(ranks, _labels(ranks), strict=True)
        if rank.outside and rank.outside.busy
    )
    largest = max(outside, key=lambda entry: entry[0].busy, default=None)
    if largest is not None:
        most, label = largest
        notes.append(f"Left out of the rows, of rank {label}: {most.sentence()}.")
    return notes
