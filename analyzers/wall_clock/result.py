"""The wall time of a run, as data and as tables."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.wall_clock.ledger import Ledger, Part
from perfscope.analyzers.wall_clock.slowest import SlowStep
from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.report import Cell, Column, Json, Section, in_unit, percent_of

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


@dataclass(frozen=True, slots=True)
class WallClock:
    """The wall time of a run.

    Attributes:
        ledgers: Every process that completed a step, by rank and attempt.
        slowest: That of the rank with the longest wall time.
        median: That of the rank with the median wall time, the shorter of two.
        slowest_steps: Up to five steps that took much longer than the median one, the slowest first.
    """

    ledgers: tuple[Ledger, ...]
    slowest: Ledger
    median: Ledger
    slowest_steps: tuple[SlowStep, ...]

    def data(self) -> Json:
        """The value of ``results.wall_clock``."""
        return {
            "wall_s": self.slowest.wall_ns / NS_PER_S,
            "rank": self.slowest.rank,
            "median_rank": self.median.rank,
            "parts": [
                {
                    "part": str(part),
                    "label": _label(self.slowest, part),
                    "s": part_ns / NS_PER_S,
                    "share": part_ns / self.slowest.wall_ns if self.slowest.wall_ns else None,
                }
                for part, part_ns in _by_size(self.slowest)
            ],
            "slowest_steps": [step.data() for step in self.slowest_steps],
            "ranks": [
                {
                    "rank": ledger.rank,
                    "attempt": ledger.attempt,
                    "host": ledger.host,
                    "wall_ns": ledger.wall_ns,
                    "start_recorded": ledger.is_start_known,
                    "end_recorded": ledger.is_end_known,
                    "parts_ns": {str(part): ledger.parts.get(part) for part in Part},
                }
                for ledger in self.ledgers
            ],
            "notes": list(self._notes()),
        }

    def sections(self) -> tuple[Section, ...]:
        """The parts of the slowest and of the median rank, and the slowest steps."""
        is_single = self.slowest is self.median
        columns = [Column("Part"), Column("Time (s)" if is_single else f"Rank {self.slowest.rank} (s)", 3)]
        columns += [Column("Share (%)")]
        columns += [] if is_single else [Column(f"Rank {self.median.rank} (s)", 3)]
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
        clock = Section("Wall clock", tuple(columns), tuple(rows), self._notes())
        return (clock, self._slowest_section()) if self.slowest_steps else (clock,)

    def _slowest_section(self) -> Section:
        columns = (
            Column("Step"),
            Column("Rank"),
            Column("Time (ms)", 1),
            Column("Over the median (ms)", 1),
            Column("Cause"),
            Column("Of which that (ms)", 1),
        )
        rows = tuple(
            (
                str(slow.step),
                str(slow.rank),
                slow.time_ns / NS_PER_MS,
                slow.over_median_ns / NS_PER_MS,
                slow.cause,
                in_unit(slow.cause_ns, NS_PER_MS),
            )
            for slow in self.slowest_steps
        )
        note = (
            "From the end of one step to the end of the next, with everything between them. A cause explains more than "
            "half of the time over the median."
        )
        return Section("Slowest steps", columns, rows, (note,))

    def _notes(self) -> tuple[str, ...]:
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


def _by_size(ledger: Ledger) -> list[tuple[Part, int]]:
    """The parts that took time, the largest first."""
    return sorted(((part, part_ns) for part, part_ns in ledger.parts.items() if part_ns), key=lambda pair: -pair[1])


def _label(ledger: Ledger, part: Part) -> str:
    if part is Part.BEFORE_FIRST_STEP and not ledger.is_first_step_known:
        return _START_AND_FIRST_STEP
    if part is Part.SET_UP and Part.IMPORTS not in ledger.parts:
        return "start-up: imports and the script's set-up"
    return LABELS[part]
