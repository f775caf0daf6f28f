"""The lives of a job from the records of a run: each process of a rank, on the wall clock."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.goodput.lives import Life
from perfscope.analyzers.shared.parts import LifePart, Spent
from perfscope.analyzers.wall_clock import Ledger, keep_ledgers
from perfscope.tables.columns import Int64, present
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps

_STEPS = (LifePart.FIRST_STEP, LifePart.STEPS, LifePart.WINDOW_STEPS)
#: What a step takes beyond so many medians is a stall.
_STALL = 3


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
    step_ns = ledger.in_steps(_STEPS)
    step_ns, stalls_ns = _take_stalls(step_ns)
    apart_ns = dict.fromkeys(Spent, 0)
    apart_ns[Spent.STALLS] += stalls_ns
    for part, part_ns in ledger.parts.items():
        outside_ns = part_ns - int(ledger.by_step[part].sum())
        if part in _STEPS:
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


def _take_stalls(step_ns: Int64) -> tuple[Int64, int]:
    usual = int(np.median(step_ns)) * _STALL if len(step_ns) else 0
    kept = np.minimum(step_ns, usual) if usual else step_ns
    return kept, int((step_ns - kept).sum())
