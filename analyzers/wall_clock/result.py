"""The wall time of a run, as data and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from perfscope import report
from perfscope.analyzers.wall_clock.ledger import Ledger, Part
from perfscope.analyzers.wall_clock.slowest import SlowStep
from perfscope.constants import NS_PER_S
from perfscope.report import Cell, Section, in_unit, percent_of
from perfscope.result import MS_OF_NS, Column, Doc, Figures, Result, Table, figure

LABELS = {
    Part.IMPORTS: "start-up: Python and imports, until torch is loaded",
    Part.SET_UP: "start-up: the script's set-up",
    Part.BEFORE_FIRST_STEP: "start-up: until the first step",
    Part.FIRST_STEP: "first step",
    Part.STEPS: "steps",
    Part.DATA_WAIT: "waiting for data",
    Part.COMPILATION: "compilation",
    Part.VALIDATION: "validation",
    Part.VALIDATION_WAIT: "validation: waiting for data",
    Part.GENERATION: "generation",
    Part.SAVES: "checkpoint saves",
    Part.BETWEEN: "between steps, unattributed",
    Part.WINDOW_STEPS: "steps in profiler windows",
    Part.WINDOW_START: "profiler windows: start",
    Part.WINDOW_STOP: "profiler windows: stop",
    Part.WINDOW_EXPORT: "profiler windows: export",
    Part.HOOKS: "hooks of perfscope",
    Part.END: "after the last step",
}
_START_AND_FIRST_STEP = "start-up until the end of the first step"


_PERIOD = (
    "From the end of one step to the end of the next, with everything between them. A cause explains more than "
    "half of the time over the median."
)


class WallClockPart(Figures, frozen=True):
    """A part of the wall time of the slowest rank."""

    part: Annotated[str, Doc("Its key in ``parts_ns``.")]
    label: Annotated[str, Doc("Its name for people.")]
    s: Annotated[float, Doc("Its time.")]
    share: Annotated[float | None, Doc("Its time over the rank's wall time; None where that is 0.")]


class ProcessTime(Figures, frozen=True):
    """The wall time of one process."""

    rank: Annotated[int, Doc("Its rank.")]
    attempt: Annotated[int, Doc("0 for the rank's first process, 1 after a restart.")]
    host: Annotated[str | None, Doc("Its machine.")]
    wall_ns: Annotated[int, Doc("All of its wall time, from its start to its end as far as both were recorded.")]
    start_recorded: Annotated[bool, Doc("Whether its start was recorded.")]
    end_recorded: Annotated[bool, Doc("Whether its end was recorded.")]
    parts_ns: Annotated[
        Mapping[Part, int | None],
        Doc("Its parts, which add up to ``wall_ns`` exactly; None where a part was not recorded."),
    ]


class WallClock(Result, frozen=True):
    """``results.wall_clock``: all of the wall time of a run.

    Attributes:
        ledgers: Every process that completed a step, by rank and attempt.
        slowest: That of the rank with the longest wall time.
        median: That of the rank with the median wall time, the shorter of two.
    """

    ledgers: tuple[Ledger, ...]
    slowest: Ledger
    median: Ledger
    slowest_steps: Annotated[tuple[SlowStep, ...], Doc("The slowest steps, and why; the slowest first.")]

    TABLES = (
        Table(
            "Slowest steps",
            "slowest_steps",
            (
                Column("Step", "step", str),
                Column("Rank", "rank", str),
                Column("Time (ms)", "time_ns", MS_OF_NS),
                Column("Over the median (ms)", "over_median_ns", MS_OF_NS),
                Column("Cause", "cause"),
                Column("Of which that (ms)", "cause_ns", MS_OF_NS),
            ),
        ),
    )

    @figure
    def wall_s(self) -> float:
        """The longest wall time of a rank."""
        return self.slowest.wall_ns / NS_PER_S

    @figure
    def rank(self) -> int:
        """That rank."""
        return self.slowest.rank

    @figure
    def median_rank(self) -> int:
        """The rank with the median wall time."""
        return self.median.rank

    @figure
    def parts(self) -> tuple[WallClockPart, ...]:
        """The parts of the longest one, the largest first."""
        whole = self.slowest.wall_ns
        return tuple(
            WallClockPart(part, _label(self.slowest, part), part_ns / NS_PER_S, part_ns / whole if whole else None)
            for part, part_ns in _by_size(self.slowest)
        )

    @figure
    def ranks(self) -> tuple[ProcessTime, ...]:
        """Every process."""
        return tuple(
            ProcessTime(
                ledger.rank, ledger.attempt, ledger.host, ledger.wall_ns, ledger.is_start_known, ledger.is_end_known,
                {part: ledger.parts.get(part) for part in Part},
            )
            for ledger in self.ledgers
        )  # fmt: skip

    @figure
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        ledger = self.slowest
        notes = ["The parts add up to the wall time of the rank's process exactly; the largest comes first."]
        if self.slowest is not self.median:
            notes.append(
                f"Rank {ledger.rank} took longest of {len({one.rank for one in self.ledgers})} ranks, rank "
                f"{self.median.rank} is the median; all ranks are in --format json."
            )
        if not ledger.is_start_known:
            notes.append(
                "The start of the process was not recorded: start-up before the first record is not in the table."
            )
        if not ledger.is_end_known:
            notes.append("The end was not recorded, as where a process is killed: the time ends at the last record.")
        if Part.VALIDATION not in ledger.parts:
            notes.append("This run did not record validation, compilation and time between steps: steps include them.")
        elif Part.DATA_WAIT not in ledger.parts:
            notes.append("No DataLoader was used: waiting for data, if there was any, is in the steps.")
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """The parts of the slowest and of the median rank, and the slowest steps."""
        is_single = self.slowest is self.median
        columns = [
            report.Column("Part"),
            report.Column("Time (s)" if is_single else f"Rank {self.slowest.rank} (s)", 3),
        ]
        columns += [report.Column("Share (%)")]
        columns += [] if is_single else [report.Column(f"Rank {self.median.rank} (s)", 3)]
        parts = _by_size(self.slowest)
        if not is_single:
            parts += [(part, 0) for part, part_ns in self.median.parts.items() if part_ns and part not in dict(parts)]
        rows = [
            (
                _label(self.slowest, part),
                part_ns / NS_PER_S,
                percent_of(part_ns, self.slowest.wall_ns),
                *(() if is_single else (in_unit(self.median.parts.get(part), NS_PER_S),)),
            )
            for part, part_ns in parts
        ]
        whole: tuple[Cell, ...] = ("all", self.slowest.wall_ns / NS_PER_S, 100.0)
        rows.append(whole if is_single else (*whole, self.median.wall_ns / NS_PER_S))
        clock = Section("Wall clock", tuple(columns), tuple(rows), self.notes)
        return (clock, self.TABLES[0].section(self.slowest_steps, [_PERIOD])) if self.slowest_steps else (clock,)


def _by_size(ledger: Ledger) -> list[tuple[Part, int]]:
    """The parts that took time, the largest first."""
    return sorted(((part, part_ns) for part, part_ns in ledger.parts.items() if part_ns), key=lambda pair: -pair[1])


def _label(ledger: Ledger, part: Part) -> str:
    if part is Part.BEFORE_FIRST_STEP and not ledger.is_first_step_known:
        return _START_AND_FIRST_STEP
    if part is Part.SET_UP and Part.IMPORTS not in ledger.parts:
        return "start-up: imports and the script's set-up"
    return LABELS[part]
