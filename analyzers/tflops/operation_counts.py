"""Counts the operations of a traced step from the shapes of its operators.

The last product of a layer, which PyTorch begins to recompute and then skips, is in the trace and is counted. The rate
of operations is withheld where counted kernels take less than ``ENOUGH`` of the time of kernels that multiply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.tflops.counted_calls import count_calls
from perfscope.analyzers.tflops.operator_rules import FIRST_IS_ADDED
from perfscope.analyzers.tflops.repeats import IS_ATTENTION, Repeats, find_repeats
from perfscope.constants import KILO
from perfscope.result import Doc, Figures
from perfscope.tables.kernel_precision import element_precision, product_precision
from perfscope.tables.products import Products
from perfscope.tables.trace import Trace, Work

#: PyTorch calls the one inside the other.
_SHOWN_AS = {"_convolution": "convolution"}
_BACKWARD = "_backward"
#: The least share of the time of kernels that multiply whose operations must be counted for a rate.
ENOUGH = 0.95


class NotCountedOperator(Figures, frozen=True):
    """An operator that multiplies and whose operations are not counted."""

    operator: Annotated[str, Doc("Its name.")]
    calls_per_step: Annotated[float, Doc("Calls in a step.")]
    share: Annotated[float | None, Doc("Its share of the time of all kernels that multiply.")]

    def __str__(self) -> str:
        return self.operator if self.share is None else f"{self.operator} ({self.share:.1%} of the time)"


class TracedOperations(Struct, frozen=True, array_like=True):
    """The operations of one trace: of a step on this rank, or of the entire trace where it marks no step.

    Times of kernels are device time. ``by_operator`` has calls and operations, ``by_precision`` operations by the
    operands' type; products that are multiplied as TF32 are under ``fp32``. ``covered`` is the share of the time of
    kernels that multiply in what is counted. It is absent without these kernels. Operations of graphs (``replays``) are
    not counted.
    """

    rank: int | None
    steps: int
    flops_per_step: float | None
    step_ns: float | None
    by_operator: Mapping[str, tuple[float, float]]
    repeats: Repeats
    without_shapes: int
    by_precision: Mapping[str, float] = field(default_factory=dict)
    kernel_ns: Mapping[str, int] = field(default_factory=dict)
    device_name: str = ""
    not_counted: tuple[NotCountedOperator, ...] = ()
    covered: float | None = None
    replays: int = 0
    replays_share: float | None = None

    @property
    def is_covered(self) -> bool:
        """Whether enough is counted for a rate; without times of kernels all must be."""
        return not self.not_counted if self.covered is None else self.covered >= ENOUGH

    @property
    def attention_share(self) -> float | None:
        """The share of attention in the operations; absent without operations."""
        if not self.flops_per_step:
            return None
        return (
            sum(flops for name, (_, flops) in self.by_operator.items() if IS_ATTENTION.search(name))
            / self.flops_per_step
        )

    @property
    def tflops(self) -> float | None:
        """TFLOP/s of this rank while it was profiled; absent without steps, or where too little is counted."""
        if self.flops_per_step is None or not self.step_ns or not self.is_covered:
            return None
        gflops = self.flops_per_step / self.step_ns
        return gflops / KILO


def count_operations(trace: Trace, products: Products) -> TracedOperations | None:
    """Add up the products of a trace; None where it has none, shows no recomputation and no kernel that multiplies."""
    repeats = find_repeats(trace, products)
    kernel_ns = _time_products(trace)
    if not (len(products.calls) or repeats.checkpointing or kernel_ns):
        return None
    steps = len({trace.name_of(int(name)) for name in trace.steps.name}) if products.steps is None else products.steps
    counted = count_calls(trace, products)
    in_a_step = max(1, steps)
    by_operator: dict[str, tuple[float, float]] = {}
    by_precision: dict[str, float] = {}
    for product, runs, flops in counted.products:
        operator = _SHOWN_AS.get(product.operator, product.operator)
        calls, total = by_operator.get(operator, (0.0, 0.0))
        by_operator[operator] = calls + runs / in_a_step, total + flops / in_a_step
        is_first_skipped = product.operator in FIRST_IS_ADDED or _BACKWARD in product.operator
        precision = element_precision(next(iter(product.elements[is_first_skipped:]), ""))
        by_precision[precision] = by_precision.get(precision, 0.0) + flops / in_a_step

    def share(part_ns: int) -> float | None:
        return part_ns / counted.multiplying_ns if counted.multiplying_ns else None

    return TracedOperations(
        rank=trace.rank,
        steps=steps,
        flops_per_step=sum(total for _, total in by_operator.values()) if by_operator else None,
        step_ns=float(trace.steps.duration_ns.mean()) if len(trace.steps) else None,
        by_operator=dict(sorted(by_operator.items(), key=lambda item: -item[1][1])),
        repeats=repeats,
        without_shapes=counted.without_shapes,
        by_precision=by_precision,
        kernel_ns=kernel_ns,
        device_name=next(iter(trace.devices), ""),
        not_counted=tuple(
            NotCountedOperator(operator, calls / in_a_step, share(kernels_ns))
            for operator, (calls, kernels_ns) in counted.not_counted.items()
        ),
        covered=share(counted.counted_ns),
        replays=counted.replays,
        replays_share=share(counted.replays_ns),
    )


def _time_products(trace: Trace) -> dict[str, int]:
    kernels = trace.device.is_work(Work.COMPUTE, Work.FUSED)
    totals = np.bincount(trace.device.name[kernels], trace.device.duration_ns[kernels], len(trace.names))
    kernel_ns: dict[str, int] = {}
    for index in np.flatnonzero(totals).tolist():
        precision = product_precision(trace.names[index])
        if precision is not None:
            kernel_ns[precision] = kernel_ns.get(precision, 0) + int(totals[index])
    return kernel_ns
