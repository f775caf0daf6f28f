"""Selects the training steps that a figure is over, and gives the job's time of each.

Hosts run ahead of their devices by amounts that change from step to step, so that one step of one rank is longer or
shorter than the job's. Ranks of a job cannot drift apart: over many steps the times of every rank have the same sum.
A step of the job begins where it begins on the last rank, and ends where it ends on the last one: that host is least
ahead. These times have the same sum. The longest of the ranks has not: it is up to 13 % too long. Where hosts have
clocks of their own, the last rank is one of the host whose clock is highest, which is as good.
What disturbs a step on one rank disturbs it on all, because they wait for each other. Which steps are undisturbed is
decided here, for every figure alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.measures.statistics import mean
from perfscope.measures.window_effect import Effect, WindowEffect, compare_sides
from perfscope.report import in_unit
from perfscope.tables.columns import Bool, Float64, Int64, present
from perfscope.tables.steps import FEWEST_STEPS, Steps

#: Why a figure is absent.
TOO_FEW_STEPS = (
    f"fewer than {FEWEST_STEPS} steady-state steps: start-up, windows, saves or validations affected the others"
)

#: Selects steps of a table, as a mask.
Selection: TypeAlias = Callable[[Steps], Bool]

#: Buffers, caches and the queue of launches still fill in the step after the first one.
_STARTING = 2
#: A host that waits for nothing is this much quicker than the usual step at least.
_AHEAD = 0.5
#: Where as many steps are short, the training has short steps.
_MOST_AHEAD = 0.4


def last_attempts(tables: Sequence[Steps]) -> list[Steps]:
    """The last process of each rank that completed a step: what an elastic restart repeated is not counted twice."""
    last: dict[int, Steps] = {}
    for table in sorted(tables, key=lambda table: (table.rank, table.attempt)):
        if len(table):
            last[table.rank] = table
    return list(last.values())


@dataclass(frozen=True, slots=True, eq=False)
class UndisturbedSteps:
    """The steps whose time is the training's own, by which step time, throughput, MFU and energy are computed.

    ``numbers`` is empty where they are too few for any figure. ``steady`` are the steady-state steps, also those that a
    window slowed. In ``ahead`` steps that are left out hosts only ran ahead of their devices.
    """

    tables: tuple[Steps, ...]
    numbers: Int64
    job_ns: Int64
    steady: Int64
    effect: WindowEffect | None
    ahead: int = 0

    def mask(self, steps: Steps) -> Bool:
        """Where a table has undisturbed steps."""
        return np.isin(steps.step, self.numbers)

    def times_ns(self) -> dict[int, int]:
        """The job's time of each undisturbed step, by its number; ascending."""
        return dict(zip(self.numbers.tolist(), self.job_ns.tolist(), strict=True))

    def times_s(self) -> Float64:
        """These times in seconds, in the order of the steps."""
        return np.asarray(self.job_ns / NS_PER_S, np.float64)

    def step_time_s(self) -> float | None:
        """The job's step time: the sum of these times over their number; None where there are too few."""
        return in_unit(mean(self.job_ns), NS_PER_S)


def find_undisturbed(tables: Sequence[Steps]) -> UndisturbedSteps:
    """Select the steps whose time is the training's own.

    Steady-state steps are those that no start-up, window, checkpoint save or validation affected on any rank. Where a
    window slowed the ones after it, only those before the first window are undisturbed. Fewer than ``FEWEST_STEPS``
    give no figure.
    """
    return _find_undisturbed(tuple(tables))


@lru_cache(maxsize=4)  # several analyzers ask for those of the same run
def _find_undisturbed(tables: tuple[Steps, ...]) -> UndisturbedSteps:
    last = last_attempts(tables)
    timed = _steady_on_all_ranks(last)
    steady, walls_ns = job_times_ns(last, lambda table: np.isin(table.step, timed))
    is_ahead = _runs_ahead(last, steady, walls_ns)
    steady, walls_ns = steady[~is_ahead], walls_ns[~is_ahead]
    is_chosen, effect = np.ones(len(steady), np.bool_), None
    labelled = [int(table.step[table.window != ""].min()) for table in last if (table.window != "").any()]
    if labelled:
        effect = compare_sides(steady, walls_ns, _kinds(last[0], steady), min(labelled))
        if effect.verdict is Effect.SLOWER:
            is_chosen = steady < min(labelled)
    if is_chosen.sum() < FEWEST_STEPS:
        is_chosen[:] = False
    return UndisturbedSteps(tuple(last), steady[is_chosen], walls_ns[is_chosen], steady, effect, int(is_ahead.sum()))


def _steps_of_all(tables: Sequence[Steps]) -> Int64:
    timed = [np.zeros(0, np.int64), *(table.step[present(table.wall_ns)] for table in tables)]
    steps, ranks = np.unique(np.concatenate(timed), return_counts=True)
    return np.asarray(steps[ranks == len(tables)], np.int64)


def _steady_on_all_ranks(tables: Sequence[Steps]) -> Int64:
    """The steps that are steady on every rank; where hardly any are, what happens in some of them is allowed."""
    every = _steps_of_all(tables)
    alone = every[~_is_disturbed(every, [table.step[~table.is_alone] for table in tables])]
    unstalled = every[~_is_disturbed(every, [table.step[~table.is_unstalled] for table in tables])]
    for chosen in (alone[alone > _STARTING], alone):
        if len(chosen) >= FEWEST_STEPS:
            return chosen
    return unstalled


def _is_disturbed(every: Int64, disturbed: Sequence[Int64]) -> Bool:
    return np.isin(every, np.concatenate(disturbed)) if disturbed else np.zeros(len(every), np.bool_)


def _runs_ahead(tables: Sequence[Steps], numbers: Int64, walls_ns: Int64) -> Bool:
    """Where hosts only ran ahead of their devices: after a start or a wait they fill the queue of launches.

    These steps do the usual work, follow a break or each other, and are far shorter than the others. No longer steps
    make up for them, as they do where a host waits for its device in every tenth step.
    """
    none = np.zeros(len(walls_ns), np.bool_)
    if not len(walls_ns) or not any(table.memory_peak_bytes.count() for table in tables):
        return none
    usual_ns = np.median(walls_ns)
    kinds, counts = np.unique(kind := _kinds(tables[0], numbers), return_counts=True)
    short = (walls_ns < _AHEAD * usual_ns) & (kind == kinds[counts.argmax()])
    follows = np.diff(numbers) == 1
    of_run = np.concatenate([[True], ~follows])  # the first after a break
    of_run[1:] |= follows & short[:-1]
    of_run[:-1] |= follows & short[1:]
    filling = short & of_run
    lacking_ns = (usual_ns - walls_ns[filling]).sum()
    made_up_ns = (walls_ns - usual_ns)[walls_ns > (2 - _AHEAD) * usual_ns].sum()
    is_filling = filling.sum() < _MOST_AHEAD * len(short) and made_up_ns < lacking_ns / 2
    return np.asarray(filling if is_filling else none, np.bool_)


def _kinds(steps: Steps, numbers: Int64) -> Int64:
    micro_batches = np.ma.filled(steps.micro_batches, 0) * 2 + steps.skipped
    by_step = dict(zip(steps.step.tolist(), micro_batches.tolist(), strict=True))
    return np.asarray([by_step.get(step, -1) for step in numbers.tolist()], np.int64)


def profiled_steps(steps: Steps) -> Bool:
    """Steps inside a window."""
    return np.asarray(steps.window == "profiled")


def steps_after_export(steps: Steps) -> Bool:
    """The step after each export of a trace."""
    return np.asarray(steps.window == "export")


def job_times_ns(tables: Sequence[Steps], selection: Selection) -> tuple[Int64, Int64]:
    """The selected steps, ascending, and the job's time of each: from its latest begin on a rank to its latest end."""
    timed = [(table, selection(table) & present(table.wall_ns)) for table in tables]
    none = np.zeros(0, np.int64)
    steps = np.concatenate([none, *(table.step[rows] for table, rows in timed)])
    ends_ns = np.concatenate([none, *(table.end_ns[rows] for table, rows in timed)])
    walls_ns = np.concatenate([none, *(table.wall_ns.data[rows] for table, rows in timed)])
    if not len(steps):
        return none, none
    order = np.argsort(steps, kind="stable")
    steps, ends_ns, walls_ns = steps[order], ends_ns[order], np.maximum(walls_ns[order], 0)
    numbers, first = np.unique(steps, return_index=True)
    times_ns = np.maximum.reduceat(ends_ns, first) - np.maximum.reduceat(ends_ns - walls_ns, first)
    return np.asarray(numbers, np.int64), np.asarray(times_ns, np.int64)


def job_times_s(tables: Sequence[Steps], selection: Selection) -> Float64:
    """The job's times of the selected steps, in seconds."""
    return np.asarray(job_times_ns(tables, selection)[1] / NS_PER_S, np.float64)
