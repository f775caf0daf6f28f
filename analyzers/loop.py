"""What the training loop's time went to, and the pauses in it: from the record of every step, without a trace.

The loop lasts from the end of the first step to the end of the last one, with the saves and validations after that.
What perfscope itself took is not of it. Its parts are those of the wall clock, and they add up to it. The process of
the slowest rank is shown.

A pause is time of a few steps beyond that of the others, which no save, validation, compilation, wait for data, garbage
collection or other rank explains. It is inside of the steps or between them. Much shorter steps make up for it.
A host that reads a value of its device in every tenth step waits there for what it had launched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from perfscope.analyzers import steps as step_times
from perfscope.analyzers.stragglers.lateness import split_steps
from perfscope.analyzers.wall_clock import Ledger, keep_ledgers
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.parts import HostPart, LifePart
from perfscope.measures.step_selection import last_attempts
from perfscope.report import Section
from perfscope.result import PERCENT, Column, Doc, Figures, InUnit, Result, Table, figure
from perfscope.tables.columns import Bool, Int64, present
from perfscope.tables.run import Run
from perfscope.tables.steps import FIRST_STEPS, SLOW, Steps
from perfscope.units import format_count, format_ranges, format_seconds
from perfscope.wire.places import Place

#: What training without perfscope has not.
_PERFSCOPE = (LifePart.WINDOW_START, LifePart.WINDOW_STOP, LifePart.WINDOW_EXPORT, LifePart.HOOKS)
#: What has a cause that somebody may remove.
_NAMED = (
    LifePart.SAVES, LifePart.VALIDATION, LifePart.VALIDATION_WAIT, LifePart.GENERATION, LifePart.COMPILATION,
    LifePart.DATA_WAIT,
)  # fmt: skip
_START_UP = (LifePart.IMPORTS, LifePart.SET_UP, LifePart.BEFORE_FIRST_STEP)
_OUTSIDE = (*_START_UP, LifePart.END)
#: What a step takes by itself, and what nothing explains.
_OWN = (LifePart.STEPS, LifePart.BETWEEN)
#: What belongs to the loop after its last step, too.
_OF_LOOP = (LifePart.VALIDATION, LifePart.GENERATION, LifePart.SAVES)
#: A rhythm is one of so many steps, and is seen so often at least.
_LONGEST_PERIOD, _FEWEST_TURNS = 50, 4
#: This share of a rhythm's steps pauses at least half as long as its longest quarter; of the others at most the rest.
_REGULAR, _LONG_TURN = 0.8, 0.75
#: A rhythm is less likely by chance.
_CHANCE = 1e-4
#: For the search of a rhythm a step takes no more of the median one.
_MOST_WEIGHT = 4
_MOST_SHOWN = 8


class Pauses(Figures, frozen=True):
    """What some steps took beyond the others, for no known reason.

    Attributes:
        lost_ns: What they cost the loop.
    """

    steps: Annotated[tuple[int, ...], Doc("The steps that pause.")]
    period: Annotated[int | None, Doc("Each so many steps one pauses; None without a rhythm.")]
    between: Annotated[bool, Doc("Whether most of it is between two steps, before the forward pass.")]
    usual_ns: int
    each_ns: int
    lost_ns: int
    host: Annotated[HostPart | None, Doc("What the host did in most of that time; None where this was not recorded.")]
    line: Annotated[
        str | None, Doc("Where the training thread was in most of that time; None where it was not seen there.")
    ]
    calls: Annotated[str, Doc("The library's function that this line calls; empty where it calls none.")]
    usual_s = InUnit("usual_ns", NS_PER_S, "The median of the other steps.")
    each_s = InUnit("each_ns", NS_PER_S, "The median pause.")
    s = InUnit("lost_ns", NS_PER_S, "All pauses, without what shorter steps make up for.")

    @property
    def title(self) -> str:
        """How long and how often, where they have a rhythm."""
        rhythm = None if self.period is None else _ordinal(self.period)
        return "" if rhythm is None else f"Pause of {format_seconds(self.each_s)} in every {rhythm} step"

    @property
    def in_words(self) -> str:
        """Where, how long and when."""
        count, where = format_count(len(self.steps), "step"), "between steps" if self.between else "inside of steps"
        when = f"{count}: {format_ranges(self.steps[:_MOST_SHOWN])}{', ...' if len(self.steps) > _MOST_SHOWN else ''}"
        if self.period is not None:
            when = f"every {_ordinal(self.period)} step ({count})"
        line = f", in {self.line}" if self.line is not None else ""
        line += f", which calls {self.calls}" if self.calls else ""
        return f"Pauses {where} of {format_seconds(self.each_s)} in {when}{line}"


class SeenLine(Figures, frozen=True):
    """A line of the script where the training thread was seen, ten times a second, of the usual steps."""

    rank: Annotated[int, Doc("The rank.")]
    place: Annotated[str, Doc("The innermost function of the script, its file and line.")]
    calls: Annotated[str, Doc("The library's function that it called; empty where it ran itself, or slept.")]
    share: Annotated[float, Doc("In how many of the looks into usual steps it was there.")]


class LoopPart(Figures, frozen=True):
    """A part of the loop."""

    part: Annotated[LifePart, Doc("Its key, as in ``results.wall_clock``.")]
    ns: int
    share: Annotated[float, Doc("Its time over the loop's.")]
    s = InUnit("ns", NS_PER_S, "Its time.")


class Loop(Result, frozen=True):
    """``results.loop``: the training loop with everything that is in it.

    ``delays_ns`` is for how long each rank's thread had no processor in a profiled step.
    """

    rank: Annotated[int, Doc("The rank with the longest wall time, of which the loop is shown.")]
    steps: Annotated[int, Doc("Its steps, without the first one.")]
    loop_ns: int
    wall_ns: int
    start: Annotated[
        tuple[LoopPart, ...],
        Doc(
            "What lies before the loop: start-up, the wait for the first batch, the first step; and the compilation of "
            "the first five steps. Shares are of the wall clock."
        ),
    ]
    parts: Annotated[tuple[LoopPart, ...], Doc("What the time went to; the parts add up to it. The largest first.")]
    pauses: Annotated[Pauses | None, Doc("Steps that pause; None where there are none.")]
    samples_per_s: Annotated[
        float | None,
        Doc(
            "Samples of all steps over the wall time without start-up and end. The first step, saves and validations "
            "after the last one, and perfscope's own time are in it, as in what a trainer prints."
        ),
    ]
    tokens_per_s: Annotated[float | None, Doc("Tokens likewise.")]
    lines: Annotated[
        tuple[SeenLine, ...],
        Doc("Where the training thread was seen in usual steps, by rank; of each the eight most frequent ones."),
    ]
    unusual_steps: Annotated[
        tuple[int, ...], Doc("Profiled steps with a save, a validation or a pause: they say nothing of other steps.")
    ]
    unknown_ns: int
    garbage_ns: int
    blocked_ns: int
    delays_ns: Mapping[int, int]
    s = InUnit("loop_ns", NS_PER_S, "The loop: all steps but the first, and everything between them.")
    wall_s = InUnit("wall_ns", NS_PER_S, "The wall clock of this rank.")
    garbage_s = InUnit("garbage_ns", NS_PER_S, "Full collections of Python's garbage in it.")
    blocked_s = InUnit(
        "blocked_ns", NS_PER_S, "For how long its thread sleeps or waits in a median step, for no known reason."
    )
    unknown_s = InUnit("unknown_ns", NS_PER_S, "Time between steps without a known cause, some pauses included.")

    TABLES = (
        Table(
            "Training loop",
            "parts",
            (
                Column("Part", lambda row: row.part.label),
                Column("Time (s)", "s", None, 3),
                Column("Share (%)", "share", PERCENT),
            ),
        ),
        Table(
            "Lines of the training thread",
            "lines",
            (Column("Line", "place"), Column("Calls", "calls"), Column("Share (%)", "share", PERCENT)),
        ),
    )

    @figure
    def step_s(self) -> float:
        """The loop over its steps: a step with everything between it and the next one."""
        return self.s / self.steps

    def time_ns(self, *parts: LifePart) -> int:
        """The time of some parts."""
        return sum(row.ns for row in self.parts if row.part in parts)

    def sections(self) -> tuple[Section, ...]:
        """The parts, and the pauses."""
        notes = [
            f"The loop of rank {self.rank}: {format_count(self.steps, 'step')} after the first one, "
            f"{1000 * self.step_s:.2f} ms each with everything between them. Start-up, the end and perfscope's own "
            "time are beside it."
        ]
        if self.pauses is not None:
            notes.append(f"{self.pauses.in_words}: {self.pauses.s:.2f} s of the loop.")
        parts, lines = self.TABLES
        loop = parts.section(self.parts, notes, totals=[("all", self.s, 100.0)])
        note = "The thread was looked at ten times a second; shares are of the looks into usual steps."
        own = [line for line in self.lines if line.rank == self.rank]
        return (loop, lines.section(own, [note])) if own else (loop,)


def _ordinal(number: int) -> str:
    """A number's place.

    >>> [_ordinal(number) for number in (2, 5, 11, 21)]
    ['2nd', '5th', '11th', '21st']
    """
    teens = 10 < number % 100 < 20  # noqa: PLR2004 - eleventh to nineteenth
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


@dataclass(frozen=True, slots=True, eq=False)
class LoopRecord:
    """The loop of the slowest rank, step by step: ``times`` has each part's time in every step but the first one."""

    ledger: Ledger
    steps: Steps
    times: dict[LifePart, Int64]
    pauses: Pauses | None

    @property
    def step_ns(self) -> Int64:
        """The time of each step with everything in it."""
        return np.asarray(np.sum(list(self.times.values()), axis=0), np.int64)

    @property
    def unnamed_ns(self) -> Int64:
        """Each step without what has a known cause, pauses of the script among it."""
        rest: Int64 = self.step_ns - sum(self.times.get(part, 0) for part in _NAMED)
        pauses = self.pauses
        # The script makes them, by their rhythm or the line where it sleeps or works.
        if pauses and (pauses.period or (pauses.line and pauses.host not in (None, HostPart.NO_PROCESSOR))):
            is_paused = np.isin(self.steps.step[1:], pauses.steps)
            over = np.maximum(rest[is_paused] - pauses.usual_ns, 0)
            rest[is_paused] -= (over * min(pauses.lost_ns / max(int(over.sum()), 1), 1.0)).astype(np.int64)
        return rest


def record_loop(run: Run) -> LoopRecord:
    """The record of the slowest rank's loop; MissingInput where no rank completed two steps."""
    last = {ledger.rank: (ledger, steps) for ledger, steps in keep_ledgers(run) if len(steps) > 1}
    if not last:
        raise MissingInput("no rank completed two training steps")
    ledger, steps = max(last.values(), key=lambda pair: (pair[0].wall_ns, -pair[0].rank))
    times = {part: part_ns[1:] for part, part_ns in ledger.by_step.items() if part not in _PERFSCOPE}
    own = ledger.in_steps(_OWN) - np.ma.filled(steps.garbage_ns, 0)
    usual = _usual(steps)
    if usual.any():  # a profiler slows them: the loop has them as the others are
        typical = int(np.median(own[usual]))
        times[LifePart.WINDOW_STEPS] = np.minimum(times[LifePart.WINDOW_STEPS], typical)
    for part in _OF_LOOP:
        times[part] = np.append(times[part][:-1], times[part][-1:] + ledger.after_steps.get(part, 0))
    times = {part: part_ns for part, part_ns in times.items() if part_ns.any()}
    if not times:
        raise MissingInput("no time of a step was recorded")
    seen = run.places.get(ledger.rank)
    return LoopRecord(
        ledger, steps, times, find_pauses(ledger, steps, own, usual, seen.places if seen is not None else ())
    )


def analyze(run: Run) -> Loop:
    """The loop of the slowest rank; MissingInput where no rank completed two steps."""
    record = record_loop(run)
    ledger, steps, pauses = record.ledger, record.steps, record.pauses
    times = {part: int(part_ns.sum()) for part, part_ns in record.times.items()}
    loop_ns, garbage = sum(times.values()), np.ma.filled(steps.garbage_ns, 0)
    outside_ns = sum(ledger.parts.get(part, 0) for part in _OUTSIDE)
    whole_s, work = (ledger.wall_ns - outside_ns) / NS_PER_S, step_times.analyze(run)

    def rate(per_step: float | None) -> float | None:
        return None if per_step is None else per_step * len(steps) / whole_s

    largest_first = sorted(times.items(), key=lambda item: -item[1])
    parts = split_steps([steps]) if steps.host is not None else None
    return Loop(
        rank=ledger.rank,
        steps=len(steps) - 1,
        loop_ns=loop_ns,
        wall_ns=ledger.wall_ns,
        start=tuple(LoopPart(part, part_ns, part_ns / ledger.wall_ns) for part, part_ns in _find_start(ledger)),
        parts=tuple(LoopPart(part, part_ns, part_ns / loop_ns) for part, part_ns in largest_first),
        pauses=pauses,
        samples_per_s=rate(work.samples_per_step),
        tokens_per_s=rate(work.tokens_per_step),
        lines=tuple(line for rank, seen in sorted(run.places.items()) for line in _list_lines(rank, seen.places)),
        unusual_steps=_unusual_steps(steps, pauses),
        garbage_ns=int(garbage[1:].sum()),
        blocked_ns=0 if parts is None else int(np.median(parts.parts_ns[HostPart.BLOCKED])),
        delays_ns={steps.rank: _find_delay(steps) for steps in last_attempts(run.steps)},
        unknown_ns=int(np.maximum(ledger.by_step[LifePart.BETWEEN] - garbage, 0)[1:].sum()),
    )


def _find_start(ledger: Ledger) -> list[tuple[LifePart, int]]:
    """What lies before the loop, without what perfscope took there."""
    start = {part: ledger.parts.get(part, 0) for part in (*_START_UP, LifePart.FIRST_STEP)}
    for part, steps in ((LifePart.DATA_WAIT, 1), (LifePart.COMPILATION, FIRST_STEPS)):
        in_loop = ledger.by_step[part][ledger.step > steps]
        start[part] = ledger.parts.get(part, 0) - int(in_loop.sum())
    return [(part, part_ns) for part, part_ns in start.items() if part_ns > 0]


def _find_delay(steps: Steps) -> int:
    """For how long other threads and processes had the processor in a mean profiled step."""
    profiled = steps.window == "profiled"
    if steps.host is None or not profiled.any():
        return 0
    return int(np.ma.filled(steps.host.delay_ns, 0)[profiled].mean())


def _usual(steps: Steps) -> Bool:
    """The steps that can be compared with each other; what the end of a window took is not of the step after it."""
    is_after_window = (steps.window == "export") & ~present(steps.save_ns) & ~present(steps.no_grad_ns)
    is_own = steps.is_unstalled | (is_after_window & ~steps.stalled_elsewhere)
    return np.asarray(is_own & ~present(steps.compile_ns), np.bool_)


def find_pauses(ledger: Ledger, steps: Steps, own: Int64, usual: Bool, places: Sequence[Place] = ()) -> Pauses | None:
    """The steps that took longer than the others by themselves; of the first ones those that fit a rhythm.

    ``own`` is what each step took without all that has a name; ``usual`` steps are compared.
    """
    is_settled = usual & (steps.step > FIRST_STEPS)
    if not is_settled.any():
        return None
    # Other processes delay steps by chance: that is asked for where nothing else pauses. They delay pauses, too.
    delay = np.ma.filled(steps.host.delay_ns, 0) if steps.host is not None else np.zeros_like(own)
    excess = own - np.median(own[is_settled])
    found = [_find_pausing(steps.step, times, is_settled) for times in (own - delay, own)]
    pauses, period = max(found, key=lambda each: 0 if each[1] is None else excess[each[0]].sum())
    if not pauses.any():
        pauses, period = found[1]
    if not pauses.any() or pauses[is_settled].all():
        return None
    typical = int(np.median(own[is_settled & ~pauses]))
    if period is not None:
        # A step of the rhythm pauses beside a save, a validation or the end of a window, too.
        is_turn = (steps.step - steps.step[pauses][0]) % period == 0
        pauses |= ~steps.stalled_elsewhere & is_turn & (own > typical)
    over = (own - typical)[pauses]
    is_short = is_settled & (SLOW * own < typical)
    lost = int(over.sum()) - int((typical - own)[is_short].sum())
    if lost <= 0:
        return None
    numbers = steps.step[pauses]
    line = _find_line(places, typical / (typical + int(np.median(over))))
    return Pauses(
        steps=tuple(numbers.tolist()),
        period=period,
        between=bool(2 * ledger.by_step[LifePart.BETWEEN][pauses].sum() > over.sum()),
        usual_ns=typical,
        each_ns=int(np.median(over)),
        lost_ns=lost,
        host=_main_part(steps, numbers, steps.step[is_settled & ~pauses], has_rhythm=period is not None),
        line=None if line is None else line.name,
        calls="" if line is None else line.calls,
    )


def _find_pausing(numbers: Int64, times: Int64, is_settled: Bool) -> tuple[Bool, int | None]:
    """The steps of the rhythm that costs most, and its period; where others cost more, all steps that are slow."""
    slow: Bool = is_settled & (times > SLOW * np.median(times[is_settled]))
    turns, period = np.zeros_like(slow), None
    turns[is_settled], period = _find_rhythm(numbers[is_settled], times[is_settled])
    typical = np.median(times[is_settled & ~turns])
    costs = [(times - typical)[steps].sum() for steps in (turns, slow & ~turns)]
    return (turns, period) if costs[0] > costs[1] else (slow, None)


def _list_lines(rank: int, places: Sequence[Place]) -> list[SeenLine]:
    looks = sum(place.usual for place in places)
    seen = sorted((place for place in places if place.usual and place.function), key=lambda place: -place.usual)
    return [SeenLine(rank, place.name, place.calls, place.usual / looks) for place in seen[:_MOST_SHOWN]]


def _find_line(places: Sequence[Place], usual_share: float) -> Place | None:
    """The line where the training thread was in long steps, and not in others, for most of their excess.

    ``usual_share`` of a long step is what the others take.
    """
    usual, long = (sum(getattr(place, name) for place in places) for name in ("usual", "long"))
    if not usual or not long:
        return None
    over = {place: place.long - usual_share * long * place.usual / usual for place in places}
    most = max(over, key=lambda place: over[place])
    return most if most.function and 2 * over[most] >= (1 - usual_share) * long else None


def _unusual_steps(steps: Steps, pauses: Pauses | None) -> tuple[int, ...]:
    """The profiled steps that are not like the others."""
    is_unusual = present(steps.save_ns) | present(steps.no_grad_ns)
    if pauses is not None and pauses.period is not None:
        is_unusual |= (steps.step - pauses.steps[0]) % pauses.period == 0
    return tuple(steps.step[is_unusual & (steps.window == "profiled")].tolist())


def _find_rhythm(numbers: Int64, times: Int64) -> tuple[Bool, int | None]:
    """The steps that pause in a rhythm, of the rhythm that costs most, and its period.

    From the first one on nearly all steps of a rhythm take long, and few others do. By chance that is rare.
    """
    best, found, most = np.zeros(len(times), np.bool_), None, 0.0
    limited = np.minimum(times, _MOST_WEIGHT * np.median(times))  # one step that takes very long is no rhythm
    for period in range(2, min(_LONGEST_PERIOD, len(times) // _FEWEST_TURNS) + 1):
        phases = numbers % period
        counts = np.maximum(np.bincount(phases, minlength=period), 1)
        turns = phases == np.argmax(np.bincount(phases, limited, period) / counts)
        if turns.all():
            continue
        over = times - np.median(times[~turns])
        is_long = over >= np.quantile(over[turns], _LONG_TURN) / 2
        first = np.argmax(turns & is_long)
        turns[:first] = False
        long_turns, long_others = is_long[turns], is_long[first:][~turns[first:]]
        rate = (long_others.sum() + 1) / (len(long_others) + 1)
        is_regular = long_turns.mean() >= _REGULAR and rate <= 1 - _REGULAR
        cost = float(over[turns].sum())
        if is_regular and len(long_turns) >= _FEWEST_TURNS and rate ** long_turns.sum() < _CHANCE and cost > most:
            best, found, most = turns, period, cost
    return best, found


def _main_part(steps: Steps, paused: Int64, others: Int64, *, has_rhythm: bool) -> HostPart | None:
    """What the host did in the steps that pause, beyond what it does in others; no rhythm is by other programs."""
    parts = split_steps([steps]) if steps.host is not None else None
    if parts is None:
        return None
    is_paused, is_other = np.isin(parts.step, paused), np.isin(parts.step, others)
    if not is_paused.any() or not is_other.any():
        return None
    over = {
        part: float(np.median(times[0][is_paused]) - np.median(times[0][is_other]))
        for part, times in parts.parts_ns.items()
        if not (has_rhythm and part is HostPart.NO_PROCESSOR)
    }
    return max(over, key=lambda part: over[part])
