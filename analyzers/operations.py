"""How many operations a step did, counted from the shapes of its operators, and what was recomputed.

TFLOP/s while profiled = operations of a step / mean host time of the profiled steps; how operations are counted is
defined in ``perfscope.analyzers.tflops.operation_counts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from perfscope.analyzers.tflops.operation_counts import ENOUGH, NotCountedOperator, TracedOperations, count_operations
from perfscope.analyzers.tflops.precision import ProductPrecision, find_precision
from perfscope.constants import TERA
from perfscope.errors import MissingInput
from perfscope.measures.rank_labels import in_order
from perfscope.models.hardware import lookup_gpu
from perfscope.report import MOST_ROWS
from perfscope.result import PERCENT, Column, Doc, Figures, Result, Table
from perfscope.tables.trace import Trace


class OperatorCount(Figures, frozen=True):
    """The operations of one operator."""

    operator: Annotated[str, Doc("Its name.")]
    calls_per_step: Annotated[float, Doc("Calls in a step.")]
    flops_per_step: Annotated[float, Doc("Operations in a step.")]


class RankOperations(Figures, frozen=True):
    """The operations of one rank, counted from shapes."""

    rank: Annotated[int | None, Doc("The rank.")]
    steps: Annotated[int, Doc("Training steps in the trace; 0 where it marks none.")]
    flops_per_step: Annotated[float | None, Doc("Operations of one step; None where no shape is stated.")]
    tflops: Annotated[float | None, Doc("``flops_per_step`` a second of the mean profiled step, in 10**12.")]
    attention_share: Annotated[float | None, Doc("The share of attention in the operations.")]
    recomputed: Annotated[str | None, Doc("The kind of activation checkpointing; None where unknown.")]
    recomputed_share: Annotated[float | None, Doc("The share of forward products that ran again in the backward pass.")]
    recomputed_weights: Annotated[float | None, Doc("The same of products with weights; None where unknown.")]
    recomputed_attention: Annotated[float | None, Doc("The same of attention; None where unknown.")]
    recomputed_reason: Annotated[str | None, Doc("Why it is unknown; None where it is known.")]
    without_shapes: Annotated[int, Doc("Products that could not be counted.")]
    covered: Annotated[float | None, Doc("Share of the time of kernels that multiply in what is counted.")]
    not_counted: Annotated[tuple[NotCountedOperator, ...], Doc("What is not counted.")]
    replays: Annotated[int, Doc("Launches of CUDA graphs, whose operations are not counted.")]
    replays_share: Annotated[float | None, Doc("Their share of the time of kernels that multiply.")]
    precision: Annotated[ProductPrecision, Doc("Data types of the products.")]
    operators: Annotated[tuple[OperatorCount, ...], Doc("By operator.")]
    is_covered: bool


class CountedOperations(Result, frozen=True):
    """``results.operations``: how many operations a step did."""

    ranks: Annotated[tuple[RankOperations, ...], Doc("Each rank.")]

    TABLES = (
        Table(
            "Operations by shapes",
            "ranks",
            (
                Column("Rank", lambda rank: None if rank.rank is None else str(rank.rank)),
                Column("Steps", "steps"),
                Column("TFLOP/step", "flops_per_step", lambda flops: flops / TERA, 3),
                Column("TFLOP/s while profiled", "tflops"),
                Column("Attention (%)", "attention_share", PERCENT),
                Column("Recomputed", "recomputed"),
                Column("Precision", lambda rank: ", ".join(rank.precision.by_type) or None),
            ),
        ),
    )

    @property
    def notes(self) -> Iterator[str]:
        """What is counted, and what is not."""
        yield (
            "Matrix products, convolutions and attention, by the shapes in the trace; the full attention matrix is "
            "counted."
        )
        if missing := sum(rank.without_shapes for rank in self.ranks):
            yield f"{missing} products state no shapes and are not counted."
        yield from _describe_coverage(self.ranks)
        yield from (rank.precision.sentence() for rank in self.ranks[:1])


def _to_rank(rank: TracedOperations) -> RankOperations:
    repeats = rank.repeats
    return RankOperations(
        rank=rank.rank,
        steps=rank.steps,
        flops_per_step=rank.flops_per_step,
        tflops=rank.tflops,
        attention_share=rank.attention_share,
        recomputed=None if repeats.checkpointing is None else str(repeats.checkpointing),
        recomputed_share=repeats.share,
        recomputed_weights=repeats.weights,
        recomputed_attention=repeats.attention,
        recomputed_reason=repeats.reason or None,
        without_shapes=rank.without_shapes,
        covered=rank.covered,
        not_counted=rank.not_counted,
        replays=rank.replays,
        replays_share=rank.replays_share,
        precision=find_precision((), (rank,), lookup_gpu(rank.device_name)),
        operators=tuple(OperatorCount(name, *counts) for name, counts in rank.by_operator.items()),
        is_covered=rank.is_covered,
    )


def _describe_coverage(ranks: Sequence[RankOperations]) -> Iterator[str]:
    """What is not counted, on the rank where the least is."""
    least = min(ranks, key=lambda rank: 1.0 if rank.covered is None else rank.covered)
    of_rank = f"On rank {least.rank}" if len(ranks) > 1 and least.rank is not None else "In this trace"
    if least.not_counted:
        more = len(least.not_counted) - MOST_ROWS
        listed = ", ".join(map(str, least.not_counted[:MOST_ROWS]))
        yield f"Not counted: {listed}{f' and {more} more' if more > 0 else ''}."
    if least.replays:
        share = least.replays_share
        part = f" ({share:.1%} of the time of kernels that multiply)" if share else ""
        yield f"{least.replays} launches of graphs are not counted{part}."
    if not least.is_covered and least.covered is None:
        yield "No TFLOP/s and no MFU: no times of kernels show how much is missing."
    elif not least.is_covered:
        yield (
            f"{of_rank} the counted operators have {least.covered:.1%} of the time of kernels that multiply. That is "
            f"less than {ENOUGH:.0%}, so there is no TFLOP/s and no MFU."
        )


def measure(trace: Trace) -> TracedOperations | None:
    """Count the operations of one trace; None where it has no products and shows no recomputation."""
    return None if trace.products is None else count_operations(trace, trace.products)


def analyze(partials: Sequence[TracedOperations]) -> CountedOperations:
    """Put the ranks together; MissingInput where no trace states shapes."""
    if not any(operations.flops_per_step for operations in partials):
        raise MissingInput("the traces state no shapes of operators: profile with `--shapes`")
    counted = [rank for rank in partials if rank.flops_per_step or rank.not_counted]
    return CountedOperations(tuple(map(_to_rank, in_order(counted))))
