"""What the change of a step is made of: the terms of both budgets, the clocks, perfscope's own cost, and what is left.

The terms' changes add up to the change of the profiled step exactly. The change to explain is that of the undisturbed
steps; profiled steps are slower, on both sides by not quite the same. Where the hooks' times of the profiled steps
agree with the traces', or are shorter because the host runs ahead of its device, that difference is perfscope's own
cost; else it stays unexplained. All times
are whole nanoseconds, and terms and ``unexplained`` add up to the change exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import hypot

import numpy as np

from perfscope.analyzers.budget.result import Budget, apportion
from perfscope.analyzers.budget.terms import COMPUTE, KINDS, Term
from perfscope.analyzers.comparison.change import CONFIDENCE, Change, welch_half_width
from perfscope.analyzers.comparison.side import Side
from perfscope.constants import NS_PER_S
from perfscope.tables.columns import Float64

CLOCKS, OWN_COST = "clocks", "perfscope"
#: Host and device agree on the time of profiled steps up to this share; else the host runs ahead of the device.
_SAME_TIME = 0.05
#: Ends of steps that scatter make a window as long or short by so many standard deviations of single steps, at most.
_SCATTER = 4
#: A smaller difference of clocks is noise of the samples.
_LEAST_CLOCK_CHANGE = 0.005


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term on both sides, in nanoseconds of a step.

    Attributes:
        term: The term; its kind is also ``clocks`` or ``perfscope``.
        a_ns, b_ns: Its time on each side; absent for a term that is a difference alone.
        change_ns: By how much it changed the step.
        interval_ns: Of that; absent where the steps are too few.
    """

    term: Term
    a_ns: int | None
    b_ns: int | None
    change_ns: int
    interval_ns: tuple[int, int] | None

    @property
    def is_certain(self) -> bool:
        """Whether 0 lies outside the interval."""
        return self.interval_ns is not None and (self.interval_ns[0] > 0 or self.interval_ns[1] < 0)


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """The budget of a change.

    Attributes:
        change_ns: What is explained: the change of the step.
        explains: Which steps that is of, in words.
        terms: The terms, those with the largest changes first.
        unexplained_ns: The rest: ``change_ns`` is the sum of the terms and this.
        unexplained_interval_ns: Of that, by how profiled and undisturbed steps vary; absent of a single profiled step.
        step_ns: A's step, for shares.
        notes: What a reader must know.
    """

    change_ns: int
    explains: str
    terms: tuple[TermChange, ...]
    unexplained_ns: int
    unexplained_interval_ns: tuple[int, int] | None
    step_ns: int
    notes: tuple[str, ...]

    @property
    def traced_ns(self) -> int:
        """What the traces show of the change: kernels, communication, copies, idle time and clocks.

        The other term is how the profiled steps of each side differ from its undisturbed ones, which no event shows.
        """
        return sum(term.change_ns for term in self.terms if term.term.kind != OWN_COST)

    def __post_init__(self) -> None:
        assert sum(term.change_ns for term in self.terms) + self.unexplained_ns == self.change_ns


def compare_budgets(
    a: Side, b: Side, step: Change | None, factor: float, confidence: float = CONFIDENCE
) -> BudgetChange | None:
    """The budget of the change of a step; None where a side has none.

    ``factor`` is how much of B's step is compared.
    """
    if a.budget is None or b.budget is None:
        return None
    first, second = _at_one_level(a.budget, b.budget)
    second = _scaled(second, factor)
    terms = [_change(term, first, second, confidence) for term in sorted({*first.terms, *second.terms}, key=_order)]
    notes: list[str] = []
    if factor == 1:
        terms += _clock_terms(a, b, first, second, terms, notes)
    change_ns, explains = second.step_ns - first.step_ns, "the profiled steps"
    if not (a.is_profiled or b.is_profiled) and a.step_time_s is not None and b.step_time_s is not None:
        times_ns = [round(side.step_time_s.centre * NS_PER_S) for side in (a, b) if side.step_time_s]
        change_ns, explains = round(times_ns[1] * factor) - times_ns[0], "the undisturbed steps"
        profiled = [_profiled(side) for side in (a, b)]
        if profiled[0] is not None and profiled[1] is not None:
            terms += _own_cost((profiled[0], profiled[1]), (times_ns[0], times_ns[1]), factor, confidence)
        else:
            notes.append(
                f"The hooks' times of the profiled steps are unknown, or longer than those of the traces by more than "
                f"{_SAME_TIME:.0%}: perfscope's own cost is not known apart, but part of what is unexplained."
            )
    ordered = sorted((term for term in terms if term.change_ns or term.a_ns), key=lambda term: -abs(term.change_ns))
    return BudgetChange(
        change_ns=change_ns,
        explains=explains,
        terms=tuple(ordered),
        unexplained_ns=(unexplained_ns := change_ns - sum(term.change_ns for term in ordered)),
        unexplained_interval_ns=_unexplained_interval(unexplained_ns, first, second, step, confidence),
        step_ns=first.step_ns,
        notes=(*_describe(a.budget, b.budget), *notes),
    )


def _unexplained_interval(
    unexplained_ns: int, a: Budget, b: Budget, step: Change | None, confidence: float
) -> tuple[int, int] | None:
    """What chance alone makes of the rest: the profiled steps are a few, and the undisturbed ones vary, too."""
    if not unexplained_ns:
        return 0, 0
    periods = [sum(budget.by_step.values(), np.zeros(1)) for budget in (a, b)]
    interval = _interval(0, periods[0], periods[1], confidence)
    if interval is None or step is None or step.interval is None:
        return None
    of_step_ns = (step.interval[1] - step.interval[0]) / 2 * step.a * NS_PER_S
    half = hypot(interval[1], of_step_ns)
    return round(unexplained_ns - half), round(unexplained_ns + half)


def _order(term: Term) -> tuple[int, str, str]:
    return KINDS.index(term.kind), term.name, term.operator


def _describe(a: Budget, b: Budget) -> tuple[str, ...]:
    steps = [f"{len(budget.steps) or 1} of {'A' if budget is a else 'B'}" for budget in (a, b)]
    notes = [
        f"Terms are means over profiled steps ({', '.join(steps)}) and ranks; their intervals are Welch's over these "
        "steps, and cover no variation between runs."
    ]
    if a.activities != b.activities:
        kinds = " and ".join(budget.activities or "unknown" for budget in (a, b))
        notes.append(f"The windows differ ({kinds}): a window with operators slows the host more than a light one.")
    return tuple(notes)


def _at_one_level(a: Budget, b: Budget) -> tuple[Budget, Budget]:
    """Both budgets in the terms that both have: without operators, or by kind alone, where one side has no more."""
    has_names = [any(term.name for term in budget.terms) for budget in (a, b)]
    has_operators = [any(term.operator for term in budget.terms) for budget in (a, b)]
    if not all(has_names):
        return _folded(a, lambda term: Term(term.kind)), _folded(b, lambda term: Term(term.kind))
    if not all(has_operators):
        return _folded(a, lambda term: term._replace(operator="")), _folded(b, lambda term: term._replace(operator=""))
    return a, b


def _folded(budget: Budget, fold: Callable[[Term], Term]) -> Budget:
    terms: dict[Term, int] = {}
    by_step: dict[Term, Float64] = {}
    for term, ns in budget.terms.items():
        terms[fold(term)] = terms.get(fold(term), 0) + ns
    for term, times in budget.by_step.items():
        by_step[fold(term)] = by_step[fold(term)] + times if fold(term) in by_step else times
    return replace(budget, terms=terms, by_step=by_step)


def _scaled(budget: Budget, factor: float) -> Budget:
    """A budget of another amount of work."""
    if factor == 1:
        return budget
    names = sorted(budget.terms)
    scale = 10**9
    means = apportion([budget.terms[term] * round(factor * scale) for term in names], scale)
    return replace(
        budget,
        terms=dict(zip(names, means, strict=True)),
        step_ns=sum(means),
        by_step={term: times * factor for term, times in budget.by_step.items()},
    )


def _change(term: Term, a: Budget, b: Budget, confidence: float) -> TermChange:
    a_ns, b_ns = a.terms.get(term, 0), b.terms.get(term, 0)
    return TermChange(term, a_ns, b_ns, b_ns - a_ns, _interval(b_ns - a_ns, *_series(term, a, b), confidence))


def _series(term: Term, a: Budget, b: Budget) -> tuple[Float64, Float64]:
    first, second = (budget.by_step.get(term, np.zeros(max(len(budget.steps), 1))) for budget in (a, b))
    return first, second


def _interval(change_ns: int, a: Float64, b: Float64, confidence: float) -> tuple[int, int] | None:
    """Welch's interval of a term's change; None of a single step."""
    half = welch_half_width(a.tolist(), b.tolist(), confidence) if min(len(a), len(b)) > 1 else None
    return None if half is None else (round(change_ns - half), round(change_ns + half))


def _clock_terms(
    a: Side, b: Side, first: Budget, second: Budget, terms: list[TermChange], notes: list[str]
) -> list[TermChange]:
    """The part of the changes of the same kernels that other clocks explain, taken out of their terms."""
    if a.clock_mhz is None or b.clock_mhz is None or not a.clock_mhz or not b.clock_mhz:
        return []
    ratio = a.clock_mhz / b.clock_mhz
    if abs(ratio - 1) < _LEAST_CLOCK_CHANGE:
        return []
    same = _same_work(first, second)
    total = most = 0
    for index, change in enumerate(terms):
        if change.term.kind != COMPUTE or change.term.name not in same or change.a_ns is None:
            continue
        expected = round(change.a_ns * (ratio - 1))
        part = max(min(change.change_ns, expected), 0) if expected > 0 else min(max(change.change_ns, expected), 0)
        total += part
        most += expected
        interval = change.interval_ns
        shifted = None if interval is None else (interval[0] - part, interval[1] - part)
        terms[index] = replace(change, change_ns=change.change_ns - part, interval_ns=shifted)
    name = f"{a.clock_mhz:.0f} to {b.clock_mhz:.0f} MHz"
    notes.append(
        "Clocks: the part of the change of kernels that ran equally often on both sides which the other clock of the "
        "multiprocessors explains; the interval is from none of it to all in proportion."
    )
    return [TermChange(Term(CLOCKS, name), None, None, total, (min(most, 0), max(most, 0)))]


def _same_work(a: Budget, b: Budget) -> set[str]:
    """Names of kernels that ran equally often, with the same grids, on both sides."""
    calls: list[dict[str, dict[int, int]]] = [{}, {}]
    for of_side, budget in zip(calls, (a, b), strict=True):
        for kernel, launches in budget.kernels.items():
            of_side.setdefault(kernel.name, {})[kernel.grid] = launches.calls
    return {name for name, grids in calls[0].items() if calls[1].get(name) == grids}


def _profiled(side: Side) -> Float64 | None:
    """The profiled steps of a side, where the hooks and the traces agree; None where they do not.

    Where the hooks' steps are shorter, the host runs ahead of the device, and the traces alone tell how long a step
    took. So they do where the hooks only scatter around them: a host that waits within its step marks its end some
    milliseconds earlier or later than the device. Over a window this is the difference of two ends, however many steps
    are between them; what grows with each step is real.
    """
    if not side.profiled_ns or side.budget is None:
        return None
    by_hooks = np.array(side.profiled_ns, np.float64)
    by_trace: Float64 = np.asarray(sum(side.budget.by_step.values(), np.zeros(1)), np.float64)
    difference = float(by_hooks.mean()) / side.budget.step_ns - 1
    if difference > _SAME_TIME:
        return None
    if difference < -_SAME_TIME:
        return by_trace
    if len(by_trace) != len(by_hooks):
        return by_hooks
    scatter = by_hooks - by_trace
    return by_trace if abs(scatter.sum()) <= _SCATTER * scatter.std() else by_hooks


def _own_cost(
    profiled: tuple[Float64, Float64], times_ns: tuple[int, int], factor: float, confidence: float
) -> Iterator[TermChange]:
    """What lies between the terms, which are of profiled steps, and the undisturbed steps: the former are slower."""
    cost = [steps_ns - step_ns for steps_ns, step_ns in zip(profiled, times_ns, strict=True)]
    first, second = cost[1] * factor, cost[0]
    change_ns = round(float(second.mean()) - float(first.mean()))
    if change_ns:
        interval = _interval(change_ns, first, second, confidence)
        yield TermChange(Term(OWN_COST, "slowdown of profiled steps"), None, None, change_ns, interval)
