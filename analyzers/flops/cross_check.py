"""Compares operations counted from a trace's shapes with those of the formula, and explains a difference.

The formula is Megatron-core's products with the full attention matrix, as kernels' shapes have it, and with what the
trace shows to be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.flops.comparison import Step
from perfscope.analyzers.flops.operation_counts import Operations
from perfscope.analyzers.flops.per_token import (
    megatron_whole_attention,
    recomputed_products,
    recomputed_scores,
    scores_and_values,
)
from perfscope.analyzers.flops.repeats import Repeats, largest_repeats
from perfscope.constants import GIGA
from perfscope.models.conventions import Recomputed
from perfscope.report import Json

#: A larger difference is explained.
TOLERANCE = 0.02
_LARGEST_FACTOR = 16


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Counted operations per token beside the formula's.

    Attributes:
        flops_per_token: Counted.
        formula_flops_per_token: The formula's; absent without dimensions.
        repeats: What the trace shows to be recomputed.
        ranks: How many ranks were counted.
        explanation: Why they differ by more than 2 %, and what could not be counted.
        is_covered: Whether enough was counted to compare it.
        skipped_flops_per_token: What of the count was begun and launched no kernel: the last product of what torch's
            checkpoint recomputes.
    """

    flops_per_token: float
    formula_flops_per_token: float | None
    repeats: Repeats | None
    ranks: int
    explanation: tuple[str, ...]
    is_covered: bool = True
    skipped_flops_per_token: float = 0.0

    @property
    def difference(self) -> float | None:
        """How far the count is above the formula, as a share; absent without dimensions."""
        return None if self.formula_flops_per_token is None else self.flops_per_token / self.formula_flops_per_token - 1

    def data(self) -> dict[str, Json]:
        """The cross-check for JSON."""
        checkpointing = self.repeats.checkpointing if self.repeats else None
        return {
            "flops_per_token": self.flops_per_token,
            "formula_flops_per_token": self.formula_flops_per_token,
            "difference": self.difference,
            "recomputed": None if checkpointing is None else str(checkpointing),
            "skipped_flops_per_token": self.skipped_flops_per_token,
            "ranks": self.ranks,
            "explanation": list(self.explanation),
        }

    def sentence(self) -> str:
        """The figures in words."""
        counted = f"Counted from the trace's shapes: {self.flops_per_token / GIGA:.4g} GFLOP/token"
        if not self.is_covered:
            return f"{counted}, which is not all of it and is not compared with the formula."
        if self.formula_flops_per_token is None or self.difference is None:
            return f"{counted}; without the model's dimensions there is no formula to compare with."
        formula = f"{self.formula_flops_per_token / GIGA:.4g} GFLOP/token"
        recomputation = " and recomputation" if self.repeats and any(self.repeats.recomputed) else ""
        return (
            f"{counted}. The formula, with the full attention matrix{recomputation}, gives {formula} "
            f"(difference: {self.difference:+.1%})."
        )


def cross_check(step: Step, ranks: Sequence[Operations], processes: int) -> CrossCheck | None:
    """Compare what was counted with the formula; absent where no rank states shapes.

    Args:
        step: The step that was traced.
        ranks: The traced ranks: all, or a representative part.
        processes: Ranks of the job.
    """
    counted = [rank for rank in ranks if rank.flops_per_step]
    if not counted:
        return None
    mean = sum(rank.flops_per_step or 0.0 for rank in counted) / len(counted)
    per_token = mean * processes / step.tokens
    repeats = largest_repeats([rank.repeats for rank in counted])
    lines = []
    is_covered = all(rank.is_covered for rank in counted)
    formula = _formula(step, repeats) if is_covered else None
    if not is_covered:
        lines.append("Too many operators cannot be counted: `analyze --only operations` lists them.")
    missing = sum(rank.without_shapes for rank in counted)
    if missing:
        lines.append(f"{missing} products state no shapes and are not counted.")
    if formula is not None and abs(per_token / formula - 1) > TOLERANCE:
        lines.extend(_explain(step, counted, per_token, formula))
    skipped = sum(rank.skipped_flops for rank in counted) / len(counted) * processes / step.tokens
    return CrossCheck(per_token, formula, repeats, len(counted), tuple(lines), is_covered, skipped)


def _formula(step: Step, repeats: Repeats | None) -> float | None:
    if step.model is None:
        return None
    again = repeats.recomputed if repeats else Recomputed(0, 0)
    return (
        megatron_whole_attention(step.model, step.seq_len)
        + again.weights * recomputed_products(step.model)
        + again.attention * recomputed_scores(step.model, step.seq_len)
    )


def _explain(step: Step, ranks: Sequence[Operations], per_token: float, formula: float) -> list[str]:
    assert step.model is not None
    if any(rank.repeats.forward_alone for rank in ranks):
        return ["Layers ran forward without a backward pass, as in an evaluation; the count includes them."]
    if all(rank.attention_share == 0 for rank in ranks):
        without_attention = formula - scores_and_values(step.model, step.seq_len)
        agrees = abs(per_token / without_attention - 1) <= TOLERANCE
        has_separate_products = "bmm" in ranks[0].by_operator
        if not has_separate_products or agrees:
            reason = "No attention operator states its shapes; a kernel of another library computes attention."
            return [f"{reason} Without the attention matrix the formula agrees." if agrees else reason]
    for multiple in range(2, _LARGEST_FACTOR + 1):
        for factor, text in ((multiple, f"{multiple} times"), (1 / multiple, f"a {_fraction_name(multiple)} of")):
            if abs(per_token / formula / factor - 1) <= TOLERANCE:
                return [
                    f"The count is {text} the formula: check that batch, number of GPUs and steps are those of the "
                    "trace."
                ]
    if per_token < formula:
        return [
            "Fewer operations were counted: frozen weights have no gradients, and products in compiled code or in "
            "another library state no shapes."
        ]
    return [
        "More operations were counted: check that dimensions, sequence length and batch are those of the traced run."
    ]


def _fraction_name(number: int) -> str:
    return {2: "half", 3: "third", 4: "quarter"}.get(number, f"1/{number}")
