"""Why the conventions disagree about one run, in operations per token.

The disagreement is a handful of terms, each counted or not: the embedding table as if it were multiplied, the attention
matrix whole, by half or not at all, and recomputation. Each sentence names one term and what it is worth here.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.flops.comparison import Convention, Step

_WORTH_SAYING = 0.001


def explain(step: Step, counted: Sequence[Convention]) -> tuple[str, ...]:
    """Say how far the conventions are apart and which terms make the difference."""
    figures = {convention.name: convention for convention in counted if convention.flops_per_token is not None}
    lines = [_apart(figures, step)] if len(figures) > 1 else []
    lines.extend(_terms(step, figures))
    return tuple(line for line in lines if line)


def _apart(figures: dict[str, Convention], step: Step) -> str:
    model_only = [convention for convention in figures.values() if not convention.recomputes]
    if len(model_only) < 2:  # noqa: PLR2004 - one figure has no spread
        return ""
    low = min(model_only, key=lambda convention: convention.flops_per_token or 0)
    high = max(model_only, key=lambda convention: convention.flops_per_token or 0)
    share = _above(high, low)
    what = "TFLOPs per GPU" if step.peak_tflops is None else "MFU"
    return (
        f"The same step differs by {share:.1%} in {what} between `{low.name}` and `{high.name}`, "
        "recomputation left out: a figure without its convention's name cannot be compared."
    )


def _terms(step: Step, figures: dict[str, Convention]) -> list[str]:
    lines = []
    if {"torchtitan", "megatron_core"} <= figures.keys():
        lines.append(_attention(step, figures["torchtitan"], figures["megatron_core"]))
    if {"palm", "torchtitan"} <= figures.keys():
        lines.append(_embedding(step, figures["palm"], figures["torchtitan"]))
    if {"palm", "6n"} <= figures.keys():
        share = _above(figures["palm"], figures["6n"])
        lines.append(f"`6n` leaves the attention matrix out: `palm` adds it and is {share:.1%} above `6n`.")
    recomputing = figures.get("bigscience")
    if recomputing and recomputing.recomputes:
        lines.append("`bigscience` counts 4 passes, the recomputed one too: 4/3 of `6n`. It is an HFU, not an MFU.")
    elif recomputing:
        lines.append("`bigscience` counts 3 passes and is `6n`.")
    if step.model and not step.model.is_plain_gpt:
        lines.append(
            "`megatron_paper` assumes multi-head attention and a plain MLP of 4h, which this model does not have: "
            "its figure is that of another model."
        )
    return lines


def _attention(step: Step, whole: Convention, halved: Convention) -> str:
    from perfscope.analyzers.flops.per_token import scores_and_values

    assert step.model is not None
    half = scores_and_values(step.model, step.seq_len) // 2
    return (
        f"A causal mask needs half of the attention matrix. `megatron_core` counts that half, `torchtitan` and `palm` "
        f"the whole: {half / 1e9:.3g} GFLOP a token here, {half / (halved.flops_per_token or 1):.1%} of `megatron_core`"
        f"{_and_in_all(whole, halved, half)}."
    )


def _and_in_all(high: Convention, low: Convention, explained: int) -> str:
    rest = (high.flops_per_token or 0) - (low.flops_per_token or 0) - explained
    if abs(rest) < _WORTH_SAYING * (low.flops_per_token or 1):
        return ""
    return f"; norms, biases, the router or padding make the other {rest / 1e9:+.2g}"


def _embedding(step: Step, with_table: Convention, without: Convention) -> str:
    from perfscope.models.parameter_counts import embedding_parameters, position_parameters

    assert step.model is not None
    if step.model.tied:
        return "The embedding table is tied to the output layer, so `torchtitan` and `palm` both count it once."
    table = 6 * (embedding_parameters(step.model) + position_parameters(step.model))
    return (
        f"`palm`, `6n` and `bigscience` count the embedding table, a lookup, as a matrix product: {table / 1e9:.3g} "
        f"GFLOP a token, {_above(with_table, without):.1%} of `torchtitan`."
    )


def _above(high: Convention, low: Convention) -> float:
    assert high.flops_per_token is not None
    assert low.flops_per_token is not None
    return high.flops_per_token / low.flops_per_token - 1
