"""How many operations a step did, counted from the shapes of its operators, and what was recomputed.

TFLOP/s while profiled = operations of a step / mean host time of the profiled steps; how operations are counted is
defined in ``perfscope.analyzers.flops.operation_counts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.flops.operation_counts import Operations, count_operations
from perfscope.analyzers.flops.precision import Precision, find_precision
from perfscope.constants import TERA
from perfscope.errors import MissingInput
from perfscope.models.hardware import lookup_gpu
from perfscope.report import Column, Json, Section, in_unit, percent
from perfscope.tables.trace import Trace

_NO_SHAPES = "the traces state no shapes of operators: profile with `--shapes`"


@dataclass(frozen=True, slots=True)
class CountedOperations:
    """The operations of every traced rank."""

    ranks: tuple[Operations, ...]

    def data(self) -> Json:
        """The value of ``results.operations``."""
        return {
            "ranks": [
                {
                    "rank": rank.rank,
                    "steps": rank.steps,
                    "flops_per_step": rank.flops_per_step,
                    "tflops": rank.tflops,
                    "attention_share": rank.attention_share if rank.flops_per_step else None,
                    "recomputed": None if rank.repeats.checkpointing is None else str(rank.repeats.checkpointing),
                    "attention_repeats": rank.repeats.attention,
                    "mlp_repeats": rank.repeats.mlp,
                    "forward_alone": rank.repeats.forward_alone,
                    "without_shapes": rank.without_shapes,
                    "precision": _precision_of(rank).data(),
                    "operators": [
                        {"operator": name, "calls_per_step": calls, "flops_per_step": flops}
                        for name, (calls, flops) in rank.by_operator.items()
                    ],
                }
                for rank in self.ranks
            ]
        }

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
        notes = ["Matrix products and attention, by the shapes in the trace; the full attention matrix is counted."]
        missing = sum(rank.without_shapes for rank in self.ranks)
        if missing:
            notes.append(f"{missing} products state no shapes and are not counted.")
        notes += [_precision_of(rank).sentence() for rank in self.ranks[:1]]
        return (Section("Operations by shapes", columns, rows, tuple(notes)),)


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
    if not any(operations.flops_per_step for operations in partials):
        raise MissingInput(_NO_SHAPES)
    counted = [operations for operations in partials if operations.flops_per_step or operations.without_shapes]
    return CountedOperations(tuple(sorted(counted, key=lambda operations: (operations.rank is None, operations.rank))))
