"""Operations of the operators of a trace, from their inputs; of nested operators those count that account for the most.

The rules are those of ``operator_rules``. Other than ``counted_calls``, which reads products alone and follows CUDA
graphs, this needs all operators with their inputs, and so knows where each one ran.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.flops.counted_calls import CallTree
from perfscope.analyzers.flops.operator_rules import count_flops
from perfscope.analyzers.shared.nesting import Nesting
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.operator_details import Inputs, Tensor
from perfscope.tables.products import Product
from perfscope.tables.trace import ABSENT, Trace, Work

_ATEN = "aten::"
_UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class CountedOperators:
    """The operators that count.

    Attributes:
        rows: Their rows in ``Trace.operators``.
        flops: Operations of each.
        nesting: Of these operators, in their order, to find the one around a moment.
    """

    rows: Int64
    flops: Int64
    nesting: Nesting

    def around(self, moments_ns: Int64, threads: Int64) -> Int64:
        """For each moment of a thread the row in ``rows`` of the counted operator around it, or ABSENT."""
        return self.nesting.innermost(moments_ns, threads)


def to_product(name: str, inputs: Inputs) -> Product:
    """An operator as the rules take it."""
    shapes = tuple(operand.shape if isinstance(operand, Tensor) else () for operand in inputs.operands)
    return Product(name.removeprefix(_ATEN), shapes, inputs.kinds, inputs.values)


def count_operators(trace: Trace) -> CountedOperators:
    """Count the operators of a trace that states their inputs.

    An operator counts where it launched something; in a trace without device events all count.
    """
    operators, details = trace.operators, trace.details
    if details is None or not len(operators) or not details.distinct_inputs:
        nothing = np.zeros(0, np.int64)
        return CountedOperators(nothing, nothing, Nesting(nothing, nothing, nothing))
    own = _count_each(trace)
    rows = np.flatnonzero(own != _UNKNOWN)
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
    """Operations of each operator by itself; ``_UNKNOWN`` where it has no rule, or they cannot be told."""
    assert trace.details is not None
    index, distinct_inputs = trace.details.inputs, trace.details.distinct_inputs
    keys = trace.operators.name.astype(np.int64) * (len(distinct_inputs) + 1) + index + 1
    values, inverse = np.unique(keys, return_inverse=True)
    flops = np.full(len(values), _UNKNOWN, np.int64)
    for place, key in enumerate(values.tolist()):
        name, number = divmod(key, len(distinct_inputs) + 1)
        if number:
            count = count_flops(to_product(trace.names[name], distinct_inputs[number - 1]))
            flops[place] = _UNKNOWN if count is None else count
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
