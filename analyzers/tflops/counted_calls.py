"""Which calls of products count: of nested ones those that account for the most, so that each product counts once.

Autocast, for example, calls an operator again with inputs that it has cast. What was recorded as a graph did not run,
and what graphs ran is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfscope.analyzers.tflops.operator_rules import count_flops
from perfscope.measures.nesting import Nesting
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.operator_details import TensorInput
from perfscope.tables.product_launches import find_launches
from perfscope.tables.products import Product, Products
from perfscope.tables.trace import ABSENT, Trace, Work


class CountedCalls(NamedTuple):
    """The operations of a trace's products: each counted product, its runs and the operations of all of them.

    ``not_counted`` has calls and device time by operator. ``multiplying_ns`` is of all kernels that multiply and of
    operators that are not counted; ``counted_ns`` is the part in what is counted. Launches of graphs are ``replays``.
    """

    products: Sequence[tuple[Product, int, int]]
    without_shapes: int
    not_counted: Mapping[str, tuple[int, int]]
    multiplying_ns: int
    counted_ns: int
    replays: int
    replays_ns: int


def count_calls(trace: Trace, products: Products) -> CountedCalls:
    """Count the operations of a trace's products."""
    calls, launches = products.calls, find_launches(trace, products)
    ran = ~launches.is_recorded
    flops = [count_flops(product) for product in products.products]
    own = np.array([ABSENT if count is None else count for count in flops], np.int64)[calls.product]
    tree = CallTree(own, calls.part_of)
    total_ns = add_up(launches.kernel_ns, tree.parent)
    # A call around others that count may itself launch kernels of which nothing is known.
    is_between = tree.is_around & (own == ABSENT) & (launches.multiplying_ns > 0)
    open_ns = np.where(tree.is_open, total_ns, np.where(is_between, launches.multiplying_ns, 0))
    not_counted: dict[str, tuple[int, int]] = {}
    for row in np.flatnonzero((tree.is_open | is_between) & ran).tolist():
        operator = products.products[calls.product[row]].operator
        number, kernels_ns = not_counted.get(operator, (0, 0))
        not_counted[operator] = number + 1, kernels_ns + int(open_ns[row])
    counts = tree.counts & ran
    counted_ns = int(total_ns[tree.counts].sum())
    runs = np.bincount(calls.product[counts], minlength=len(products.products))
    return CountedCalls(
        products=[
            (products.products[index], int(runs[index]), int(runs[index]) * (flops[index] or 0))
            for index in np.flatnonzero(runs).tolist()
        ],
        without_shapes=sum(not products.products[index].shapes for index in calls.product[tree.is_open & ran].tolist()),
        not_counted=dict(sorted(not_counted.items(), key=lambda item: -item[1][1])),
        multiplying_ns=counted_ns + int(open_ns.sum()) + launches.other_ns,
        counted_ns=counted_ns,
        replays=launches.replays,
        replays_ns=launches.replays_ns,
    )


class CallTree:
    """Which of nested calls count: inner ones, unless the one around them accounts for more than all of them."""

    def __init__(self, own: Int64, parent: Int64) -> None:
        self.parent: list[int] = parent.tolist()
        alone: list[int] = own.tolist()
        inner = [0] * len(alone)
        for row in range(len(alone) - 1, -1, -1):  # a call stands before those inside it
            if self.parent[row] != ABSENT:
                inner[self.parent[row]] += max(alone[row], inner[row])
        is_settled = [False] * len(alone)
        for row, outer in enumerate(self.parent):
            accounts_for_all = alone[row] >= 0 and (alone[row] > inner[row] or not inner[row])
            is_settled[row] = accounts_for_all or (outer != ABSENT and is_settled[outer])
        is_inside = np.array([outer != ABSENT and is_settled[outer] for outer in self.parent], np.bool_)
        self.counts = np.array(is_settled, np.bool_) & ~is_inside
        self.is_around = (add_up(self.counts.astype(np.int64), self.parent) > 0) & ~self.counts
        is_open = ~np.array(is_settled, np.bool_) & ~self.is_around
        is_inside_open = np.array([outer != ABSENT and bool(is_open[outer]) for outer in self.parent], np.bool_)
        self.is_open = is_open & ~is_inside_open


def add_up(values: Int64, parent: Sequence[int]) -> Int64:
    """The values of each call and of all calls inside it; a call stands before those inside it."""
    totals: Int64 = values.copy()
    for row in range(len(parent) - 1, -1, -1):
        if parent[row] != ABSENT:
            totals[parent[row]] += totals[row]
    return totals


@dataclass(frozen=True, slots=True, eq=False)
class CountedOperators:
    """The operators that count: their rows in ``Trace.operators``, the operations of each, and their nesting."""

    rows: Int64
    flops: Int64
    nesting: Nesting


def count_operators(trace: Trace) -> CountedOperators:
    """Count the operators of a trace that states their inputs.

    An operator counts where it launched something; in a trace without device events all count.
    """
    operators, details = trace.operators, trace.details
    if details is None or not len(operators) or not details.distinct_inputs:
        nothing = np.zeros(0, np.int64)
        return CountedOperators(nothing, nothing, Nesting(nothing, nothing, nothing))
    own = _count_each(trace)
    rows = np.flatnonzero(own != ABSENT)
    nesting = Nesting(operators.start_ns[rows], operators.end_ns[rows], operators.thread[rows])
    place = np.empty(len(rows), np.int64)
    place[nesting.order] = np.arange(len(rows))
    parent = nesting.parent[nesting.order]
    tree = CallTree(own[rows[nesting.order]], np.where(parent == ABSENT, ABSENT, place[parent]))
    counts = tree.counts[place]
    rows = rows[counts & _have_launched(trace, rows)]
    nesting = Nesting(operators.start_ns[rows], operators.end_ns[rows], operators.thread[rows])
    return CountedOperators(rows, own[rows], nesting)


def _count_each(trace: Trace) -> Int64:
    assert trace.details is not None
    index, distinct_inputs = trace.details.inputs, trace.details.distinct_inputs
    keys = trace.operators.name.astype(np.int64) * (len(distinct_inputs) + 1) + index + 1
    values, inverse = np.unique(keys, return_inverse=True)
    flops = np.full(len(values), ABSENT, np.int64)
    for place, key in enumerate(values.tolist()):
        name, number = divmod(key, len(distinct_inputs) + 1)
        if number:
            inputs = distinct_inputs[number - 1]
            shapes = tuple(operand.shape if isinstance(operand, TensorInput) else () for operand in inputs.operands)
            operator = trace.names[name].removeprefix("aten::")
            count = count_flops(Product(operator, shapes, inputs.kinds, inputs.values))
            flops[place] = ABSENT if count is None else count
    return flops[inverse]


def _have_launched(trace: Trace, rows: Int64) -> Bool:
    if not len(trace.device):
        return np.ones(len(rows), np.bool_)
    computes = trace.device.is_work(Work.COMPUTE, Work.FUSED) & (trace.launch != ABSENT)
    calls = trace.launch[computes]
    moments, threads = trace.calls.start_ns[calls], trace.calls.thread[calls]
    operators = trace.operators
    launched = np.zeros(len(rows), np.bool_)
    for thread in set(operators.thread[rows].tolist()):
        mine = np.flatnonzero(operators.thread[rows] == thread)
        times = np.sort(moments[threads == thread])
        first = np.searchsorted(times, operators.start_ns[rows[mine]], side="left")
        last = np.searchsorted(times, operators.end_ns[rows[mine]], side="right")
        launched[mine] = last > first
    return launched
