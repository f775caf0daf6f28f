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
from perfscope.tables.model import StatedDimensions

_NEGLIGIBLE = 0.001


def explain_spread(step: Step, conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Say by how much the conventions differ and which terms make the difference."""
    figures = {convention.name: convention for convention in conventions if convention.flops_per_token is not None}
    return (*_range(figures, step), *_terms(step, figures))


def explain_window(step: Step, stated: StatedDimensions, headline: Convention) -> tuple[str, ...]:
    """Say what the headline counts too much where layers do not attend to the whole sequence."""
    model, window = step.model, stated.window
    if model is None or window is None or window >= step.seq_len or not headline.flops_per_token:
        return ()
    some = stated.window_layers
    # Under a causal mask a token attends to half of the sequence in the mean, with a window to less.
    unseen = (step.seq_len - window) ** 2 / (2 * step.seq_len)
    excess = scores_and_values(model, 1) * unseen * (some or model.layers) / model.layers
    layers, at_most = ("Layers", "up to ") if some is None else (f"{some} of {model.layers} layers", "")
    return (
        f"{layers} attend to the last {window} tokens alone. Every convention counts the whole sequence: {at_most}"
        f"{excess / GIGA:.3g} GFLOP/token more, {excess / headline.flops_per_token:.1%} of `{headline.name}`.",
    )


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
    if {"torchtitan", "palm", "megatron_core"} <= figures.keys():
        tied = step.model is not None and step.model.tied
        lines.append(_attention(step, figures["palm" if tied else "torchtitan"], figures["megatron_core"]))
    if {"palm", "torchtitan"} <= figures.keys():
        lines.append(_embedding(step, figures["palm"], figures["torchtitan"]))
    if {"palm", "6n"} <= figures.keys():
        share = _excess(figures["palm"], figures["6n"])
        lines.append(f"`6n` excludes the attention matrix; `palm` includes it and is {share:.1%} above `6n`.")
    recomputing = figures.get("bigscience")
    if recomputing and recomputing.recomputes:
        passes = f"{recomputing.inputs['passes']:.3g}"
        lines.append(f"`bigscience` counts {passes} passes, recomputation included: {passes}/3 of `6n`. It is an HFU.")
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
    table = 6 * (embedding_parameters(step.model) + position_parameters(step.model))
    size = f"{table / GIGA:.3g} GFLOP/token, {_excess(with_table, without):.1%} of `torchtitan`"
    if step.model.tied:
        return f"The embedding table does the work of the output layer, too; `torchtitan` leaves it out: {size}."
    return f"`palm`, `6n` and `bigscience` count the embedding table, a lookup, as a matrix product: {size}."


def _excess(high: Convention, low: Convention) -> float:
    assert high.flops_per_token is not None
    assert low.flops_per_token is not None
    return high.flops_per_token / low.flops_per_token - 1
