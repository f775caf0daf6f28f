"""Operations counted from shapes beside those of the formula, and why they differ where they do.

The formula is Megatron-core's products with the whole attention matrix, as kernels' shapes have it, and with what the
trace shows to be recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.flops.comparison import Step
from perfscope.analyzers.flops.per_token import (
    megatron_whole_attention,
    recomputed_products,
    recomputed_scores,
    scores_and_values,
)
from perfscope.analyzers.operations import Operations, Repeats
from perfscope.report import Json

#: A larger difference is explained.
EXPLAINED = 0.02
_MOST_TIMES = 16


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """Counted operations per token beside the formula's.

    Attributes:
        flops_per_token: Counted.
        formula_flops_per_token: The formula's; absent without dimensions.
        repeats: What the trace shows to be recomputed.
        ranks: How many ranks were counted.
        explanation: Why they differ by more than 2 %, and what could not be counted.
    """

    flops_per_token: float
    formula_flops_per_token: float | None
    repeats: Repeats
    ranks: int
    explanation: tuple[str, ...]

    @property
    def difference(self) -> float | None:
        """How far the count is above the formula, as a share; absent without dimensions."""
        return None if self.formula_flops_per_token is None else self.flops_per_token / self.formula_flops_per_token - 1

    def data(self) -> dict[str, Json]:
        """The cross-check for JSON."""
        seen = self.repeats.checkpointing
        return {
            "flops_per_token": self.flops_per_token,
            "formula_flops_per_token": self.formula_flops_per_token,
            "difference": self.difference,
            "recomputed": None if seen is None else str(seen),
            "ranks": self.ranks,
            "explanation": list(self.explanation),
        }

    def sentence(self) -> str:
        """The figures in words."""
        counted = f"The trace's shapes are {self.flops_per_token / 1e9:.4g} GFLOP a token"
        if self.formula_flops_per_token is None or self.difference is None:
            return f"{counted}; there are no dimensions to hold them against."
        formula = f"{self.formula_flops_per_token / 1e9:.4g}"
        again = "" if not _repeated(self.repeats) else " and what was recomputed"
        return f"{counted}; the formula with the whole attention matrix{again} gives {formula}: {self.difference:+.1%}."


def cross_check(step: Step, ranks: Sequence[Operations]) -> CrossCheck | None:
    """Hold what was counted against the formula; absent where no rank states shapes.

    Args:
        step: The step that was traced.
        ranks: The traced ranks: all, or some that stand for the others.
    """
    counted = [one for one in ranks if one.flops_per_step]
    if not counted:
        return None
    mean = sum(one.flops_per_step or 0.0 for one in counted) / len(counted)
    per_token = mean * step.gpus / step.tokens
    repeats = _largest([one.repeats for one in counted])
    formula = _formula(step, repeats)
    lines = []
    missing = sum(one.without_shapes for one in counted)
    if missing:
        lines.append(f"{missing} products state no shapes and are not counted.")
    if formula is not None and abs(per_token / formula - 1) > EXPLAINED:
        lines.extend(_reasons(step, counted, per_token, formula))
    return CrossCheck(per_token, formula, repeats, len(counted), tuple(lines))


def _largest(all_repeats: Sequence[Repeats]) -> Repeats:
    def largest(values: Sequence[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    return Repeats(
        largest([one.attention for one in all_repeats]),
        largest([one.mlp for one in all_repeats]),
        any(one.forward_alone for one in all_repeats),
    )


def _repeated(repeats: Repeats) -> bool:
    return bool(repeats.attention or repeats.mlp)


def _formula(step: Step, repeats: Repeats) -> float | None:
    if step.model is None:
        return None
    attention = repeats.attention if repeats.attention is not None else repeats.mlp
    mlp = repeats.mlp if repeats.mlp is not None else repeats.attention
    return (
        megatron_whole_attention(step.model, step.seq_len)
        + (mlp or 0.0) * recomputed_products(step.model)
        + (attention or 0.0) * recomputed_scores(step.model, step.seq_len)
    )


def _reasons(step: Step, ranks: Sequence[Operations], per_token: float, formula: float) -> list[str]:
    assert step.model is not None
    if any(one.repeats.forward_alone for one in ranks):
        return ["Layers ran forward without a backward pass, as in an evaluation, which is counted with the training."]
    if all(one.attention_share == 0 for one in ranks):
        rest = formula - scores_and_values(step.model, step.seq_len)
        agrees = abs(per_token / rest - 1) <= EXPLAINED
        written_out = "bmm" in ranks[0].by_operator
        if not written_out or agrees:
            what = "No attention operator states its shapes, a kernel of another library does it."
            return [f"{what} Without the attention matrix the formula agrees." if agrees else what]
    for times in range(2, _MOST_TIMES + 1):
        for factor, said in ((times, f"{times} times"), (1 / times, f"a {_ordinal(times)} of")):
            if abs(per_token / formula / factor - 1) <= EXPLAINED:
                return [
                    f"The count is {said} the formula: are the batch, the number of GPUs and the steps of the trace "
                    "those of the step?"
                ]
    if per_token < formula:
        return [
            "Less was counted: frozen weights have no gradients, and products in compiled code or in another library "
            "state no shapes."
        ]
    return ["More was counted: are the dimensions, the sequence length and the batch those of the traced run?"]


def _ordinal(number: int) -> str:
    return {2: "half", 3: "third", 4: "quarter"}.get(number, f"1/{number}")
