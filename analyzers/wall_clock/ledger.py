"""The ledger of one process: every nanosecond of its wall time in exactly one part.

The life of a process is cut at the edges of its steps. A moment that several things claim belongs to the first of: the
boundary between two steps, a checkpoint save, compilation, the wait for the first batch, generation, validation. What
is known as a sum only, the wait for batches, the hooks, is taken from what then remains of its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.tables.columns import Int64, present
from perfscope.tables.run import Window
from perfscope.tables.steps import Steps
from perfscope.tables.timeline import Timeline


class Part(StrEnum):
    """A part of the wall time; the value is its key in JSON."""

    IMPORTS = "imports"
    SET_UP = "set_up"
    BEFORE_FIRST_STEP = "before_first_step"
    FIRST_STEP = "first_step"
    STEPS = "steps"
    DATA_WAIT = "data_wait"
    COMPILATION = "compilation"
    VALIDATION = "validation"
    VALIDATION_WAIT = "validation_data_wait"
    GENERATION = "generation"
    SAVES = "saves"
    BETWEEN = "between_steps"
    WINDOW_STEPS = "window_steps"
    WINDOW_START = "window_start"
    WINDOW_STOP = "window_stop"
    WINDOW_EXPORT = "window_export"
    HOOKS = "hooks"
    END = "end"


#: Parts that are known as intervals, the first that claims a moment has it.
_CLAIMS = (
    (Part.SAVES, "save"),
    (Part.COMPILATION, "compilation"),
    (Part.DATA_WAIT, "first_batch"),
    (Part.GENERATION, "generation"),
    (Part.VALIDATION, "validation"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """The wall time of one process.

    Attributes:
        rank, attempt, host: The process.
        start_ns, end_ns: Its life, on its host's monotonic clock, as far as it was recorded.
        parts: Each part in nanoseconds; they add up to ``wall_ns``. A part that is not there was not recorded.
        step: The numbers of its steps.
        by_step: Each part's time in each step, the boundary before it included, as long as ``step``.
        is_start_known, is_end_known: Whether the process's own start and end were recorded.
        is_first_step_known: Whether the beginning of the first step was seen.
    """

    rank: int
    attempt: int
    host: str | None
    start_ns: int
    end_ns: int
    parts: dict[Part, int]
    step: Int64
    by_step: dict[Part, Int64]
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
        whole = np.zeros(len(self.step), np.int64)
        for column in self.by_step.values():  # in place: a week's columns together are large
            whole += column
        return whole


def keep_ledger(timeline: Timeline, steps: Steps, windows: Sequence[Window]) -> Ledger:
    """Divide the wall time of a process.

    Args:
        timeline: Its life.
        steps: Its steps, at least one.
        windows: Its profiler windows.
    """
    ends = np.maximum.accumulate(steps.end_ns)
    is_first_step_known = bool(present(steps.wall_ns)[0])
    begins = _begins(steps, ends)
    start, end = _life(timeline, begins, ends, is_first_step_known=is_first_step_known)
    by_step = _split_boundaries(steps, windows, begins, ends)
    outside = dict.fromkeys(Part, 0)
    remaining = union(np.asarray([start]), np.asarray([end])) - union(ends[:-1], begins[1:])
    for part, kind in _CLAIMS:
        rows = timeline.spans.kind == kind
        if not rows.any():
            continue
        claimed = union(timeline.spans.start_ns[rows], timeline.spans.end_ns[rows]) & remaining
        remaining = remaining - claimed
        in_steps = _within(claimed, begins, ends)
        _add(by_step, part, in_steps)
        outside[part] += claimed.measure - int(in_steps.sum())
    _take_validation_waits(timeline, by_step, outside, ends)
    _divide_steps(steps, by_step, remaining, begins, ends)
    _divide_start(timeline, outside, remaining, start, int(begins[0] if is_first_step_known else ends[0]))
    outside[Part.END] = remaining.clip(int(ends[-1]), end).measure
    _take_outer_windows(outside, steps, windows)
    parts = {part: outside[part] + int(by_step[part].sum()) for part in Part}
    assert sum(parts.values()) == end - start, "the parts do not add up to the wall time"
    unrecorded = {part for part in _find_unrecorded(timeline, steps) if not parts[part]}
    return Ledger(
        rank=timeline.rank,
        attempt=timeline.attempt,
        host=timeline.host,
        start_ns=start,
        end_ns=end,
        parts={part: wall_ns for part, wall_ns in parts.items() if part not in unrecorded},
        step=steps.step,
        by_step=by_step,
        is_start_known=timeline.started_ns is not None,
        is_end_known=timeline.ended_ns is not None,
        is_first_step_known=is_first_step_known,
    )


def measure_wall(timeline: Timeline, steps: Steps) -> int:
    """The wall time of a process in nanoseconds, as its ledger has it.

    Args:
        timeline: Its life.
        steps: Its steps, at least one.
    """
    ends = np.maximum.accumulate(steps.end_ns)
    is_first_step_known = bool(present(steps.wall_ns)[0])
    start, end = _life(timeline, _begins(steps, ends), ends, is_first_step_known=is_first_step_known)
    return end - start


def _begins(steps: Steps, ends: Int64) -> Int64:
    """When each step began, never before the step before it ended; at that end where it is unknown."""
    previous = np.concatenate([ends[:1], ends[:-1]])
    known = present(steps.begin_ns)
    earliest = np.where(np.arange(len(ends)) == 0, np.iinfo(np.int64).min, previous)
    return np.minimum(np.maximum(np.where(known, steps.begin_ns.data, previous), earliest), ends)


def _life(timeline: Timeline, begins: Int64, ends: Int64, *, is_first_step_known: bool) -> tuple[int, int]:
    """From the process's start, or the first thing that it recorded, to its end, or the last thing."""
    spans = timeline.spans
    moments = [timeline.hooked_ns, timeline.torch_loaded_ns, *spans.start_ns.tolist()]
    first = int(begins[0] if is_first_step_known else ends[0])
    start = min([first, *(moment for moment in moments if moment is not None)])
    if timeline.started_ns is not None:  # a forked process knows moments of its parent, from before its own start
        start = min(timeline.started_ns, first)
    end = max([int(ends[-1]), timeline.ended_ns or 0, *spans.end_ns.tolist()])
    return start, end


def _within(intervals: Intervals, begins: Int64, ends: Int64) -> Int64:
    """How much of some intervals lies in each step; only steps that they reach are looked at."""
    within = np.zeros(len(ends), np.int64)
    if len(intervals):
        first = int(np.searchsorted(ends, intervals.start[0], side="right"))
        last = int(np.searchsorted(begins, intervals.end[-1], side="left"))
        before_begins = intervals.measure_before(begins[first:last])
        within[first:last] = intervals.measure_before(ends[first:last]) - before_begins
    return within


def _add(by_step: dict[Part, Int64], part: Part, amount: Int64) -> None:
    """Add to a part; a part that no step has shares its zeros with others like it."""
    if amount.any():
        by_step[part] = by_step[part] + amount


def _take(rest: Int64, amount: Int64) -> Int64:
    """Take an amount from what remains of each step, at most all of it."""
    taken = np.clip(amount, 0, rest)
    rest -= taken
    return np.asarray(taken, np.int64)


def _split_boundaries(steps: Steps, windows: Sequence[Window], begins: Int64, ends: Int64) -> dict[Part, Int64]:
    """The boundary before each step: what windows took of it, and the hooks; the first step has none."""
    rest = begins - np.concatenate([begins[:1], ends[:-1]])
    by_step = dict.fromkeys(Part, np.broadcast_to(np.int64(0), len(ends)))
    if windows:
        windowed = (Part.WINDOW_START, Part.WINDOW_STOP, Part.WINDOW_EXPORT)
        by_step |= {part: np.zeros(len(ends), np.int64) for part in windowed}
    rows = {int(step): row for row, step in enumerate(steps.step.tolist())} if windows else {}
    for window in windows:
        behind, before = rows.get(window.last_step + 1), rows.get(max(window.first_step - 1, 1))
        stalls = (
            (Part.WINDOW_STOP, behind, window.stop_ns),
            (Part.WINDOW_EXPORT, behind, window.export_ns + (window.release_ns or 0)),
            (Part.WINDOW_START, before, window.start_ns),
        )
        for part, row, stall_ns in stalls:
            if row is not None:
                taken = min(stall_ns, int(rest[row]))
                by_step[part][row] += taken
                rest[row] -= taken
    is_lost = np.asarray(steps.window == "export") & (by_step[Part.WINDOW_STOP] + by_step[Part.WINDOW_EXPORT] == 0)
    _add(by_step, Part.WINDOW_STOP, np.where(is_lost, rest, 0))
    _add(by_step, Part.HOOKS, np.where(is_lost, 0, rest))
    return by_step


def _take_validation_waits(
    timeline: Timeline, by_step: dict[Part, Int64], outside: dict[Part, int], ends: Int64
) -> None:
    """Tell the waits for batches in validations apart, by the steps in which these ended."""
    spans = timeline.spans
    rows = spans.kind == "validation"
    if not rows.any():
        return
    row_of_span = np.searchsorted(ends, spans.end_ns[rows])
    waits = np.bincount(row_of_span, spans.wait_ns[rows], len(ends) + 1).astype(np.int64)
    in_steps = by_step[Part.VALIDATION].copy()
    _add(by_step, Part.VALIDATION_WAIT, _take(in_steps, waits[:-1]))
    by_step[Part.VALIDATION] = in_steps
    taken = min(int(waits[-1]), outside[Part.VALIDATION])
    outside[Part.VALIDATION] -= taken
    outside[Part.VALIDATION_WAIT] += taken


def _divide_steps(steps: Steps, by_step: dict[Part, Int64], remaining: Intervals, begins: Int64, ends: Int64) -> None:
    """Divide what remains of each step: waits for batches, time between steps, hooks, and its own time."""
    before_begins = remaining.measure_before(begins)
    rest = remaining.measure_before(ends) - before_begins
    gap_ns = np.ma.filled(steps.gap_ns, 0)
    gaps = remaining.measure_before(np.minimum(begins + gap_ns, ends)) - before_begins
    _add(by_step, Part.DATA_WAIT, _take(rest, np.ma.filled(steps.data_wait_ns, 0)))
    _add(by_step, Part.BETWEEN, _take(rest, _irregular(gaps, rest, steps)))
    _add(by_step, Part.HOOKS, _take(rest, np.ma.filled(steps.hook_ns, 0) - by_step[Part.HOOKS]))
    in_window = np.isin(steps.window, ("warmup", "profiled"))
    is_first = np.arange(len(ends)) == 0
    for part, rows in (
        (Part.FIRST_STEP, is_first & ~in_window),
        (Part.WINDOW_STEPS, in_window),
        (Part.STEPS, ~is_first & ~in_window),
    ):
        _add(by_step, part, np.where(rows, rest, 0))


def _irregular(gaps: Int64, rest: Int64, steps: Steps) -> Int64:
    """The time ahead of a step's first sign that other steps do not have.

    What a script does in every step, as reading the loss, is a part of the step. What exceeds its median counts where
    it is more than half of a median step.
    """
    usual = steps.steady
    if not usual.any():
        return np.zeros(len(gaps), np.int64)
    excess = gaps - int(np.median(gaps[usual]))
    return np.asarray(np.where(2 * excess > int(np.median(rest[usual])), excess, 0), np.int64)


def _divide_start(
    timeline: Timeline, outside: dict[Part, int], remaining: Intervals, start: int, first_begin: int
) -> None:
    """Divide the time before the first step at what is known of it."""
    hooked = start if timeline.hooked_ns is None else min(max(timeline.hooked_ns, start), first_begin)
    loaded = start if timeline.torch_loaded_ns is None else min(max(timeline.torch_loaded_ns, start), hooked)
    outside[Part.IMPORTS] += remaining.clip(start, loaded).measure
    outside[Part.SET_UP] += remaining.clip(loaded, hooked).measure
    outside[Part.BEFORE_FIRST_STEP] += remaining.clip(hooked, first_begin).measure


def _take_outer_windows(outside: dict[Part, int], steps: Steps, windows: Sequence[Window]) -> None:
    """Tell windows apart that began before the first step or ended behind the last one."""
    first, last = int(steps.step[0]), int(steps.step[-1])
    for window in windows:
        stalls: list[tuple[Part, Part, int]] = []
        if window.first_step - 1 <= first:
            stalls.append((Part.BEFORE_FIRST_STEP, Part.WINDOW_START, window.start_ns))
        if window.last_step >= last:
            stalls.append((Part.END, Part.WINDOW_STOP, window.stop_ns))
            stalls.append((Part.END, Part.WINDOW_EXPORT, window.export_ns + (window.release_ns or 0)))
        for whole, part, stall_ns in stalls:
            taken = min(stall_ns, outside[whole])
            outside[whole] -= taken
            outside[part] += taken


def _find_unrecorded(timeline: Timeline, steps: Steps) -> frozenset[Part]:
    """The parts of which these records say nothing."""
    unrecorded = set()
    if not timeline.records_spans:
        unrecorded = {Part.SET_UP, Part.BEFORE_FIRST_STEP, Part.COMPILATION, Part.BETWEEN}
        unrecorded |= {Part.VALIDATION, Part.VALIDATION_WAIT, Part.GENERATION}
    if timeline.torch_loaded_ns is None:
        unrecorded.add(Part.IMPORTS)
    if timeline.ended_ns is None:
        unrecorded.add(Part.END)
    if not present(steps.wall_ns)[0]:
        unrecorded.add(Part.FIRST_STEP)
    if not present(steps.data_wait_ns).any():
        unrecorded.add(Part.DATA_WAIT)
    return frozenset(unrecorded)
