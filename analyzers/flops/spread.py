"""Why the conventions differ for the same run, in operations per token.

They differ in a few terms that each counts or leaves out: the embedding table as if it were multiplied, the attention
matrix in full, by half or not at all, and recomputation. Each sentence names a term and its size here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfscope.analyzers.flops.comparison import Convention, Step
from perfscope.analyzers.flops.per_token import scores_and_values
from perfscope.constants import GIGA
from perfscope.models.parameter_counts import embedding_parameters, position_parameters

_NEGLIGIBLE = 0.001


def explain_spread(step: Step, conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Say by how much the conventions differ and which terms make the difference."""
    figures = {convention.name: convention for convention in conventions if convention.flops_per_token is not None}
    return (*_range(figures, step), *_terms(step, figures))


def _range(figures: Mapping[str, Convention], step: Step) -> list[str]:
    without_recomputation = [convention for convention in figures.values() if not convention.recomputes]
    if not without_recomputation:
        return []
    low = min(without_recomputation, key=lambda convention: convention.flops_per_token or 0)
    high = max(without_recomputation, key=lambda convention: convention.flops_per_token or 0)
    if low is high:
        return []
    quantity = "TFLOPs per GPU" if step.peak_tflops is None else "MFU"
    return [
        f"Spread: {_excess(high, low):.1%} in {quantity} for the same step, from `{low.name}` to `{high.name}`, "
        "recomputation excluded. Compare figures of the same convention only."
    ]


def _terms(step: Step, figures: Mapping[str, Convention]) -> list[str]:
    lines = []
    if {"torchtitan", "megatron_core"} <= figures.keys():
        lines.append(_attention(step, figures["torchtitan"], figures["megatron_core"]))
    if {"palm", "torchtitan"} <= figures.keys():
        lines.append(_embedding(step, figures["palm"], figures["torchtitan"]))
    if {"palm", "6n"} <= figures.keys():
        share = _excess(figures["palm"], figures["6n"])
        lines.append(f"`6n` excludes the attention matrix; `palm` includes it and is {share:.1%} above `6n`.")
    recomputing = figures.get("bigscience")
    if recomputing and recomputing.recomputes:
        lines.append("`bigscience` counts 4 passes, recomputation included: 4/3 of `6n`. It is an HFU, not an MFU.")
    elif recomputing:
        lines.append("`bigscience` counts 3 passes, the same as `6n`.")
    if step.model and not step.model.is_plain_gpt:
        lines.append(
            "`megatron_paper` assumes multi-head attention and a plain MLP of 4h, which this model does not have, so "
            "its figure does not apply."
        )
    return lines


def _attention(step: Step, full: Convention, halved: Convention) -> str:
    assert step.model is not None
    half = scores_and_values(step.model, step.seq_len) // 2
    share = half / (halved.flops_per_token or 1)
    return (
        "A causal mask needs half of the attention matrix. `megatron_core` counts half, `torchtitan` and `palm` the "
        f"full matrix: {half / GIGA:.3g} GFLOP/token more, {share:.1%} of `megatron_core`"
        f"{_remainder(full, halved, half)}."
    )


def _remainder(high: Convention, low: Convention, explained: int) -> str:
    rest = (high.flops_per_token or 0) - (low.flops_per_token or 0) - explained
    if abs(rest) < _NEGLIGIBLE * (low.flops_per_token or 1):
        return ""
    return f"; norms, biases, the router or padding account for {rest / GIGA:+.2g} GFLOP/token"


def _embedding(step: Step, with_table: Convention, without: Convention) -> str:
    assert step.model is not None
    if step.model.tied:
        return "The embedding table is tied to the output layer, so `torchtitan` and `palm` both count it once."
    table = 6 * (embedding_parameters(step.model) + position_parameters(step.model))
    return (
        f"`palm`, `6n` and `bigscience` count the embedding table, a lookup, as a matrix product: {table / GIGA:.3g} "
        f"GFLOP/token, {_excess(with_table, without):.1%} of `torchtitan`."
    )


def _excess(high: Convention, low: Convention) -> float:
    assert high.flops_per_token is not None
    assert low.flops_per_token is not None
    return high.flops_per_token / low.flops_per_token - 1
