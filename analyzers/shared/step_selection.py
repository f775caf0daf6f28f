"""Selects the training steps that a figure is over, and their times on the slowest rank.

A step of data-parallel training takes as long as on its slowest rank, so that is the time that figures of a run use.
What disturbs a step on one rank disturbs it on all: they wait for each other. Which steps are undisturbed is decided
here, for every figure alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from perfscope.analyzers.shared.window_effect import Verdict, WindowEffect, compare_sides
from perfscope.constants import NS_PER_S
from perfscope.tables.columns import Bool, Float64, Int64, present
from perfscope.tables.steps import FEWEST_STEPS, Steps

#: Selects steps of a table, as a mask.
Selection: TypeAlias = Callable[[Steps], Bool]


def last_attempts(tables: Sequence[Steps]) -> list[Steps]:
    """The last process of each rank that completed a step: what an elastic restart repeated is not counted twice."""
    last: dict[int, Steps] = {}
    for table in sorted(tables, key=lambda table: (table.rank, table.attempt)):
        if len(table):
            last[table.rank] = table
    return list(last.values())


@dataclass(frozen=True, slots=True, eq=False)
class UndisturbedSteps:
    """The steps whose time is the training's own, by which medians, throughput, MFU and energy are computed.

    Attributes:
        tables: The last process of each rank that completed a step.
        numbers: The undisturbed steps, ascending.
        steady: The steady-state steps, ascending: those behind the first window included, even if it slowed them.
        effect: The steps before the first window and behind it; None without a window.
    """

    tables: tuple[Steps, ...]
    numbers: Int64
    steady: Int64
    effect: WindowEffect | None

    def mask(self, steps: Steps) -> Bool:
        """Where a table has undisturbed steps."""
        return np.isin(steps.step, self.numbers)

    def times_ns(self) -> dict[int, int]:
        """The time of each undisturbed step on its slowest rank, by its number; ascending."""
        numbers, times_ns = _undisturbed_times_ns(self)
        return dict(zip(numbers.tolist(), times_ns.tolist(), strict=True))

    def times_s(self) -> Float64:
        """These times in seconds."""
        return np.asarray(self.slowest_ns() / NS_PER_S, np.float64)

    def slowest_ns(self) -> Int64:
        """These times alone, in the order of the steps: a week has a million."""
        return _undisturbed_times_ns(self)[1]


@lru_cache(maxsize=4)
def _undisturbed_times_ns(steps: UndisturbedSteps) -> tuple[Int64, Int64]:
    return slowest_rank_times_ns(steps.tables, steps.mask)


def find_undisturbed(tables: Sequence[Steps]) -> UndisturbedSteps:
    """Select the steps whose time is the training's own.

    Steady-state steps are those that no start-up, window, checkpoint save or validation affected on any rank. Where a
    window slowed the ones behind it, only those before the first window are undisturbed.
    """
    return _find_undisturbed(tuple(tables))


@lru_cache(maxsize=4)  # several analyzers ask for those of the same run
def _find_undisturbed(tables: tuple[Steps, ...]) -> UndisturbedSteps:
    last = last_attempts(tables)
    steady = _steady_on_all_ranks(last)
    labelled = [int(table.step[table.window != ""].min()) for table in last if (table.window != "").any()]
    if not labelled:
        return UndisturbedSteps(tuple(last), steady, steady, None)
    timed, walls_ns = slowest_rank_times_ns(last, lambda table: np.isin(table.step, steady))
    effect = compare_sides(timed, walls_ns, _kinds(last[0], timed), min(labelled))
    is_slowed = effect.verdict is Verdict.SLOWER
    return UndisturbedSteps(tuple(last), steady[steady < min(labelled)] if is_slowed else steady, steady, effect)


def _merge_sorted(columns: Sequence[Int64]) -> Int64:
    """The numbers of some columns, each once, ascending; a week's are ascending already, so that sorting is quick."""
    if not columns:
        return np.zeros(0, np.int64)
    ordered = np.sort(np.concatenate(columns), kind="stable")
    is_new = np.ones(len(ordered), np.bool_)
    is_new[1:] = np.diff(ordered) > 0
    return np.asarray(ordered[is_new], np.int64)


def _steady_on_all_ranks(tables: Sequence[Steps]) -> Int64:
    """The steps that are steady on every rank; where hardly any are, what some ranks write beside them is allowed."""
    every = _merge_sorted([table.step for table in tables])
    for steady in ([table.is_alone for table in tables], [table.is_unstalled for table in tables]):
        disturbed = [table.step[~rows] for table, rows in zip(tables, steady, strict=True)]
        chosen = every[~np.isin(every, np.concatenate(disturbed))] if disturbed else every
        if len(chosen) >= FEWEST_STEPS:
            return np.asarray(chosen, np.int64)
    return np.asarray(chosen, np.int64)


def _kinds(steps: Steps, numbers: Int64) -> Int64:
    """What each step did, as a number: its micro-batches, and whether it updated the weights."""
    micro_batches = np.ma.filled(steps.micro_batches, 0) * 2 + steps.skipped
    by_step = dict(zip(steps.step.tolist(), micro_batches.tolist(), strict=True))
    return np.asarray([by_step.get(step, -1) for step in numbers.tolist()], np.int64)


def profiled_steps(steps: Steps) -> Bool:
    """Steps inside a window."""
    return np.asarray(steps.window == "profiled")


def steps_after_export(steps: Steps) -> Bool:
    """The step after each export of a trace."""
    return np.asarray(steps.window == "export")


def times_without_stall_s(tables: Sequence[Steps]) -> Float64:
    """The times of the steps that a save stalled, without the stall, in seconds.

    Each on the rank that was stalled longest: the others wait for that one, which is a part of their steps.
    """
    longest: dict[int, tuple[int, int]] = {}
    for table in tables:
        timed = present(table.save_ns) & present(table.wall_ns)
        columns = (table.step, table.save_ns.data, table.wall_ns.data)
        for step, save_ns, wall_ns in zip(*(column[timed].tolist() for column in columns), strict=True):
            longest[step] = max(longest.get(step, (0, 0)), (save_ns, wall_ns))
    return np.asarray([wall_ns for _, wall_ns in longest.values()], np.float64) / NS_PER_S


def steps_beside_save(steps: Steps) -> Bool:
    """Steps that ran while an asynchronous save was writing, and that nothing else affected."""
    is_stalled = present(steps.save_ns) | steps.stalled_elsewhere
    return np.asarray(steps.draining & ~is_stalled & (steps.window == "") & (steps.step > 1))


def slowest_rank_times_ns(tables: Sequence[Steps], selection: Selection) -> tuple[Int64, Int64]:
    """The selected steps, ascending, and the time of each on its slowest rank."""
    timed = [selection(table) & present(table.wall_ns) for table in tables]
    none = np.zeros(0, np.int64)
    steps = np.concatenate([none, *(table.step[rows] for table, rows in zip(tables, timed, strict=True))])
    walls_ns = np.concatenate([none, *(table.wall_ns.data[rows] for table, rows in zip(tables, timed, strict=True))])
    if not len(steps):
        return none, none
    order = np.argsort(steps, kind="stable")
    steps, walls_ns = steps[order], walls_ns[order]
    first = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
    slowest = np.maximum(np.maximum.reduceat(walls_ns, first), 0)
    return np.asarray(steps[first], np.int64), np.asarray(slowest, np.int64)


def slowest_rank_times_s(tables: Sequence[Steps], selection: Selection) -> Float64:
    """The times of the selected steps on their slowest ranks, in seconds."""
    return np.asarray(slowest_rank_times_ns(tables, selection)[1] / NS_PER_S, np.float64)
