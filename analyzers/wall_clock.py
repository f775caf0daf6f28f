"""Where all of the wall time of a run went: every nanosecond of each rank's process in one part, and the slowest steps.

The wall time of a rank runs from the start of its process to its end, as far as both were recorded. Its parts
(``perfscope.measures.parts``) add up to it exactly. Ranks of one job have different wall times. The ranks with
the longest and the median one are shown, and all of them are in JSON.

The life of a process is cut at the edges of its steps. A moment that several things claim belongs to the first of: the
boundary between two steps, a checkpoint save, compilation, the wait for the first batch, generation, validation. What
is known as a sum only, the wait for batches, the hooks, is taken from what then remains of its step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec.structs import replace

from perfscope import report
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.parts import LifePart
from perfscope.measures.step_selection import last_attempts
from perfscope.report import MOST_SHOWN, Cell, Section, in_unit, percent_of
from perfscope.result import MS_OF_NS, Column, Doc, Figures, InUnit, InUnitIfKnown, Result, Table, figure
from perfscope.tables.columns import Bool, Int64, present
from perfscope.tables.intervals import Intervals, union
from perfscope.tables.run import Run, Window
from perfscope.tables.steps import FIRST_STEP, SLOW, WINDOW, Steps
from perfscope.tables.timeline import Timeline

UNEXPLAINED = "unexplained"
_GARBAGE, _WINDOW = "garbage collection", "profiler window"
#: Parts that are known as intervals; the first that claims a moment has it.
_CLAIMS = {
    "save": LifePart.SAVES,
    "compilation": LifePart.COMPILATION,
    "first_batch": LifePart.DATA_WAIT,
    "generation": LifePart.GENERATION,
    "validation": LifePart.VALIDATION,
}
#: Parts that last until the next sign of training: what is collected behind them is not of them.
_LASTING = (LifePart.VALIDATION, LifePart.GENERATION)
#: What is said of a part as the cause of a slow step; the step's own time is not a cause.
_CAUSES = {
    LifePart.DATA_WAIT: "data wait",
    LifePart.COMPILATION: "compilation",
    LifePart.VALIDATION: "validation",
    LifePart.VALIDATION_WAIT: "validation",
    LifePart.GENERATION: "generation",
    LifePart.SAVES: "checkpoint save",
    LifePart.BETWEEN: LifePart.BETWEEN.label,
    LifePart.WINDOW_START: _WINDOW,
    LifePart.WINDOW_STOP: _WINDOW,
    LifePart.WINDOW_EXPORT: _WINDOW,
    LifePart.HOOKS: LifePart.HOOKS.label,
}
#: The same of what another rank did.
_CAUSES_OF_PEERS = {
    **{kind: _CAUSES[part] for kind, part in _CLAIMS.items()},
    "garbage": _GARBAGE,
    FIRST_STEP: LifePart.FIRST_STEP.label,
    WINDOW: _WINDOW,
}
#: What steps take by themselves.
OWN = (LifePart.FIRST_STEP, LifePart.STEPS, LifePart.WINDOW_STEPS)


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """The wall time of one process, on its host's monotonic clock, as far as it was recorded.

    The parts add up to ``wall_ns``; one that is not there was not recorded. ``by_step`` has each part's time in each
    step, the boundary before it included; ``after_steps`` has what is claimed after the last one.
    """

    rank: int
    attempt: int
    host: str | None
    start_ns: int
    end_ns: int
    parts: dict[LifePart, int]
    step: Int64
    by_step: dict[LifePart, Int64]
    after_steps: dict[LifePart, int]
    is_start_known: bool
    is_end_known: bool
    is_first_step_known: bool

    @property
    def wall_ns(self) -> int:
        """Its wall time."""
        return self.end_ns - self.start_ns

    @property
    def step_ns(self) -> Int64:
        """The time of each step with everything in it and with the boundary before it."""
        return self.in_steps(LifePart)

    @property
    def by_size(self) -> list[tuple[LifePart, int]]:
        """The parts that took time, the largest first."""
        return sorted(((part, part_ns) for part, part_ns in self.parts.items() if part_ns), key=lambda pair: -pair[1])

    def in_steps(self, parts: Sequence[LifePart] | type[LifePart]) -> Int64:
        """The time of some parts in each step."""
        whole = np.zeros(len(self.step), np.int64)
        for part in parts:  # in place: a week's columns together are large
            whole += self.by_step[part]
        return whole

    def label(self, part: LifePart) -> str:
        """A part as tables name it."""
        if part is LifePart.BEFORE_FIRST_STEP and not self.is_first_step_known:
            return "start-up until the end of the first step"
        if part is LifePart.SET_UP and LifePart.IMPORTS not in self.parts:
            return "start-up: imports and the script's set-up"
        return part.label


def keep_ledgers(run: Run) -> list[tuple[Ledger, Steps]]:
    """The ledger of every process that completed a step, by rank and attempt."""
    timelines = {(timeline.rank, timeline.attempt): timeline for timeline in run.timelines}
    kept = []
    for table in sorted(run.steps, key=lambda table: (table.rank, table.attempt)):
        who = table.rank, table.attempt
        if len(table) and who in timelines:
            windows = [window for window in run.windows if (window.rank, window.attempt) == who]
            kept.append((keep_ledger(timelines[who], table, windows), table))
    return kept


def keep_ledger(timeline: Timeline, steps: Steps, windows: Sequence[Window]) -> Ledger:
    """Divide the wall time of a process that completed a step."""
    division = _Division(timeline, steps)
    division.take_claims()
    division.take_validation_waits()
    division.take_start_and_end()
    division.take_boundaries(windows)
    division.divide_steps()
    return division.close()


class _Division:
    def __init__(self, timeline: Timeline, steps: Steps) -> None:
        self.timeline, self.steps, count = timeline, steps, len(steps)
        self.ends = ends = np.maximum.accumulate(steps.end_ns)
        previous = np.concatenate([ends[:1], ends[:-1]])
        earliest = np.concatenate([[np.iinfo(np.int64).min], ends[:-1]])
        # A step begins no earlier than the one before it ended, and there where its begin is unknown.
        self.begins = np.clip(np.where(present(steps.begin_ns), steps.begin_ns.data, previous), earliest, ends)
        self.is_first_step_known = bool(present(steps.wall_ns)[0])
        self.first = int((self.begins if self.is_first_step_known else ends)[0])
        spans = timeline.spans
        moments = (timeline.hooked_ns, timeline.torch_loaded_ns, *spans.start_ns.tolist())
        self.start = min([self.first, *(moment for moment in moments if moment is not None)])
        if timeline.started_ns is not None:  # a forked process knows moments of its parent, from before its own start
            self.start = min(timeline.started_ns, self.first)
        self.end = max([int(ends[-1]), timeline.ended_ns or 0, *spans.end_ns.tolist()])
        self.rest = union(np.array([self.start]), np.array([self.end])) - union(ends[:-1], self.begins[1:])
        self.by_step: dict[LifePart, Int64] = dict.fromkeys(LifePart, np.broadcast_to(np.int64(0), count))
        self.outside = dict.fromkeys(LifePart, 0)
        self.after_steps: dict[LifePart, int] = {}

    def add(self, part: LifePart, amount: Int64) -> None:
        if amount.any():
            self.by_step[part] = self.by_step[part] + amount

    def move(self, whole: LifePart, part: LifePart, amount_ns: int) -> None:
        taken = min(amount_ns, self.outside[whole])
        self.outside[whole] -= taken
        self.outside[part] += taken

    def take_claims(self) -> None:
        spans = self.timeline.spans
        is_garbage = spans.kind == "garbage"
        garbage = union(spans.start_ns[is_garbage], spans.end_ns[is_garbage])
        for kind, part in _CLAIMS.items():
            rows = spans.kind == kind
            if rows.any():
                claimed = union(spans.start_ns[rows], spans.end_ns[rows]) & self.rest
                if part in _LASTING:
                    claimed = claimed - garbage
                self.rest = self.rest - claimed
                in_steps = _within(claimed, self.begins, self.ends)
                self.add(part, in_steps)
                self.outside[part] += claimed.measure - int(in_steps.sum())
                self.after_steps[part] = claimed.clip(int(self.ends[-1]), self.end).measure

    def take_validation_waits(self) -> None:
        spans = self.timeline.spans
        rows = spans.kind == "validation"
        if rows.any():
            row_of_span = np.searchsorted(self.ends, spans.end_ns[rows])
            waits = np.bincount(row_of_span, spans.wait_ns[rows], len(self.ends) + 1).astype(np.int64)
            in_steps = self.by_step[LifePart.VALIDATION].copy()
            self.add(LifePart.VALIDATION_WAIT, _take(in_steps, waits[:-1]))
            self.by_step[LifePart.VALIDATION] = in_steps
            self.move(LifePart.VALIDATION, LifePart.VALIDATION_WAIT, int(waits[-1]))

    def take_start_and_end(self) -> None:
        edges = [self.first]
        for moment in (self.timeline.hooked_ns, self.timeline.torch_loaded_ns):
            edges.append(self.start if moment is None else min(max(moment, self.start), edges[-1]))
        first, hooked, loaded = edges
        self.outside[LifePart.IMPORTS] += self.rest.clip(self.start, loaded).measure
        self.outside[LifePart.SET_UP] += self.rest.clip(loaded, hooked).measure
        self.outside[LifePart.BEFORE_FIRST_STEP] += self.rest.clip(hooked, first).measure
        self.outside[LifePart.END] = self.rest.clip(int(self.ends[-1]), self.end).measure

    def take_boundaries(self, windows: Sequence[Window]) -> None:
        rest = self.begins - np.concatenate([self.begins[:1], self.ends[:-1]])
        numbers = self.steps.step
        rows = {int(step): row for row, step in enumerate(numbers.tolist())} if windows else {}
        for window in windows:
            export_ns = window.export_ns + (window.release_ns or 0)
            before, is_before_all = max(window.first_step - 1, 1), window.first_step - 1 <= numbers[0]
            behind, is_behind_all = window.last_step + 1, window.last_step >= numbers[-1]
            for part, step, outer, is_outer, stall_ns in (
                (LifePart.WINDOW_STOP, behind, LifePart.END, is_behind_all, window.stop_ns),
                (LifePart.WINDOW_EXPORT, behind, LifePart.END, is_behind_all, export_ns),
                (LifePart.WINDOW_START, before, LifePart.BEFORE_FIRST_STEP, is_before_all, window.start_ns),
            ):
                if step in rows:
                    taken = np.zeros(len(rest), np.int64)
                    taken[rows[step]] = stall_ns
                    self.add(part, _take(rest, taken))
                if is_outer:
                    self.move(outer, part, stall_ns)
        stalls = self.by_step[LifePart.WINDOW_STOP] + self.by_step[LifePart.WINDOW_EXPORT]
        is_lost = np.asarray(self.steps.window == "export") & (stalls == 0)
        self.add(LifePart.WINDOW_STOP, np.where(is_lost, rest, 0))
        self.add(LifePart.HOOKS, np.where(is_lost, 0, rest))

    def divide_steps(self) -> None:
        steps, before = self.steps, self.rest.measure_before(self.begins)
        rest = self.rest.measure_before(self.ends) - before
        gaps_end = np.minimum(self.begins + np.ma.filled(steps.gap_ns, 0), self.ends)
        gaps = self.rest.measure_before(gaps_end) - before
        self.add(LifePart.DATA_WAIT, _take(rest, np.ma.filled(steps.data_wait_ns, 0)))
        if steps.steady.any():
            # What a script does in every step, such as reading the loss, is a part of the step.
            excess = gaps - int(np.median(gaps[steps.steady]))
            is_large = 2 * excess > int(np.median(rest[steps.steady]))
            self.add(LifePart.BETWEEN, _take(rest, np.where(is_large, excess, 0)))
        self.add(LifePart.HOOKS, _take(rest, np.ma.filled(steps.hook_ns, 0) - self.by_step[LifePart.HOOKS]))
        in_window = np.isin(steps.window, ("warmup", "profiled"))
        is_first = np.arange(len(rest)) == 0
        self.add(LifePart.WINDOW_STEPS, np.where(in_window, rest, 0))
        self.add(LifePart.FIRST_STEP, np.where(is_first & ~in_window, rest, 0))
        self.add(LifePart.STEPS, np.where(~is_first & ~in_window, rest, 0))

    def close(self) -> Ledger:
        parts = {part: self.outside[part] + int(self.by_step[part].sum()) for part in LifePart}
        assert sum(parts.values()) == self.end - self.start, "the parts do not add up to the wall time"
        timeline = self.timeline
        unrecorded = set()
        if not timeline.records_spans:
            unrecorded |= {LifePart.SET_UP, LifePart.BEFORE_FIRST_STEP, LifePart.COMPILATION, LifePart.BETWEEN}
            unrecorded |= {LifePart.VALIDATION, LifePart.VALIDATION_WAIT, LifePart.GENERATION}
        for part, is_recorded in (
            (LifePart.IMPORTS, timeline.torch_loaded_ns is not None),
            (LifePart.END, timeline.ended_ns is not None),
            (LifePart.FIRST_STEP, self.is_first_step_known),
            (LifePart.DATA_WAIT, bool(present(self.steps.data_wait_ns).any())),
        ):
            if not is_recorded:
                unrecorded.add(part)
        return Ledger(
            rank=timeline.rank,
            attempt=timeline.attempt,
            host=timeline.host,
            start_ns=self.start,
            end_ns=self.end,
            parts={part: part_ns for part, part_ns in parts.items() if part_ns or part not in unrecorded},
            step=self.steps.step,
            by_step=self.by_step,
            after_steps=self.after_steps,
            is_start_known=timeline.started_ns is not None,
            is_end_known=timeline.ended_ns is not None,
            is_first_step_known=self.is_first_step_known,
        )


def _within(intervals: Intervals, begins: Int64, ends: Int64) -> Int64:
    """How much of some intervals lies in each step; only steps that they reach are looked at."""
    within = np.zeros(len(ends), np.int64)
    if len(intervals):
        first = int(np.searchsorted(ends, intervals.start[0], side="right"))
        last = int(np.searchsorted(begins, intervals.end[-1], side="left"))
        before_begins = intervals.measure_before(begins[first:last])
        within[first:last] = intervals.measure_before(ends[first:last]) - before_begins
    return within


def _take(rest: Int64, amount: Int64) -> Int64:
    taken = np.clip(amount, 0, rest)
    rest -= taken
    return np.asarray(taken, np.int64)


class SlowStep(Figures, frozen=True):
    """A step that took much longer than the median one."""

    step: Annotated[int, Doc("Its number, from 1.")]
    rank: Annotated[int, Doc("The rank on which it took longest.")]
    time_ns: int
    over_median_ns: int
    cause: Annotated[str, Doc("What explains more than half of that, or ``unexplained``.")]
    cause_ns: int | None
    s = InUnit("time_ns", NS_PER_S, "Its time with everything in it, the boundary before it included.")
    over_median_s = InUnit("over_median_ns", NS_PER_S, "By how much that exceeds the median step of the rank.")
    cause_s = InUnitIfKnown("cause_ns", NS_PER_S, "How much of it that is; None where it is unexplained.")


def find_slowest_steps(ledgers: Sequence[tuple[Ledger, Steps]]) -> tuple[SlowStep, ...]:
    """The slowest steps over all ranks, the slowest first; each on the rank on which it took longest.

    A step that perfscope's own hooks made slow says nothing of training, and is left out.
    """
    slowest: dict[int, SlowStep] = {}
    for ledger, steps in ledgers:
        for slow in _slow_steps(ledger, steps):
            if slow.cause == LifePart.HOOKS.label:
                continue
            known = slowest.get(slow.step)
            if known is None or slow.time_ns > known.time_ns:
                slowest[slow.step] = slow
    ranked = sorted(slowest.values(), key=lambda slow: (-slow.time_ns, slow.step))[:MOST_SHOWN]
    tables = {ledger.rank: steps for ledger, steps in ledgers}
    for index, slow in enumerate(ranked):
        for stall in tables[slow.rank].peer_stalls if slow.cause == UNEXPLAINED else ():
            if stall.step == slow.step and 2 * stall.wait_ns > slow.over_median_ns:
                cause = f"{_CAUSES_OF_PEERS[stall.kind]} on rank {stall.rank}"
                ranked[index] = replace(slow, cause=cause, cause_ns=min(stall.wait_ns, slow.over_median_ns))
                break
    return tuple(ranked)


def _slow_steps(ledger: Ledger, steps: Steps) -> Iterator[SlowStep]:
    times = ledger.step_ns
    usual = steps.steady if steps.steady.any() else np.ones(len(times), np.bool_)
    median = int(np.median(times[usual]))
    candidates = np.flatnonzero(times > SLOW * median)
    rows = candidates[np.argsort(-times[candidates], kind="stable")[:MOST_SHOWN]]
    excess = _excess_by_cause(ledger, steps, usual, rows) if len(rows) else {}
    for index, row in enumerate(rows.tolist()):
        over = int(times[row]) - median
        cause = max(excess, key=lambda cause: int(excess[cause][index]))
        cause_ns = int(excess[cause][index])
        is_explained = cause != UNEXPLAINED and 2 * cause_ns > over
        yield SlowStep(
            step=int(ledger.step[row]),
            rank=ledger.rank,
            time_ns=int(times[row]),
            over_median_ns=over,
            cause=cause if is_explained else UNEXPLAINED,
            cause_ns=min(cause_ns, over) if is_explained else None,
        )


def _excess_by_cause(ledger: Ledger, steps: Steps, usual: Bool, rows: Int64) -> dict[str, Int64]:
    def excess_of(parts: Sequence[LifePart]) -> Int64:
        spent = ledger.in_steps(parts)
        return np.asarray(spent[rows] - int(np.median(spent[usual])), np.int64)

    causes = dict.fromkeys(_CAUSES.values())
    excess = {cause: excess_of([part for part in _CAUSES if _CAUSES[part] == cause]) for cause in causes}
    own = excess_of(OWN)
    in_window, is_first = np.asarray(steps.window[rows] != ""), np.asarray(steps.step[rows] == 1)
    garbage = np.where(in_window | is_first, 0, np.ma.filled(steps.garbage_ns, 0)[rows])
    for cause, chosen in (
        (LifePart.FIRST_STEP.label, is_first),
        (_WINDOW, in_window & ~is_first),
        (UNEXPLAINED, ~in_window & ~is_first),
    ):
        excess[cause] = excess.get(cause, np.zeros(len(rows), np.int64)) + np.where(chosen, own - garbage, 0)
    return {**excess, _GARBAGE: garbage}


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
        Mapping[LifePart, int | None],
        Doc("Its parts, which add up to ``wall_ns`` exactly; None where a part was not recorded."),
    ]


class WallClock(Result, frozen=True):
    """``results.wall_clock``: all of the wall time of a run.

    ``slowest`` is of the rank with the longest wall time, ``median`` of the median one, the shorter of two.
    """

    ledgers: tuple[Ledger, ...]
    slowest: Ledger
    median: Ledger
    slowest_steps: Annotated[tuple[SlowStep, ...], Doc("The slowest steps, and why; the slowest first.")]
    wall_s = InUnit("slowest.wall_ns", NS_PER_S, "The longest wall time of a rank.")

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
                Column("By the cause (ms)", "cause_ns", MS_OF_NS),
            ),
        ),
    )

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
        one = self.slowest
        return tuple(
            WallClockPart(part, one.label(part), part_ns / NS_PER_S, part_ns / one.wall_ns if one.wall_ns else None)
            for part, part_ns in one.by_size
        )

    @figure
    def ranks(self) -> tuple[ProcessTime, ...]:
        """Every process."""
        return tuple(
            ProcessTime(
                one.rank, one.attempt, one.host, one.wall_ns, one.is_start_known, one.is_end_known,
                {part: one.parts.get(part) for part in LifePart},
            )
            for one in self.ledgers
        )  # fmt: skip

    @figure
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        one = self.slowest
        notes = ["The parts add up to the wall time of the rank's process exactly; the largest comes first."]
        if one is not self.median:
            notes.append(
                f"Rank {one.rank} took longest of {len({each.rank for each in self.ledgers})} ranks, rank "
                f"{self.median.rank} is the median; all ranks are in --format json."
            )
        if not one.is_start_known:
            notes.append(
                "The start of the process was not recorded: start-up before the first record is not in the table."
            )
        if not one.is_end_known:
            notes.append("The end was not recorded, as where a process is killed: the time ends at the last record.")
        if LifePart.VALIDATION not in one.parts:
            notes.append("This run did not record validation, compilation and time between steps: steps include them.")
        elif LifePart.DATA_WAIT not in one.parts:
            notes.append("No DataLoader was used: waiting for data, if there was any, is in the steps.")
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """The parts of the slowest and of the median rank, and the slowest steps."""
        one, median = self.slowest, self.median
        is_single = one is median
        columns = [report.Column("Part"), report.Column("Time (s)" if is_single else f"Rank {one.rank} (s)", 3)]
        columns += [report.Column("Share (%)"), report.Column(f"Rank {median.rank} (s)", 3)]
        parts = dict(one.by_size)
        parts |= {part: 0 for part, part_ns in median.parts.items() if part_ns and part not in parts}
        rows: list[tuple[Cell, ...]] = [
            (
                one.label(part),
                part_ns / NS_PER_S,
                percent_of(part_ns, one.wall_ns),
                in_unit(median.parts.get(part), NS_PER_S),
            )
            for part, part_ns in parts.items()
        ]
        rows.append(("all", one.wall_ns / NS_PER_S, 100.0, median.wall_ns / NS_PER_S))
        shown = 3 if is_single else 4
        clock = Section("Wall clock", tuple(columns[:shown]), tuple(row[:shown] for row in rows), self.notes)
        period = (
            "From the end of one step to the end of the next, with everything between them. A cause explains more than "
            "half of the time over the median."
        )
        return (clock, self.TABLES[0].section(self.slowest_steps, [period])) if self.slowest_steps else (clock,)


def analyze(run: Run) -> WallClock:
    """Divide the wall time of every process that completed a step; MissingInput where none did."""
    ledgers = keep_ledgers(run)
    if not ledgers:
        raise MissingInput("no training step was recorded")
    last = {(table.rank, table.attempt) for table in last_attempts(run.steps)}
    shown = [(ledger, steps) for ledger, steps in ledgers if (ledger.rank, ledger.attempt) in last]
    by_wall = sorted((ledger for ledger, _ in shown), key=lambda ledger: (ledger.wall_ns, -ledger.rank))
    return WallClock(
        ledgers=tuple(ledger for ledger, _ in ledgers),
        slowest=by_wall[-1],
        median=by_wall[(len(by_wall) - 1) // 2],
        slowest_steps=find_slowest_steps(shown),
    )
