"""What the time of a whole job went to, over all of its restarts: every nanosecond in one part.

A step is useful where its result was kept. Where a later start of the job went on from before it, it was redone: the
first time was lost. Between two starts the job is down. What a start needs before its first step is its start-up, or
the cost of a restart from the second one on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Annotated

import numpy as np

from perfscope import report
from perfscope.analyzers.wall_clock import OWN, Ledger, keep_ledgers
from perfscope.constants import NS_PER_S, S_PER_HOUR
from perfscope.errors import MissingInput
from perfscope.measures.parts import LifePart, Spent
from perfscope.measures.statistics import STALL
from perfscope.report import Section, percent_of
from perfscope.result import Column, Doc, Figures, Result, Table, figure
from perfscope.tables.columns import Bool, Int64, present
from perfscope.tables.joblog import LoggedMoment, LoggedMoments
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """One start of a job, on the wall clock, as far as that was recorded.

    ``iteration`` numbers steps in the whole job. ``other_ns`` and the steps add up to the whole life exactly.
    ``is_numbered``: a framework numbers its iterations through restarts.
    """

    name: str
    start_ns: int
    end_ns: int
    iteration: Int64
    step_ns: Int64
    is_skipped: Bool
    other_ns: dict[Spent, int]
    saved_steps: tuple[int, ...] = ()
    ranks: int | None = None
    is_numbered: bool = True
    ends_by_itself: bool = False

    def __post_init__(self) -> None:
        """Every nanosecond is in one place."""
        parts_ns = int(self.step_ns.sum()) + sum(self.other_ns.values())
        assert parts_ns == self.end_ns - self.start_ns, "the parts of a life do not add up to it"


def number_steps(lives: Sequence[Life]) -> tuple[list[Int64], list[int | None]]:
    """The number of each step in the whole job, and the step after which each life went on; None for the first.

    Where the framework does not number iterations, a life is taken to resume from the last earlier checkpoint. Where
    nothing was saved, it starts from the beginning.
    """
    numbers: list[Int64] = []
    resumed: list[int | None] = []
    saved = 0
    for index, life in enumerate(lives):
        if life.is_numbered:
            offset = 0
            base = int(life.iteration[0]) - 1 if len(life.iteration) else saved
        else:
            offset = base = saved if index else 0
        numbers.append(life.iteration + offset)
        resumed.append(base if index else None)
        for step in life.saved_steps:
            saved = step + offset
    return numbers, resumed


def begin_after_each_other(lives: Sequence[Life]) -> list[Life]:
    """The lives in their order, by their ends.

    A process can be older than what it runs: a shell that starts one training after the other becomes the last of them.
    The time until the life before it ended is no part of its start-up.
    """
    ordered: list[Life] = []
    for life in sorted(lives, key=lambda life: (life.end_ns, life.start_ns)):
        start_up_ns = life.other_ns.get(Spent.START, 0)
        early_ns = max(max((former.end_ns for former in ordered), default=0) - life.start_ns, 0)
        clipped_ns = min(early_ns, start_up_ns)
        apart_ns = {**life.other_ns, Spent.START: start_up_ns - clipped_ns}
        ordered.append(replace(life, start_ns=life.start_ns + clipped_ns, other_ns=apart_ns))
    return ordered


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
        return None if self.gpus is None else self._gpu_hours(self.wall_ns - self.spent_ns[Spent.USEFUL])

    def in_a_sentence(self) -> str:
        """The share of useful steps."""
        share = "n/a" if self.goodput is None else f"{self.goodput:.1%}"
        return f"{share} of the job's time went to useful steps"

    def sections(self) -> tuple[Section, ...]:
        """The parts, the largest first, and the starts."""
        columns = [report.Column("Part"), report.Column("Time (s)", 3), report.Column("Share (%)")]
        columns += [] if self.gpus is None else [report.Column("GPU hours", 3)]
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


def find_lives(run: Run) -> list[Life]:
    """The starts of a run's job, each as the rank that it lasted longest for recorded it."""
    offsets = {(timeline.rank, timeline.attempt): timeline.offset_ns for timeline in run.timelines}
    longest: dict[int, tuple[Ledger, Steps, int]] = {}
    for ledger, table in keep_ledgers(run):
        known, offset_ns = longest.get(table.attempt), offsets[table.rank, table.attempt]
        if offset_ns is not None and (known is None or ledger.wall_ns > known[0].wall_ns):
            longest[table.attempt] = ledger, table, offset_ns
    return [_to_life(run, *longest[attempt]) for attempt in sorted(longest)]


def _to_life(run: Run, ledger: Ledger, table: Steps, offset_ns: int) -> Life:
    whole_ns = ledger.in_steps(OWN)
    usual_ns = int(np.median(whole_ns)) * STALL if len(whole_ns) else 0
    step_ns = np.minimum(whole_ns, usual_ns) if usual_ns else whole_ns
    apart_ns = dict.fromkeys(Spent, 0)
    apart_ns[Spent.STALLS] += int((whole_ns - step_ns).sum())
    for part, part_ns in ledger.parts.items():
        outside_ns = part_ns - int(ledger.by_step[part].sum())
        if part in OWN:
            apart_ns[Spent.START] += outside_ns
        elif part is LifePart.DATA_WAIT:  # the wait for the first batch is a part of the start
            apart_ns[Spent.START] += outside_ns
            apart_ns[Spent.STALLS] += part_ns - outside_ns
        else:
            apart_ns[part.spent] += part_ns
    apart_ns[Spent.START] += ledger.wall_ns - sum(ledger.parts.values())
    attempts = [] if run.saves is None else run.saves.timings
    saved = {save.step for save in attempts if save.attempt == table.attempt and save.step is not None}
    is_numbered = table.iteration is not None and bool(present(table.iteration).all())
    numbers = np.asarray(table.iteration.data if is_numbered and table.iteration is not None else table.step, np.int64)
    shift = int(numbers[0] - table.step[0])
    rank = next((rank for rank in run.ranks if (rank.rank, rank.attempt) == (table.rank, table.attempt)), None)
    return Life(
        name=f"{run.path}, start {table.attempt + 1}",
        start_ns=ledger.start_ns + offset_ns,
        end_ns=ledger.end_ns + offset_ns,
        iteration=numbers,
        step_ns=step_ns,
        is_skipped=table.skipped,
        other_ns=apart_ns,
        saved_steps=tuple(sorted(step + shift for step in saved)),
        ranks=None if rank is None else rank.world_size,
        is_numbered=is_numbered,
        ends_by_itself=ledger.is_end_known,
    )


def find_logged_lives(log: LoggedMoments) -> list[Life]:
    """The starts of a job in one log; where the number of the iteration goes back, a new one began."""
    parts: list[list[LoggedMoment]] = [[]]
    for moment in log.moments:
        if parts[-1] and moment.iteration <= parts[-1][-1].iteration:
            parts.append([])
        parts[-1].append(moment)
    lives = []
    start_ns = log.first_ns
    for number, moments in enumerate(parts, 1):
        end_ns = log.last_ns if number == len(parts) else moments[-1].t_ns
        lives.append(_logged_life(f"{log.path}, start {number}", start_ns, max(end_ns, start_ns), moments, log.ranks))
        start_ns = max(end_ns, start_ns)
    return lives


def _logged_life(name: str, start_ns: int, end_ns: int, moments: Sequence[LoggedMoment], ranks: int | None) -> Life:
    step_times = [
        (after.t_ns - before.t_ns) / (after.iteration - before.iteration)
        for before, after in pairwise(moments)
        if after.t_ns >= before.t_ns  # a clock that goes back says nothing
    ]
    usual_ns = round(median(step_times)) if step_times else 0
    apart_ns = dict.fromkeys(Spent, 0)
    iterations: list[int] = []
    times: list[int] = []
    now_ns = start_ns
    # The first line stands for as many iterations as the next lines.
    before = moments[0].iteration - 1
    if len(moments) > 1:
        before = moments[0].iteration - min(moments[1].iteration - moments[0].iteration, max(moments[0].iteration, 1))
    for index, moment in enumerate(moments):
        count = moment.iteration - before
        gap_ns = max(moment.t_ns - now_ns, 0)
        steps_ns = min(gap_ns, count * (moment.stated_ns if moment.stated_ns is not None else usual_ns))
        iterations += range(before + 1, moment.iteration + 1)
        times += [steps_ns * (part + 1) // count - steps_ns * part // count for part in range(count)]
        rest_ns = gap_ns - steps_ns
        if index == 0:
            apart_ns[Spent.START] += rest_ns
        else:
            saved_ns = min(rest_ns, moment.saved_ns)
            apart_ns[Spent.SAVES] += saved_ns
            is_save = moment.has_save and not moment.saved_ns
            place = Spent.VALIDATION if moment.has_evaluation else Spent.SAVES if is_save else Spent.STALLS
            apart_ns[place] += rest_ns - saved_ns
        now_ns, before = max(moment.t_ns, now_ns), moment.iteration
    apart_ns[Spent.END] += max(end_ns - now_ns, 0)
    return Life(
        name=name,
        start_ns=start_ns,
        end_ns=max(end_ns, now_ns),
        iteration=np.asarray(iterations, np.int64),
        step_ns=np.asarray(times, np.int64),
        is_skipped=np.zeros(len(iterations), np.bool_),
        other_ns=apart_ns,
        ranks=ranks,
    )


def analyze(run: Run) -> Goodput:
    """The goodput of a run, over the restarts of its launcher; MissingInput where no step was recorded."""
    return account(find_lives(run))


def account(lives: Sequence[Life]) -> Goodput:
    """Add up the lives of one job; MissingInput where no step was recorded."""
    lives = begin_after_each_other(lives)
    if not any(len(life.iteration) for life in lives):
        raise MissingInput("no training step was recorded")
    numbers, resumed = number_steps(lives)
    spent = dict.fromkeys(Spent, 0)
    starts: list[Start] = []
    overlap_ns = 0
    last_end_ns = lives[0].start_ns
    for index, (life, iteration) in enumerate(zip(lives, numbers, strict=True)):
        later = [int(numbering[0]) for numbering in numbers[index + 1 :] if len(numbering)]
        is_redone = iteration >= min(later) if later else np.zeros(len(iteration), np.bool_)
        redone_ns = int(life.step_ns[is_redone].sum())
        skipped_ns = int(life.step_ns[~is_redone & life.is_skipped].sum())
        spent[Spent.REDONE] += redone_ns
        spent[Spent.SKIPPED] += skipped_ns
        spent[Spent.USEFUL] += int(life.step_ns.sum()) - redone_ns - skipped_ns
        is_last = index == len(lives) - 1
        for part, part_ns in life.other_ns.items():
            is_restart = (part is Spent.START and index > 0) or (part is Spent.END and not is_last)
            spent[Spent.RESTARTS if is_restart else part] += part_ns
        down_ns = life.start_ns - last_end_ns
        overlap_ns += max(-down_ns, 0)
        spent[Spent.DOWN] += max(down_ns, 0)
        starts.append(
            Start(life.name, life.end_ns - life.start_ns, max(down_ns, 0), len(iteration), int(is_redone.sum()),
                  redone_ns, resumed[index], life.ends_by_itself)
        )  # fmt: skip
        last_end_ns = max(last_end_ns, life.end_ns)
    wall_ns = sum(start.wall_ns + start.down_before_ns for start in starts)
    assert sum(spent.values()) == wall_ns, "the parts do not add up to the wall time"
    ranks = max((life.ranks or 0 for life in lives), default=0) or None
    is_assumed = len(lives) > 1 and not all(life.is_numbered for life in lives)
    return Goodput(wall_ns, spent, tuple(starts), ranks, overlap_ns, is_assumed)
