"""Compares operations counted from a trace's shapes with those of the formula, and explains a difference.

The formula is Megatron-core's products with the full attention matrix, as kernels' shapes have it, and with what the
trace shows to be recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from perfscope.analyzers.tflops.comparison import Step
from perfscope.analyzers.tflops.operation_counts import TracedOperations
from perfscope.analyzers.tflops.per_token import (
    megatron_whole_attention,
    recomputed_products,
    recomputed_scores,
    scores_and_values,
)
from perfscope.analyzers.tflops.repeats import largest_repeats
from perfscope.constants import GIGA
from perfscope.models.conventions import Recomputed
from perfscope.result import Doc, Figures, figure

#: A larger difference is explained.
TOLERANCE = 0.02


class CrossCheck(Figures, frozen=True):
    """Operations counted from shapes in traces, beside the formula."""

    flops_per_token: Annotated[float, Doc("Counted.")]
    formula_flops_per_token: Annotated[float | None, Doc("The formula's; None without dimensions.")]
    recomputed: Annotated[str | None, Doc("What the trace shows to be recomputed.")]
    ranks: Annotated[int, Doc("How many ranks were counted.")]
    explanation: Annotated[tuple[str, ...], Doc("Why they differ by more than 2 %, and what could not be counted.")]
    is_covered: bool
    has_recomputation: bool

    @figure
    def difference(self) -> float | None:
        """``flops_per_token / formula_flops_per_token - 1``."""
        return None if self.formula_flops_per_token is None else self.flops_per_token / self.formula_flops_per_token - 1

    def sentence(self) -> str:
        """The figures in words."""
        counted = f"Counted from the trace's shapes: {self.flops_per_token / GIGA:.4g} GFLOP/token"
        if not self.is_covered:
            return f"{counted}, which is not all of it and is not compared with the formula."
        if self.formula_flops_per_token is None or self.difference is None:
            return f"{counted}; without the model's dimensions there is no formula to compare with."
        formula = f"{self.formula_flops_per_token / GIGA:.4g} GFLOP/token"
        recomputation = " and recomputation" if self.has_recomputation else ""
        return (
            f"{counted}. The formula, with the full attention matrix{recomputation}, gives {formula} "
            f"(difference: {self.difference:+.1%})."
        )


def cross_check(step: Step, ranks: Sequence[TracedOperations], processes: int) -> CrossCheck | None:
    """Compare what the traced ranks counted with the formula; absent where no rank states shapes."""
    counted = [rank for rank in ranks if rank.flops_per_step]
    if not counted:
        return None
    per_token = sum(rank.flops_per_step or 0.0 for rank in counted) / len(counted) * processes / step.tokens
    repeats = largest_repeats([rank.repeats for rank in counted])
    again = repeats.recomputed if repeats else Recomputed(0, 0)
    is_covered = all(rank.is_covered for rank in counted)
    model, formula = step.model, None
    if is_covered and model is not None:
        formula = (
            megatron_whole_attention(model, step.seq_len)
            + again.weights * recomputed_products(model)
            + again.attention * recomputed_scores(model, step.seq_len)
        )
    kind = repeats.checkpointing if repeats else None
    return CrossCheck(
        flops_per_token=per_token,
        formula_flops_per_token=formula,
        recomputed=None if kind is None else str(kind),
        ranks=len(counted),
        explanation=tuple(_explain(step, counted, per_token, formula)),
        is_covered=is_covered,
        has_recomputation=any(again),
    )


def _explain(step: Step, ranks: Sequence[TracedOperations], per_token: float, formula: float | None) -> Iterator[str]:
    if not all(rank.is_covered for rank in ranks):
        yield "Too many operators cannot be counted: `analyze --only operations` lists them."
    if missing := sum(rank.without_shapes for rank in ranks):
        yield f"{missing} products state no shapes and are not counted."
    if formula is None or abs(per_token / formula - 1) <= TOLERANCE:
        return
    assert step.model is not None
    if not any(rank.attention_share for rank in ranks):
        without_attention = formula - scores_and_values(step.model, step.seq_len)
        if abs(per_token / without_attention - 1) <= TOLERANCE:
            yield "No attention operator states its shapes. Without the attention matrix the formula agrees."
            return
    yield (
        "Fewer operations were counted: frozen weights have no gradients, and products in compiled code or in another "
        "library state no shapes. Check that batch, number of GPUs and steps are those of the trace."
        if per_token < formula
        else "More operations were counted: an evaluation in the window counts, too. Check that dimensions, sequence "
        "length, batch, number of GPUs and steps are those of the traced run."
    )
