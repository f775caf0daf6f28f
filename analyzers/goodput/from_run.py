"""The lives of a job from the records of a run: each process of a rank, on the wall clock."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.goodput.lives import Life, Spent
from perfscope.analyzers.wall_clock.ledger import Ledger, Part, keep_ledger, measure_wall
from perfscope.tables.columns import Int64, present
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps

_PLACES = {
    Part.IMPORTS: Spent.START,
    Part.SET_UP: Spent.START,
    Part.BEFORE_FIRST_STEP: Spent.START,
    Part.DATA_WAIT: Spent.STALLS,
    Part.COMPILATION: Spent.COMPILATION,
    Part.VALIDATION: Spent.VALIDATION,
    Part.VALIDATION_WAIT: Spent.VALIDATION,
    Part.GENERATION: Spent.VALIDATION,
    Part.SAVES: Spent.SAVES,
    Part.BETWEEN: Spent.STALLS,
    Part.WINDOW_START: Spent.PROFILING,
    Part.WINDOW_STOP: Spent.PROFILING,
    Part.WINDOW_EXPORT: Spent.PROFILING,
    Part.HOOKS: Spent.PROFILING,
    Part.END: Spent.END,
}
_STEPS = (Part.FIRST_STEP, Part.STEPS, Part.WINDOW_STEPS)
#: What a step takes beyond so many medians is a stall.
_STALL = 3


def find_lives(run: Run) -> list[Life]:
    """The starts of a run's job, each as the rank that it lasted longest for recorded it."""
    timelines = {(timeline.rank, timeline.attempt): timeline for timeline in run.timelines}
    tables = [table for table in run.steps if len(table) and (table.rank, table.attempt) in timelines]
    lives = []
    for attempt in sorted({table.attempt for table in tables}):
        candidates = []
        for table in tables:
            timeline = timelines[table.rank, table.attempt]
            if table.attempt == attempt and timeline.offset_ns is not None:
                candidates.append((measure_wall(timeline, table), timeline, table, timeline.offset_ns))
        if candidates:  # only the longest one is divided: a job may have thousands of ranks
            _, timeline, table, offset_ns = max(candidates, key=lambda row: (row[0], -row[2].rank))
            windows = [w for w in run.windows if (w.rank, w.attempt) == (table.rank, table.attempt)]
            lives.append(_to_life(run, keep_ledger(timeline, table, windows), table, offset_ns))
    return lives


def _to_life(run: Run, ledger: Ledger, table: Steps, offset_ns: int) -> Life:
    step_ns = np.asarray(np.sum([ledger.by_step[part] for part in _STEPS], axis=0), np.int64)
    step_ns, stalls_ns = _take_stalls(step_ns)
    apart_ns = dict.fromkeys(Spent, 0)
    apart_ns[Spent.STALLS] += stalls_ns
    for part, part_ns in ledger.parts.items():
        outside_ns = part_ns - int(ledger.by_step[part].sum())
        if part in _STEPS:
            apart_ns[Spent.START] += outside_ns
        elif part is Part.DATA_WAIT:  # the wait for the first batch is a part of the start
            apart_ns[Spent.START] += outside_ns
            apart_ns[Spent.STALLS] += part_ns - outside_ns
        else:
            apart_ns[_PLACES[part]] += part_ns
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


def _take_stalls(step_ns: Int64) -> tuple[Int64, int]:
    """Take what steps took beyond several medians from them."""
    usual = int(np.median(step_ns)) * _STALL if len(step_ns) else 0
    kept = np.minimum(step_ns, usual) if usual else step_ns
    return kept, int((step_ns - kept).sum())
