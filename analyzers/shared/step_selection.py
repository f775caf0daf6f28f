"""Selects the training steps that a figure is over, and their times on the slowest rank.

A step of data-parallel training takes as long as on its slowest rank, so that is the time that figures of a run use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.tables.columns import Bool, Float64, present
from perfscope.tables.steps import Steps

#: Selects steps of a table, as a mask.
Selection: TypeAlias = Callable[[Steps], Bool]


def last_attempts(tables: Sequence[Steps]) -> list[Steps]:
    """The last process of each rank that completed a step: what an elastic restart repeated is not counted twice."""
    last: dict[int, Steps] = {}
    for table in sorted(tables, key=lambda table: (table.rank, table.attempt)):
        if len(table):
            last[table.rank] = table
    return list(last.values())


def steady_steps(steps: Steps) -> Bool:
    """Steady-state steps: affected by neither start-up nor a window nor a checkpoint save."""
    return steps.steady


def profiled_steps(steps: Steps) -> Bool:
    """Steps inside a window."""
    return np.asarray(steps.window == "profiled")


def steps_after_export(steps: Steps) -> Bool:
    """The step after each export of a trace."""
    return np.asarray(steps.window == "export")


def steps_with_save(steps: Steps) -> Bool:
    """Steps that a checkpoint save stalled."""
    return present(steps.save_ns)


def steps_beside_save(steps: Steps) -> Bool:
    """Steps that ran while an asynchronous save was writing, and that nothing else affected."""
    is_stalled = present(steps.save_ns) | steps.stalled_elsewhere
    return np.asarray(steps.draining & ~is_stalled & (steps.window == "") & (steps.step > 1))


def slowest_rank_times_ns(tables: Sequence[Steps], selection: Selection) -> dict[int, int]:
    """The time of each selected step on its slowest rank, by the step's number."""
    slowest: dict[int, int] = {}
    for table in tables:
        timed = selection(table) & present(table.wall_ns)
        for step, wall_ns in zip(table.step[timed].tolist(), table.wall_ns.data[timed].tolist(), strict=True):
            slowest[step] = max(slowest.get(step, 0), wall_ns)
    return slowest


def slowest_rank_times_s(tables: Sequence[Steps], selection: Selection) -> Float64:
    """The times of the selected steps on their slowest ranks, in seconds."""
    return np.asarray(list(slowest_rank_times_ns(tables, selection).values()), np.float64) / NS_PER_S
