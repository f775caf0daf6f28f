"""How many operations a step did, counted from the shapes of its operators, and what was recomputed.

TFLOP/s while profiled = operations of a step / mean host time of the profiled steps; how operations are counted is
defined in ``perfscope.analyzers.flops.operation_counts``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from perfscope.analyzers.flops.operation_counts import ENOUGH, NotCounted, Operations, count_operations
from perfscope.analyzers.flops.precision import Precision, find_precision
from perfscope.constants import GIGA, TERA
from perfscope.errors import MissingInput
from perfscope.models.hardware import lookup_gpu
from perfscope.report import Column, Json, Section, in_unit, percent
from perfscope.tables.trace import Trace

_MOST_LISTED = 8
_NO_SHAPES = "the traces state no shapes of operators: profile with `--shapes`"


class CountedOperations(Struct, frozen=True):
    """The operations of every traced rank."""

    ranks: Sequence[Operations]

    def data(self) -> Json:
        """The value of ``results.operations``."""
        return {"ranks": [_rank_data(item) for item in self.ranks]}

    def sections(self) -> tuple[Section, ...]:
        """A row a rank."""
        columns = (
            Column("Rank"),
            Column("Steps"),
            Column("TFLOP/step", 3),
            Column("TFLOP/s while profiled", 1),
            Column("Attention (%)", 1),
            Column("Recomputed"),
            Column("Precision"),
        )
        rows = tuple(
            (
                None if rank.rank is None else str(rank.rank),
                rank.steps,
                in_unit(rank.flops_per_step, TERA),
                rank.tflops,
                percent(rank.attention_share) if rank.flops_per_step else None,
                None if rank.repeats.checkpointing is None else str(rank.repeats.checkpointing),
                ", ".join(_precision_of(rank).shares) or None,
            )
            for rank in self.ranks
        )
        notes = [
            "Matrix products, convolutions and attention, by the shapes in the trace; the full attention matrix is "
            "counted."
        ]
        missing = sum(rank.without_shapes for rank in self.ranks)
        if missing:
            notes.append(f"{missing} products state no shapes and are not counted.")
        notes += _describe_coverage(self.ranks)
        notes += [_precision_of(rank).sentence() for rank in self.ranks[:1]]
        return (Section("Operations by shapes", columns, rows, tuple(notes)),)


def _rank_data(rank: Operations) -> Json:
    """One entry of ``results.operations.ranks``."""
    return {
        "rank": rank.rank,
        "steps": rank.steps,
        "flops_per_step": rank.flops_per_step,
        "tflops": rank.tflops,
        "attention_share": rank.attention_share if rank.flops_per_step else None,
        "recomputed": None if rank.repeats.checkpointing is None else str(rank.repeats.checkpointing),
        "recomputed_share": rank.repeats.share,
        "recomputed_weights": rank.repeats.weights,
        "recomputed_attention": rank.repeats.attention,
        "recomputed_reason": rank.repeats.reason or None,
        "forward_alone": rank.repeats.forward_alone,
        "without_shapes": rank.without_shapes,
        "covered": rank.covered,
        "not_counted": [
            {"operator": operator, "calls_per_step": calls, "share": share}
            for operator, calls, share in rank.not_counted
        ],
        "graphs": {
            "recorded_flops": rank.recorded_flops,
            "replayed_flops": rank.replayed_flops,
            "other_replays": rank.other_replays,
            "other_replays_share": rank.other_replays_share,
        },
        "precision": _precision_of(rank).data(),
        "operators": [
            {"operator": name, "calls_per_step": calls, "flops_per_step": flops}
            for name, (calls, flops) in rank.by_operator.items()
        ],
    }


def _has_something(rank: Operations) -> bool:
    return bool(rank.flops_per_step or rank.recorded_flops or rank.not_counted)


def _describe_coverage(ranks: Sequence[Operations]) -> Iterator[str]:
    """What is not counted, on the rank where the least is."""
    least = min(ranks, key=lambda rank: 1.0 if rank.covered is None else rank.covered)
    of_rank = f"On rank {least.rank}" if len(ranks) > 1 and least.rank is not None else "Of this trace"
    if least.not_counted:
        listed = [_describe_operator(each) for each in least.not_counted[:_MOST_LISTED]]
        more = len(least.not_counted) - len(listed)
        yield f"Not counted: {', '.join(listed)}{f' and {more} more' if more else ''}."
    if least.recorded_flops:
        replayed = in_unit(least.replayed_flops, GIGA)
        yield (
            f"Graphs were recorded, which runs nothing: {in_unit(least.recorded_flops, GIGA):.4g} GFLOP were recorded, "
            f"and {replayed:.4g} GFLOP ran when the graphs were launched."
        )
    if least.other_replays:
        share = least.other_replays_share
        part = f" ({share:.1%} of the time of kernels that multiply)" if share else ""
        yield (
            f"{least.other_replays} launches of graphs that were not recorded in the trace, or cannot be told apart, "
            f"are not counted{part}."
        )
    if not least.is_covered and least.covered is None:
        yield "No TFLOP/s and no MFU are drawn from what is counted: no times of kernels tell how much is missing."
    elif not least.is_covered and least.covered is not None:
        yield (
            f"{of_rank}, what is counted has {least.covered:.1%} of the time of kernels that multiply. Less than "
            f"{ENOUGH:.0%} says too little of the whole: no TFLOP/s and no MFU are drawn from it."
        )


def _describe_operator(operator: NotCounted) -> str:
    return operator.operator if operator.share is None else f"{operator.operator} ({operator.share:.1%} of the time)"


def _precision_of(rank: Operations) -> Precision:
    return find_precision((), (rank,), lookup_gpu(rank.device_name))


def measure(trace: Trace) -> Operations | None:
    """Count the operations of one trace; None where it has no products and shows no recomputation."""
    return None if trace.products is None else count_operations(trace, trace.products)


def analyze(partials: Sequence[Operations]) -> CountedOperations:
    """Put the ranks together.

    Raises:
        MissingInput: No trace states shapes.
    """
    if not any(operations.flops_per_step or operations.recorded_flops for operations in partials):
        raise MissingInput(_NO_SHAPES)
    counted = filter(_has_something, partials)
    return CountedOperations(tuple(sorted(counted, key=lambda operations: (operations.rank is None, operations.rank))))
