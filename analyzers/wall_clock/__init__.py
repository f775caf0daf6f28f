"""Where all of the wall time of a run went: every nanosecond of each rank's process in one part, and the slowest steps.

The wall time of a rank runs from the start of its process to its end, as far as both were recorded. Parts add up to it
exactly. Ranks of one job have different wall times. The ranks with the longest and the median one are shown, and all of
them are in JSON.
"""

from __future__ import annotations

from perfscope.analyzers.shared.step_selection import last_attempts
from perfscope.analyzers.wall_clock.ledger import Ledger, keep_ledger
from perfscope.analyzers.wall_clock.result import WallClock
from perfscope.analyzers.wall_clock.slowest import find_slowest_steps
from perfscope.errors import MissingInput
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps


def analyze(run: Run) -> WallClock:
    """Divide the wall time of every process that completed a step.

    Raises:
        MissingInput: No rank completed a training step.
    """
    ledgers = _keep_ledgers(run)
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


def _keep_ledgers(run: Run) -> list[tuple[Ledger, Steps]]:
    timelines = {(timeline.rank, timeline.attempt): timeline for timeline in run.timelines}
    return [
        (
            keep_ledger(
                timelines[table.rank, table.attempt],
                table,
                [window for window in run.windows if (window.rank, window.attempt) == (table.rank, table.attempt)],
            ),
            table,
        )
        for table in sorted(run.steps, key=lambda table: (table.rank, table.attempt))
        if len(table) and (table.rank, table.attempt) in timelines
    ]
