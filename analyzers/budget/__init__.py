"""Analyzer: what a step's time is made of, kernel by kernel and cause by cause; the terms add up to the step exactly.

It is what ``perfscope compare`` compares. Unlike ``breakdown`` it counts the time between steps, and it names the
kernels, axes, copies and causes: each moment of a step belongs to one of them
(``perfscope.analyzers.budget.device``, and ``host`` for traces without a GPU).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.budget.device import measure_device
from perfscope.analyzers.budget.host import measure_host
from perfscope.analyzers.budget.result import Budget, mean_budget
from perfscope.analyzers.budget.terms import StepBudget
from perfscope.errors import MissingInput
from perfscope.tables.trace import Trace, distinct


def measure(trace: Trace) -> tuple[StepBudget, ...] | None:
    """The budgets of one trace's devices, or of its host; None where it contains neither events nor operators."""
    if len(trace.device):
        return tuple(measure_device(trace, device) for device in distinct(trace.device.device))
    of_host = measure_host(trace)
    return None if of_host is None else (of_host,)


def analyze(partials: Sequence[tuple[StepBudget, ...]]) -> Budget:
    """The mean budget of all ranks.

    Raises:
        MissingInput: The traces contain nothing to measure, or some have device events and some have none.
    """
    budgets = [budget for partial in partials for budget in partial]
    if not budgets:
        raise MissingInput("the traces contain neither device events nor operators")
    if len({budget.device is None for budget in budgets}) > 1:
        raise MissingInput("some traces contain device events, and others none")
    return mean_budget(budgets)
