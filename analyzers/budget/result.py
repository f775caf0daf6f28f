"""The budget of a step over all ranks: mean times in whole nanoseconds that add up to the mean step exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.budget.terms import KINDS, Kernel, Launches, Operation, StepBudget, Term
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Column, Json, Section, first_rows, percent_of
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import ABSENT

_MOST_ROWS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """What a mean step's time is made of.

    Attributes:
        step_ns: The mean step, over ranks and steps.
        terms: The mean of each term; they add up to ``step_ns`` exactly.
        by_step: Each term's mean over ranks in each step, in nanoseconds.
        steps: Their numbers; empty where no step is marked.
        ranks: Devices, or hosts, that the means are over.
        activities: What the times are of: see ``Trace``.
        is_of_host: Whether it is the budget of hosts, because the traces contain no device events.
        kernels: Launches of each kernel a step and rank, times 1000, and its mean time a step in nanoseconds.
        operations: Matrix products a step and rank, times 1000.
    """

    step_ns: int
    terms: Mapping[Term, int]
    by_step: Mapping[Term, Float64]
    steps: tuple[int, ...]
    ranks: int
    activities: str
    is_of_host: bool
    kernels: Mapping[Kernel, Launches]
    operations: Mapping[Operation, int]

    def __post_init__(self) -> None:
        assert sum(self.terms.values()) == self.step_ns, "the terms of a mean step add up to it"

    def total(self, kind: str) -> int:
        """The mean time of all terms of a kind."""
        return sum(ns for term, ns in self.terms.items() if term.kind == kind)

    def data(self) -> Json:
        """``results.budget``."""
        return {
            "step_us": self.step_ns / NS_PER_US,
            "steps": list(self.steps),
            "ranks": self.ranks,
            "terms": [
                {"kind": term.kind, "name": term.name, "operator": term.operator or None, "us": ns / NS_PER_US}
                for term, ns in sorted_terms(self.terms)
            ],
        }

    def sections(self) -> tuple[Section, ...]:
        """The terms, the largest first."""
        columns = (Column("Term"), Column("Name"), Column("Per step (ms)", 3), Column("Of the step (%)"))
        rows = [
            (term.kind, describe_name(term), ns / NS_PER_MS, percent_of(ns, self.step_ns))
            for term, ns in sorted_terms(self.terms)
        ]
        shown, left_out = first_rows(rows, _MOST_ROWS)
        steps = f"{len(self.steps)} marked steps" if self.steps else "the whole window"
        note = (
            f"Means over {steps} and {self.ranks} ranks; the terms add up to the step exactly. A step lasts from the "
            "end of the work of the step before to the end of its own."
        )
        return (Section("Budget of a step", columns, shown, (note, *left_out)),)


def describe_name(term: Term) -> str:
    """A term's name for a table, with the operator where it is known."""
    name = short_name(term.name)
    return f"{term.operator}: {name}" if term.operator else name


def sorted_terms(terms: Mapping[Term, int]) -> list[tuple[Term, int]]:
    """The terms, those with the largest absolute times first."""
    return sorted(terms.items(), key=lambda item: (-abs(item[1]), KINDS.index(item[0].kind), item[0]))


def mean_budget(budgets: Sequence[StepBudget]) -> Budget:
    """The mean budget of the steps that all devices have; of all steps where they have none in common."""
    numbers = _step_numbers(budgets)
    place = {number: index for index, number in enumerate(numbers)}
    counts = np.zeros(len(numbers), np.int64)
    sums: dict[Term, Int64] = {}
    for budget in budgets:
        steps = budget.steps or (ABSENT,)
        rows = [row for row, number in enumerate(steps) if number in place]
        places = [place[steps[row]] for row in rows]
        np.add.at(counts, places, 1)
        for term, times in budget.terms.items():
            np.add.at(sums.setdefault(term, np.zeros(len(numbers), np.int64)), places, times[rows])
    terms = sorted(sums)
    means = apportion([int(sums[term].sum()) for term in terms], int(counts.sum()))
    return Budget(
        step_ns=sum(means),
        terms={term: mean for term, mean in zip(terms, means, strict=True) if mean},
        by_step={term: sums[term] / counts for term in terms},
        steps=tuple(number for number in numbers if number != ABSENT),
        ranks=len(budgets),
        activities=budgets[0].activities,
        is_of_host=all(budget.device is None for budget in budgets),
        kernels=_mean_kernels(budgets),
        operations=_mean_operations(budgets),
    )


def _step_numbers(budgets: Sequence[StepBudget]) -> list[int]:
    """The steps that are counted, in order; ABSENT alone where none is marked."""
    common = set.intersection(*(set(budget.steps) for budget in budgets))
    return sorted(common) or sorted({number for budget in budgets for number in budget.steps or (ABSENT,)})


def apportion(totals: Sequence[int], count: int) -> list[int]:
    """Each total over a count as a whole number, so that they add up to the whole over the count, rounded down.

    >>> apportion([5, 5, 1], 2)
    [2, 3, 0]
    """
    means, running, before = [], 0, 0
    for total in totals:
        running += total
        means.append(running // count - before)
        before = running // count
    return means


def _mean_kernels(budgets: Sequence[StepBudget]) -> dict[Kernel, Launches]:
    calls: Counter[Kernel] = Counter()
    total_ns: Counter[Kernel] = Counter()
    for budget in budgets:
        for kernel, launches in budget.kernels.items():
            calls[kernel] += launches.calls
            total_ns[kernel] += launches.total_ns
    count = sum(len(budget.steps) or 1 for budget in budgets)
    return {kernel: Launches(calls[kernel] * 1000 // count, total_ns[kernel] // count) for kernel in calls}


def _mean_operations(budgets: Sequence[StepBudget]) -> dict[Operation, int]:
    counts: Counter[Operation] = Counter()
    for budget in budgets:
        counts.update(budget.operations)
    return {operation: count // len(budgets) for operation, count in counts.items()}
