"""Marked steps, over which ranks are compared, and what else ran in a window.

A window of the profiler does not begin and end with a step: kernels of steps before the first marked one still run when
it opens. Their number differs from rank to rank, so that two ranks are comparable over the same marked steps only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np

from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.result import Doc, Figures, InUnit
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import covered, union
from perfscope.tables.trace import ABSENT, Trace, Work, distinct


class Outside(Figures, frozen=True, array_like=True):
    """What a device did in a window besides its marked steps; the fields are nanoseconds.

    The window is ``before + after + between`` and the union of the windows of its steps.
    """

    before: int
    after: int
    between: int
    busy: int
    device_events: Annotated[int, Doc("How many events were launched in no marked step.")]
    steps: Annotated[float | None, Doc("How many steps' kernels they are; None where no kernel tells it.")]
    before_us = InUnit("before", NS_PER_US, "From the first device event to the first one of a marked step.")
    after_us = InUnit("after", NS_PER_US, "From the last event of a marked step to the last one of the window.")
    between_us = InUnit("between", NS_PER_US, "Between the windows of steps.")
    busy_us = InUnit("busy", NS_PER_US, "Time that events cover which were launched in no marked step.")

    def plus(self, addend: Outside) -> Outside:
        """That of two windows."""
        counts = [outside.steps for outside in (self, addend) if outside.steps is not None]
        return Outside(
            before=self.before + addend.before,
            after=self.after + addend.after,
            between=self.between + addend.between,
            busy=self.busy + addend.busy,
            device_events=self.device_events + addend.device_events,
            steps=sum(counts) if counts else None,
        )

    def sentence(self) -> str:
        """What it is, in words."""
        steps = "" if self.steps is None else f" of about {self.steps:.1f} steps"
        return (
            f"{self.device_events} device events{steps} outside marked steps, busy for {self.busy / NS_PER_MS:.2f} ms "
            f"({self.before / NS_PER_MS:.2f} ms of the window are before the first marked step, "
            f"{self.after / NS_PER_MS:.2f} ms after the last one)"
        )


def measure_outside(trace: Trace, rows: Bool) -> Outside | None:
    """What ran besides marked steps on the device whose events are ``rows``; None where none was launched in one."""
    events, is_marked = trace.device, rows & (trace.step != ABSENT)
    if not is_marked.any():
        return None
    start, end = events.start_ns, events.end_ns
    steps, inverse = np.unique(trace.step[is_marked], return_inverse=True)
    first, last = np.full(len(steps), np.iinfo(np.int64).max), np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, inverse, start[is_marked])
    np.maximum.at(last, inverse, end[is_marked])
    is_outside = rows & (trace.step == ABSENT)
    return Outside(
        before=int(first.min() - start[rows].min()),
        after=int(end[rows].max() - last.max()),
        between=int(last.max() - first.min()) - union(first, last).measure,
        busy=covered(events, is_outside).measure,
        device_events=int(is_outside.sum()),
        steps=_count_steps(trace, is_outside, is_marked, inverse, len(steps)),
    )


def _count_steps(trace: Trace, is_outside: Bool, is_marked: Bool, step: Int64, steps: int) -> float | None:
    names, computes = len(trace.names), trace.device.work == Work.COMPUTE
    of_marked = computes[is_marked]
    keys = step[of_marked] * names + trace.device.name[is_marked][of_marked]
    in_steps = np.bincount(keys, minlength=steps * names).reshape(steps, names)
    is_regular = (in_steps[0] > 0) & (in_steps == in_steps[0]).all(axis=0)
    per_step = int(in_steps[0][is_regular].sum())
    if not per_step:
        return None
    counted = np.bincount(trace.device.name[is_outside & computes], minlength=names)
    return round(int(counted[is_regular].sum()) / per_step, 1)


def in_steps(trace: Trace) -> tuple[Bool, int]:
    """Which device events are in marked steps, and how many steps these are; all, and 0, where none is marked."""
    if not len(trace.steps):
        return np.ones(len(trace.device), np.bool_), 0
    inside = np.asarray(trace.step != ABSENT, np.bool_)
    return inside, len(distinct(trace.step[inside]))


def rows_by_step(trace: Trace, rows: Bool) -> dict[int, Int64]:
    """For each marked step, a row of ``trace.steps``, its device events among some, in their order."""
    steps = np.where(rows, trace.step, ABSENT)
    return {step: np.flatnonzero(steps == step) for step in distinct(steps[steps != ABSENT])}


def describe_mean(steps: int) -> str:
    """What a mean over some steps is of, in words; 0 are the whole trace."""
    return f"a mean of {steps} steps" if steps > 1 else "one step" if steps else "the whole trace"


def step_number(name: str) -> int:
    """The number in the name of a step, or ABSENT.

    >>> step_number("ProfilerStep#12")
    12
    """
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdecimal() else ABSENT


def step_numbers(trace: Trace) -> Int64:
    """For each device event the number of the profiler step that launched it, or ABSENT."""
    numbers = [step_number(trace.names[name]) for name in trace.steps.name]
    return np.array([*numbers, ABSENT], np.int64)[trace.step]


def common_steps(steps: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The steps that all of some ranks marked, in order."""
    common: set[int] | None = None
    for numbers in steps:
        common = set(numbers) if common is None else common.intersection(numbers)
    return tuple(sorted(common or ()))
