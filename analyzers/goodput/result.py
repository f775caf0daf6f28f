"""The goodput of a job, as data and as tables."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.shared.parts import Spent
from perfscope.constants import NS_PER_S
from perfscope.report import Column, Json, Section, percent_of

_S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the job.

    Attributes:
        name: The run or log, and which start of it.
        wall_ns: How long it lasted.
        down_ns: How long the job was down before it.
        steps: Its steps.
        redone: How many of them a later start did again.
        resumed_at: The step after which it went on; absent for the first one.
        redone_ns: Time of the steps that were redone.
        ends_by_itself: Whether its end was recorded.
    """

    name: str
    wall_ns: int
    down_ns: int
    steps: int
    redone: int
    resumed_at: int | None
    redone_ns: int
    ends_by_itself: bool


@dataclass(frozen=True, slots=True)
class Goodput:
    """What the time of a job went to.

    Attributes:
        wall_ns: All of it.
        spent_ns: Each part; they add up to ``wall_ns`` exactly.
        starts: Its starts, in order.
        gpus: How many GPUs, or ranks, it used; absent where unknown.
        price: What a GPU costs in an hour; absent where nobody said.
        overlap_ns: By how much starts overlap by the clocks of their hosts: these contradict each other.
        is_resumption_assumed: Whether a start is taken to go on from the last checkpoint, because nothing says it.
    """

    wall_ns: int
    spent_ns: dict[Spent, int]
    starts: tuple[Start, ...]
    gpus: int | None
    price: float | None
    overlap_ns: int
    is_resumption_assumed: bool

    @property
    def goodput(self) -> float | None:
        """The share of useful steps; absent without any time."""
        return self.spent_ns[Spent.USEFUL] / self.wall_ns if self.wall_ns else None

    @property
    def lost_gpu_hours(self) -> float | None:
        """GPU hours in which no useful step ran; absent where the number of GPUs is unknown."""
        lost_ns = self.wall_ns - self.spent_ns[Spent.USEFUL]
        return None if self.gpus is None else self._gpu_hours(lost_ns)

    def data(self) -> Json:
        """The answer of ``perfscope goodput``."""
        lost = self.lost_gpu_hours
        return {
            "wall_ns": self.wall_ns,
            "goodput": self.goodput,
            "spent_ns": {str(part): part_ns for part, part_ns in self.spent_ns.items()},
            "gpus": self.gpus,
            "lost_gpu_hours": lost,
            "lost_money": None if lost is None or self.price is None else lost * self.price,
            "overlap_ns": self.overlap_ns,
            "resumption_assumed": self.is_resumption_assumed,
            "starts": [
                {
                    "name": start.name,
                    "wall_ns": start.wall_ns,
                    "down_before_ns": start.down_ns,
                    "steps": start.steps,
                    "redone_steps": start.redone,
                    "redone_ns": start.redone_ns,
                    "resumed_after_step": start.resumed_at,
                    "end_recorded": start.ends_by_itself,
                }
                for start in self.starts
            ],
        }

    def headline(self) -> str:
        """The answer in one sentence."""
        share = "n/a" if self.goodput is None else f"{self.goodput:.1%}"
        return f"{share} of the job's time went to useful steps"

    def sections(self) -> tuple[Section, ...]:
        """The parts, and the starts."""
        columns = [Column("Part"), Column("Time (s)", 3), Column("Share (%)")]
        columns += [] if self.gpus is None else [Column("GPU hours", 3)]
        columns += [] if self.gpus is None or self.price is None else [Column("Money", 2)]
        parts = sorted(self.spent_ns.items(), key=lambda pair: -pair[1])
        rows = [self._row(part.label, part_ns) for part, part_ns in parts if part_ns]
        rows.append(self._row("all", self.wall_ns))
        return (Section("Goodput", tuple(columns), tuple(rows), self._notes()), self._starts_section())

    def _row(self, label: str, part_ns: int) -> tuple[str | float | None, ...]:
        row: list[str | float | None] = [label, part_ns / NS_PER_S, percent_of(part_ns, self.wall_ns)]
        if self.gpus is not None:
            row.append(self._gpu_hours(part_ns))
            row += [] if self.price is None else [self._gpu_hours(part_ns) * self.price]
        return tuple(row)

    def _gpu_hours(self, part_ns: int) -> float:
        return part_ns * (self.gpus or 0) / NS_PER_S / _S_PER_HOUR

    def _notes(self) -> tuple[str, ...]:
        notes = ["The parts add up to the time of the job exactly, from its first start to its last record."]
        if self.is_resumption_assumed:
            notes.append(
                "No framework numbers the steps through restarts: each start is taken to go on from the last "
                "checkpoint that was saved before it. `--resumed-at` says it otherwise."
            )
        if not all(start.ends_by_itself for start in self.starts[:-1]):
            notes.append("Where a start was killed, its time ends at its last record, and the job is down from there.")
        if self.overlap_ns:
            notes.append(
                f"By their clocks starts overlap by {self.overlap_ns / NS_PER_S:.3f} s: either the clocks differ, or "
                "these are not starts of one job."
            )
        return tuple(notes)

    def _starts_section(self) -> Section:
        columns = (
            Column("Start"),
            Column("Down before (s)", 3),
            Column("Time (s)", 3),
            Column("Steps"),
            Column("Went on after step"),
            Column("Redone steps"),
            Column("Redone (s)", 3),
        )
        rows = tuple(
            (
                start.name,
                start.down_ns / NS_PER_S,
                start.wall_ns / NS_PER_S,
                start.steps,
                start.resumed_at,
                start.redone,
                start.redone_ns / NS_PER_S,
            )
            for start in self.starts
        )
        return Section("Starts", columns, rows, ())
