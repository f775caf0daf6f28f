"""What the change of a step is made of: the terms of both budgets, and what is left.

The terms are of profiled steps, and the change is that of undisturbed steps where both sides have them. What profiled
steps take longer on one side than on the other is in ``unexplained``. All times are whole nanoseconds; terms and
``unexplained`` add up to the change exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfscope.analyzers.budget.result import Budget, apportion
from perfscope.analyzers.budget.terms import KINDS, Kernel, Launches, Operation, Term
from perfscope.analyzers.comparison.side import Side
from perfscope.constants import NS_PER_S, NS_PER_US
from perfscope.report import Json
from perfscope.tables.columns import Float64


@dataclass(frozen=True, slots=True)
class TermChange:
    """A term on both sides, in nanoseconds of a step.

    Attributes:
        term: The term.
        a_ns, b_ns: Its time on each side.
    """

    term: Term
    a_ns: int
    b_ns: int

    @property
    def change_ns(self) -> int:
        """By how much it changed the step."""
        return self.b_ns - self.a_ns


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """The budget of a change.

    Attributes:
        change_ns: What is explained: the change of the step.
        explains: Which steps that is of, in words.
        terms: The terms, those with the largest changes first.
        unexplained_ns: The rest: ``change_ns`` is the sum of the terms and this.
        step_ns: A's step, for shares.
        notes: What a reader must know.
    """

    change_ns: int
    explains: str
    terms: tuple[TermChange, ...]
    unexplained_ns: int
    step_ns: int
    notes: tuple[str, ...]

    @property
    def traced_ns(self) -> int:
        """What the traces show of the change."""
        return sum(term.change_ns for term in self.terms)

    def __post_init__(self) -> None:
        assert self.traced_ns + self.unexplained_ns == self.change_ns


def compare_budgets(a: Side, b: Side, factor: float) -> BudgetChange | None:
    """The budget of the change of a step; None where a side has none.

    ``factor`` is how much of B's step is compared.
    """
    if a.budget is None or b.budget is None:
        return None
    first, second = _at_one_level(a.budget, b.budget)
    second = _scaled(second, factor)
    terms = (
        TermChange(term, first.terms.get(term, 0), second.terms.get(term, 0))
        for term in sorted({*first.terms, *second.terms}, key=_order)
    )
    change_ns, explains = second.step_ns - first.step_ns, "the profiled steps"
    if not (a.is_profiled or b.is_profiled) and a.step_time_s is not None and b.step_time_s is not None:
        change_ns = round(round(b.step_time_s.centre * NS_PER_S) * factor) - round(a.step_time_s.centre * NS_PER_S)
        explains = "the undisturbed steps"
    ordered = sorted((term for term in terms if term.change_ns or term.a_ns), key=lambda term: -abs(term.change_ns))
    return BudgetChange(
        change_ns=change_ns,
        explains=explains,
        terms=tuple(ordered),
        unexplained_ns=change_ns - sum(term.change_ns for term in ordered),
        step_ns=first.step_ns,
        notes=_describe(a.budget, b.budget),
    )


def _order(term: Term) -> tuple[int, str, str]:
    return KINDS.index(term.kind), term.name, term.operator


def _describe(a: Budget, b: Budget) -> tuple[str, ...]:
    steps = [f"{len(budget.steps) or 1} of {'A' if budget is a else 'B'}" for budget in (a, b)]
    notes = [
        f"Terms are means over profiled steps ({', '.join(steps)}) and ranks. Profiled steps are slower than others, "
        "on both sides by not quite the same: that is in what is unexplained."
    ]
    if a.activities != b.activities:
        kinds = " and ".join(budget.activities or "unknown" for budget in (a, b))
        notes.append(f"The windows differ ({kinds}): a window with operators slows the host more than a light one.")
    return tuple(notes)


def _at_one_level(a: Budget, b: Budget) -> tuple[Budget, Budget]:
    """Both budgets in the terms that both have: without operators where one side has none."""
    has_operators = [any(term.operator for term in budget.terms) for budget in (a, b)]
    return (a, b) if all(has_operators) else (_without_operators(a), _without_operators(b))


def _without_operators(budget: Budget) -> Budget:
    terms: dict[Term, int] = {}
    by_step: dict[Term, Float64] = {}
    for term, ns in budget.terms.items():
        kernel = term._replace(operator="")
        terms[kernel] = terms.get(kernel, 0) + ns
    for term, times in budget.by_step.items():
        kernel = term._replace(operator="")
        by_step[kernel] = by_step[kernel] + times if kernel in by_step else times
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


_PER_MILLE = 1000
#: Kernels whose count a step differs by less ran equally often: windows cut off a launch here and there.
_SAME_COUNT = 0.02


@dataclass(frozen=True, slots=True)
class Difference:
    """A kernel or a product that is not the same on both sides.

    Attributes:
        name: The kernel, or the operator.
        what: ``appeared``, ``vanished``, ``count``, ``grid``, ``shape`` or ``dtype``.
        a, b: What it was on each side, in words; empty where it did not run.
        time_ns: Its time a step on the side where it runs longer; 0 for a product, whose kernels have the time.
    """

    name: str
    what: str
    a: str
    b: str
    time_ns: int

    def data(self) -> dict[str, Json]:
        """One entry of ``appeared``, ``vanished`` or ``changed``."""
        time_us = self.time_ns / NS_PER_US if self.time_ns else None
        return {"name": self.name, "what": self.what, "a": self.a or None, "b": self.b or None, "time_us": time_us}


@dataclass(frozen=True, slots=True)
class Inventory:
    """What differs, and what does not.

    Attributes:
        differences: What differs, what takes most time first.
        same_kernels: Kernels that ran equally often with the same grids on both sides.
        same_products: Products of the same shapes and types, equally often.
    """

    differences: tuple[Difference, ...] = ()
    same_kernels: tuple[str, ...] = ()
    same_products: int = 0


def compare_inventories(a: Budget, b: Budget) -> Inventory:
    """Compare what two budgets' steps ran."""
    if not a.kernels or not b.kernels:
        return Inventory(tuple(_products(a, b)), (), _same_products(a, b))
    first, second = _by_name(a.kernels), _by_name(b.kernels)
    differences, same = list(_products(a, b)), []
    for name in sorted({*first, *second}):
        difference = _kernel(name, first.get(name, {}), second.get(name, {}), _time(a, name), _time(b, name))
        if difference is None:
            same.append(name)
        else:
            differences.append(difference)
    differences.sort(key=lambda difference: (-difference.time_ns, difference.name, difference.what))
    same.sort(key=lambda name: (-_time(a, name), name))
    return Inventory(tuple(differences), tuple(same), _same_products(a, b))


def _by_name(kernels: Mapping[Kernel, Launches]) -> dict[str, dict[int, int]]:
    by_name: dict[str, dict[int, int]] = {}
    for kernel, launches in kernels.items():
        by_name.setdefault(kernel.name, {})[kernel.grid] = launches.calls
    return by_name


def _time(budget: Budget, name: str) -> int:
    return sum(launches.total_ns for kernel, launches in budget.kernels.items() if kernel.name == name)


def _kernel(name: str, a: Mapping[int, int], b: Mapping[int, int], a_ns: int, b_ns: int) -> Difference | None:
    """How a kernel's launches differ; None where they do not."""
    calls = [sum(grids.values()) / _PER_MILLE for grids in (a, b)]
    words = [f"{count:g} a step" if count else "" for count in calls]
    longest = max(a_ns, b_ns)
    if not a:
        return Difference(name, "appeared", "", words[1], longest)
    if not b:
        return Difference(name, "vanished", words[0], "", longest)
    if abs(calls[0] - calls[1]) > _SAME_COUNT * max(calls):
        return Difference(name, "count", words[0], words[1], longest)
    if set(a) != set(b):
        return Difference(name, "grid", _grids(len(a)), _grids(len(b), of_other=True), longest)
    return None


def _grids(count: int, *, of_other: bool = False) -> str:
    return f"{count} {'other ' if of_other else ''}grid{'' if count == 1 else 's'}"


def _same_products(a: Budget, b: Budget) -> int:
    return sum(1 for operation, count in a.operations.items() if b.operations.get(operation) == count)


def _products(a: Budget, b: Budget) -> list[Difference]:
    """Products that differ: of the same operator those with other types, then those with other shapes, are paired."""
    if not a.operations or not b.operations:
        return []
    first, second = Counter(a.operations), Counter(b.operations)
    vanished, appeared = first - second, second - first
    differences = []
    for what in ("dtype", "shape"):
        for operation in sorted(vanished):
            partner = _partner(operation, appeared, what)
            if partner is not None:
                differences.append(
                    Difference(
                        operation.operator,
                        what,
                        _describe_operation(operation, vanished),
                        _describe_operation(partner, appeared),
                        0,
                    )
                )
                del vanished[operation], appeared[partner]
    differences += [
        Difference(operation.operator, "vanished", _describe_operation(operation, vanished), "", 0)
        for operation in sorted(vanished)
    ]
    differences += [
        Difference(operation.operator, "appeared", "", _describe_operation(operation, appeared), 0)
        for operation in sorted(appeared)
    ]
    return differences


def _partner(operation: Operation, candidates: Mapping[Operation, int], what: str) -> Operation | None:
    """The product that a product became: the same operator with the same shapes, or with as many inputs."""
    for candidate in sorted(candidates):
        if candidate.operator != operation.operator:
            continue
        if what == "dtype" and candidate.shapes == operation.shapes and candidate.elements != operation.elements:
            return candidate
        if what == "shape" and len(candidate.shapes) == len(operation.shapes):
            return candidate
    return None


def _describe_operation(operation: Operation, counts: Mapping[Operation, int]) -> str:
    shapes = " x ".join(str(list(shape)) for shape in operation.shapes if shape)
    elements = ", ".join(sorted({element for element in operation.elements if element}))
    count = counts[operation] / _PER_MILLE
    return f"{shapes} {elements} ({count:g} a step)".replace("  ", " ")
