"""What a trace's shapes say of the operations of a step, beside the formula."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.comparison import Step
from perfscope.analyzers.conventions import Checkpointing
from perfscope.analyzers.counted import EXPLAINED, Counted, count
from perfscope.analyzers.model_conventions import megatron_whole_attention, recomputed_products, recomputed_scores
from perfscope.errors import MissingInput, UsageError
from perfscope.report import Json
from perfscope.sources.trace_products import read_products


class TraceAnswer(NamedTuple):
    """The cross-check: the value of ``trace`` in JSON, and the same in sentences."""

    data: Json
    notes: tuple[str, ...]


def cross_check(path: Path, step: Step) -> TraceAnswer:
    """Count a trace's products and hold them against the formula.

    Raises:
        UsageError: The trace states no shapes.
    """
    products = read_products(path)
    try:
        counted = count(products)
    except MissingInput as missing:
        raise UsageError(missing.problem) from None
    per_token = counted.flops_per_step * step.gpus / step.tokens
    formula = _formula(step, counted)
    difference = None if formula is None else per_token / formula - 1
    reasons = _reasons(step, counted, difference)
    data: Json = {
        "path": str(path),
        "steps": products.steps,
        "flops_per_token": per_token,
        "tflops_per_gpu": counted.flops_per_step / (step.step_ns / 1e9) / 1e12,
        "formula_flops_per_token": formula,
        "difference": difference,
        "recomputed": counted.recomputed,
        "explanation": list(reasons),
    }
    return TraceAnswer(data, (_sentence(per_token, formula, difference), *reasons))


def _formula(step: Step, counted: Counted) -> int | None:
    """The whole attention matrix, as kernels' shapes have it, and what the trace shows to be recomputed."""
    if step.model is None:
        return None
    formula = megatron_whole_attention(step.model, step.seq_len)
    if counted.recomputed:
        formula += recomputed_products(step.model) + recomputed_scores(step.model, step.seq_len)
    return formula


def _sentence(per_token: float, formula: int | None, difference: float | None) -> str:
    counted = f"The trace's shapes are {per_token / 1e9:.4g} GFLOP a token"
    if formula is None or difference is None:
        return f"{counted}; there are no dimensions to hold them against."
    return f"{counted}; the formula with the whole attention matrix gives {formula / 1e9:.4g}: {difference:+.1%}."


def _reasons(step: Step, counted: Counted, difference: float | None) -> tuple[str, ...]:
    lines = []
    asked = step.checkpointing is Checkpointing.FULL
    if counted.recomputed is not None and counted.recomputed != asked:
        seen = "Recomputation is in the trace" if counted.recomputed else "No recomputation is in the trace"
        lines.append(f"{seen}, but --checkpointing is {step.checkpointing}: HFU is computed with the wrong one.")
    if counted.without_shapes:
        lines.append(f"{counted.without_shapes} products state no shapes and are not counted.")
    if difference is None or abs(difference) <= EXPLAINED:
        return tuple(lines)
    if counted.attention_share == 0:
        lines.append("No attention operator of PyTorch is in the trace: a kernel of another library is not counted.")
    if not lines:
        lines.append("More than 2 % apart: are the dimensions, --gbs, --seq-len or --gpus those of the traced run?")
    return tuple(lines)
