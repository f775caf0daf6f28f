"""The goodput of a job, as data and as tables."""

from __future__ import annotations

from typing import Annotated

from perfscope.analyzers.shared.parts import Spent
from perfscope.constants import NS_PER_S, S_PER_HOUR
from perfscope.report import Column as ReportColumn
from perfscope.report import Section, percent_of
from perfscope.result import Column, Doc, Figures, Result, Table, figure


def _seconds(time_ns: int) -> float:
    return time_ns / NS_PER_S


class Start(Figures, frozen=True):
    """One start of the job."""

    name: Annotated[str, Doc("The run or log, and which start of it.")]
    wall_ns: Annotated[int, Doc("How long it lasted.")]
    down_before_ns: Annotated[int, Doc("How long the job was down before it.")]
    steps: Annotated[int, Doc("Its steps.")]
    redone_steps: Annotated[int, Doc("How many of them a later start did again.")]
    redone_ns: Annotated[int, Doc("Their time.")]
    resumed_after_step: Annotated[int | None, Doc("The step after which it went on; null for the first start.")]
    end_recorded: Annotated[bool, Doc("Whether its end was recorded.")]


class Goodput(Result, frozen=True):
    """``results.goodput``: what the time of a job went to, over all of its restarts."""

    wall_ns: Annotated[int, Doc("All of it.")]
    spent_ns: Annotated[dict[Spent, int], Doc("Each part; they add up to ``wall_ns`` exactly.")]
    starts: Annotated[tuple[Start, ...], Doc("Its starts, in order.")]
    gpus: Annotated[int | None, Doc("How many GPUs, or ranks, it used; null where unknown.")]
    overlap_ns: Annotated[
        int, Doc("By how much starts overlap by the clocks of their hosts, which contradict each other then.")
    ]
    resumption_assumed: Annotated[
        bool, Doc("Whether a start is taken to go on from the last checkpoint, because nothing says it.")
    ]

    STARTS = Table(
        "Starts",
        "starts",
        (
            Column("Start", "name"),
            Column("Down before (s)", "down_before_ns", _seconds, 3),
            Column("Time (s)", "wall_ns", _seconds, 3),
            Column("Steps", "steps"),
            Column("Went on after step", "resumed_after_step"),
            Column("Redone steps", "redone_steps"),
            Column("Redone (s)", "redone_ns", _seconds, 3),
        ),
    )

    @figure
    def goodput(self) -> float | None:
        """The share of useful steps; null without any time."""
        return self.spent_ns[Spent.USEFUL] / self.wall_ns if self.wall_ns else None

    @figure
    def lost_gpu_hours(self) -> float | None:
        """GPU hours in which no useful step ran; null where the number of GPUs is unknown."""
        lost_ns = self.wall_ns - self.spent_ns[Spent.USEFUL]
        return None if self.gpus is None else self._gpu_hours(lost_ns)

    def in_a_sentence(self) -> str:
        """The share of useful steps."""
        share = "n/a" if self.goodput is None else f"{self.goodput:.1%}"
        return f"{share} of the job's time went to useful steps"

    def sections(self) -> tuple[Section, ...]:
        """The parts, the largest first, and the starts."""
        columns = [ReportColumn("Part"), ReportColumn("Time (s)", 3), ReportColumn("Share (%)")]
        columns += [] if self.gpus is None else [ReportColumn("GPU hours", 3)]
        parts = sorted(self.spent_ns.items(), key=lambda pair: -pair[1])
        rows = [self._row(part.label, part_ns) for part, part_ns in parts if part_ns]
        rows.append(self._row("all", self.wall_ns))
        section = Section("Goodput", tuple(columns), tuple(rows), self._notes())
        return (section, self.STARTS.section(self.starts))

    def _row(self, label: str, part_ns: int) -> tuple[str | float | None, ...]:
        row = (label, part_ns / NS_PER_S, percent_of(part_ns, self.wall_ns))
        return row if self.gpus is None else (*row, self._gpu_hours(part_ns))

    def _gpu_hours(self, part_ns: int) -> float:
        return part_ns * (self.gpus or 0) / NS_PER_S / S_PER_HOUR

    def _notes(self) -> tuple[str, ...]:
        notes = ["The parts add up to the time of the job exactly, from its first start to its last record."]
        if self.resumption_assumed:
            notes.append(
                "No framework numbers the steps through restarts: each start is taken to go on from the last "
                "checkpoint that was saved before it."
            )
        if not all(start.end_recorded for start in self.starts[:-1]):
            notes.append("Where a start was killed, its time ends at its last record, and the job is down from there.")
        if self.overlap_ns:
            notes.append(
                f"By their clocks starts overlap by {self.overlap_ns / NS_PER_S:.3f} s: either the clocks differ, or "
                "these are not starts of one job."
            )
        return tuple(notes)
