"""What one side runs and the other one does not: kernels and matrix products that appeared, vanished or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.analyzers.budget.result import Budget
from perfscope.analyzers.budget.terms import Kernel, Launches, Operation
from perfscope.constants import NS_PER_US
from perfscope.report import Json

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
                        operation.operator, what, _describe(operation, vanished), _describe(partner, appeared), 0
                    )
                )
                del vanished[operation], appeared[partner]
    differences += [
        Difference(operation.operator, "vanished", _describe(operation, vanished), "", 0)
        for operation in sorted(vanished)
    ]
    differences += [
        Difference(operation.operator, "appeared", "", _describe(operation, appeared), 0)
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


def _describe(operation: Operation, counts: Mapping[Operation, int]) -> str:
    shapes = " x ".join(str(list(shape)) for shape in operation.shapes if shape)
    elements = ", ".join(sorted({element for element in operation.elements if element}))
    count = counts[operation] / _PER_MILLE
    return f"{shapes} {elements} ({count:g} a step)".replace("  ", " ")
