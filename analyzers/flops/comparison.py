"""The same step by every convention: TFLOPs per GPU, MFU and HFU side by side.

MFU is the model's operations over the GPU's peak, HFU the operations that the hardware did, recomputation included.
Each convention states one of the two. The variants are the other passes of a formula, other versions of code, and each
convention with the recomputed operations added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from perfscope.analyzers.flops import per_token
from perfscope.analyzers.flops.formulas import (
    FORMULAS,
    MEASURED_PAPER_FORMULA,
    PAPER_FORMULAS,
    Formula,
    bigscience_formula,
)
from perfscope.analyzers.flops.per_token import scores_and_values
from perfscope.analyzers.shared.doubt import UTILISATION_CAUSES, check_share
from perfscope.constants import GIGA, NS_PER_S, TERA
from perfscope.models.conventions import Checkpointing, Recomputed, bigscience, bigscience_passes, six_n
from perfscope.models.transformer import Transformer
from perfscope.report import Json
from perfscope.tables.model import StatedDimensions

NEEDS_DIMENSIONS = "needs the dimensions of the model: give --model, or --layers, --hidden, --heads and --vocab"

_STATED = {
    Checkpointing.NONE: Recomputed(0, 0),
    Checkpointing.SELECTIVE: Recomputed(0, 1),
    Checkpointing.FULL: Recomputed(1, 1),
}
_NEED_DIMENSIONS = ("megatron_core", "torchtitan", "palm")


class Step(NamedTuple):
    """One training step, as far as its operations depend on it.

    Attributes:
        parameters: N of the formulas that need no dimensions: the parameters that a token uses.
        model: The dimensions; absent where only the size is known.
        tokens: Tokens of the step over all GPUs.
        seq_len: Tokens in a sequence.
        checkpointing: Activation checkpointing: what is recomputed.
        step_ns: Time of the step.
        gpus: Number of GPUs.
        peak_tflops: The peak of one GPU; absent for an unknown GPU.
        measured: What selective checkpointing was measured to recompute; absent where it is the attention matrix, as in
            the formulas.
    """

    parameters: int
    model: Transformer | None
    tokens: int
    seq_len: int
    checkpointing: Checkpointing
    step_ns: int
    gpus: int
    peak_tflops: float | None
    measured: Recomputed | None = None

    @property
    def recomputed(self) -> Recomputed:
        """What of the layers' forward pass runs again."""
        return self.measured or _STATED[self.checkpointing]

    def between(self, checkpointing: Checkpointing, count: Callable[[Checkpointing], int]) -> float:
        """A figure that formulas state for each kind of checkpointing; that of measured shares lies between these."""
        if self.measured is None or checkpointing is not self.checkpointing:
            return count(checkpointing)
        none, selective, full = (count(kind) for kind in _STATED)
        return none + self.measured.attention * (selective - none) + self.measured.weights * (full - selective)

    def tflops_per_gpu(self, flops_per_token: int) -> float:
        """TFLOPs per GPU from operations per token."""
        return flops_per_token * self.tokens / (self.step_ns / NS_PER_S) / self.gpus / TERA

    def utilisation(self, flops_per_token: int) -> float | None:
        """The share of the peak, however large; absent without a peak."""
        return None if self.peak_tflops is None else self.tflops_per_gpu(flops_per_token) / self.peak_tflops


class Convention(NamedTuple):
    """One way to count the operations of a step, with its result.

    Attributes:
        name: Its name in perfscope.
        formula: Its formula and source.
        recomputes: Whether it counts recomputed activations: its figure is then an HFU.
        flops_per_token: Operations per token; absent where dimensions are missing.
        tflops_per_gpu: TFLOPs per GPU; absent likewise.
        mfu, hfu: The share of the peak, in the one of the two that the convention states.
        inputs: What went into the formula.
        reason: Why there is no figure, or what makes it doubtful; empty for neither.
    """

    name: str
    formula: Formula
    recomputes: bool
    flops_per_token: int | None
    tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None
    inputs: Mapping[str, float]
    reason: str

    def data(self) -> dict[str, Json]:
        """The convention for JSON."""
        return {
            "name": self.name,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "formula": self.formula.text,
            "source": self.formula.source,
            "flops_per_token": self.flops_per_token,
            "counts_recomputation": self.recomputes,
            "printed_by": self.formula.printed_by or None,
            "inputs": dict(self.inputs),
            "reason": self.reason or None,
        }


def compare(step: Step) -> tuple[Convention, ...]:
    """Count a step by each of the six conventions, in the order from the plainest to the most detailed."""
    by_size = (_bigscience(step, step.checkpointing, "bigscience"), _six_n(step))
    if step.model is not None:
        paper = _megatron_paper(step, step.model, step.checkpointing, "megatron_paper")
        return (*by_size, paper, *_by_dimensions(step, step.model))
    paper = _without_dimensions("megatron_paper", PAPER_FORMULAS[step.checkpointing])
    return (*by_size, paper, *(_without_dimensions(name, FORMULAS[name]) for name in _NEED_DIMENSIONS))


def variants(step: Step) -> tuple[Convention, ...]:
    """The other passes of the formulas that have them, other versions of code, and all with recomputation added."""
    passes = tuple(
        _bigscience(step, checkpointing, f"bigscience_{bigscience_passes(checkpointing)}_passes")
        for checkpointing in (Checkpointing.NONE, Checkpointing.FULL)
    )
    if step.model is not None:
        return (*passes, *_variants_by_dimensions(step, step.model))
    if step.checkpointing is Checkpointing.NONE:
        return passes
    recomputed, term = (2 * step.parameters, "2 N") if step.checkpointing is Checkpointing.FULL else (0, "0")
    return (*passes, _add_recomputation(step, _six_n(step), recomputed, term))


def describe_doubts(conventions: Sequence[Convention], step: Step) -> tuple[str, ...]:
    """Why MFU and HFU are withheld, in one sentence for all conventions; empty where they are not."""
    withheld = [
        convention
        for convention in conventions
        if convention.flops_per_token is not None and convention.mfu is None and convention.hfu is None
    ]
    if not withheld or step.peak_tflops is None:
        return ()
    shares = [step.utilisation(convention.flops_per_token or 0) or 0.0 for convention in withheld]
    names = ", ".join(f"`{convention.name}`" for convention in withheld)
    largest = check_share(max(shares), f"MFU or HFU by {names}", UTILISATION_CAUSES)
    return (largest.doubt.replace("would be", "would be up to") if len(withheld) > 1 else largest.doubt,)


def _six_n(step: Step) -> Convention:
    return _evaluate(step, "6n", FORMULAS["6n"], six_n(step.parameters), {"N": step.parameters})


def _bigscience(step: Step, checkpointing: Checkpointing, name: str) -> Convention:
    passes = step.between(checkpointing, bigscience_passes)
    return _evaluate(
        step,
        name,
        bigscience_formula(passes),
        round(step.between(checkpointing, lambda kind: bigscience(step.parameters, kind))),
        {"N": step.parameters, "passes": passes},
        recomputes=passes > bigscience_passes(Checkpointing.NONE),
    )


def _by_dimensions(step: Step, model: Transformer) -> tuple[Convention, ...]:
    """``megatron_core``, ``torchtitan`` and ``palm``."""
    dimensions = _dimensions(step, model)
    with_parameters = {"N": step.parameters, **dimensions}
    core = per_token.megatron_core(model, step.seq_len)
    titan = per_token.torchtitan(model, step.seq_len)
    return (
        _evaluate(step, "megatron_core", FORMULAS["megatron_core"], core, dimensions),
        _evaluate(step, "torchtitan", FORMULAS["torchtitan"], titan, with_parameters),
        _evaluate(step, "palm", FORMULAS["palm"], per_token.palm(model, step.seq_len), with_parameters),
    )


def _variants_by_dimensions(step: Step, model: Transformer) -> tuple[Convention, ...]:
    """The paper's three formulas, other code, and the conventions with recomputation added."""
    dimensions = _dimensions(step, model)
    before_2025 = per_token.megatron_whole_attention(model, step.seq_len)
    bigscience_code = per_token.bigscience_code(model, step.seq_len, step.checkpointing)
    stated = step._replace(measured=None)
    paper = tuple(
        _megatron_paper(stated, model, checkpointing, f"megatron_paper_{checkpointing}")
        for checkpointing in Checkpointing
    )
    other_code = (
        _evaluate(step, "megatron_before_2025", FORMULAS["megatron_before_2025"], before_2025, dimensions),
        _evaluate(
            step,
            "bigscience_code",
            FORMULAS["bigscience_code"],
            bigscience_code,
            dimensions,
            recomputes=step.checkpointing is Checkpointing.FULL,
        ),
        *_other_torchtitan(step, model),
    )
    if step.checkpointing is Checkpointing.NONE:
        return (*paper, *other_code)
    with_recomputation = tuple(
        _add_recomputation(step, convention, *_recomputed_per_token(step, model, convention.name))
        for convention in (_six_n(step), *_by_dimensions(step, model))
    )
    return (*paper, *other_code, *with_recomputation)


def _other_torchtitan(step: Step, model: Transformer) -> tuple[Convention, ...]:
    """What torchtitan printed before it left out the embedding table, and what it prints since it counts a tied one."""
    inputs = {"N": step.parameters, **_dimensions(step, model)}
    figures = {
        "torchtitan_before_april_2024": per_token.palm(model, step.seq_len),
        "torchtitan_since_may_2026": per_token.torchtitan_with_tied_table(model, step.seq_len),
    }
    return tuple(_evaluate(step, name, FORMULAS[name], figure, inputs) for name, figure in figures.items())


def _megatron_paper(step: Step, model: Transformer, checkpointing: Checkpointing, name: str) -> Convention:
    formula = PAPER_FORMULAS[checkpointing]
    if checkpointing is step.checkpointing and step.measured is not None:
        formula = MEASURED_PAPER_FORMULA
    return _evaluate(
        step,
        name,
        formula,
        round(step.between(checkpointing, lambda kind: per_token.megatron_paper(model, step.seq_len, kind))),
        _dimensions(step, model),
        recomputes=checkpointing is not Checkpointing.NONE,
        reason="" if model.is_plain_gpt else "assumes multi-head attention and a plain MLP of 4h",
    )


def _dimensions(step: Step, model: Transformer) -> dict[str, int]:
    return {
        "L": model.layers,
        "h": model.hidden,
        "a": model.heads,
        "d_qk": model.query_dim // model.heads,
        "d_v": model.value_dim // model.heads,
        "V": per_token.vocabulary_rows(model),
        "s": step.seq_len,
    }


def _recomputed_per_token(step: Step, model: Transformer, name: str) -> tuple[int, str]:
    """Operations that are repeated, counted as the convention counts them the first time, and their formula."""
    weights, attention = step.recomputed
    products = round(weights * per_token.recomputed_products(model))
    of_layers = f"{_factor(weights)}2 N of the layers" if weights else ""
    if name == "6n":
        return products, of_layers or "0"
    halved = name == "megatron_core"
    scores = round(attention * (per_token.recomputed_scores(model, step.seq_len) // (2 if halved else 1)))
    of_scores = f"{_factor(attention)}{1 if halved else 2} L a (d_qk + d_v) s" if attention else ""
    return products + scores, " + ".join(filter(None, (of_layers, of_scores))) or "0"


def _factor(share: float) -> str:
    return "" if share == 1 else f"{share:.3g} x "


def _without_dimensions(name: str, formula: Formula) -> Convention:
    """A convention that needs dimensions which are not known."""
    return Convention(
        name=name,
        formula=formula,
        recomputes=False,
        flops_per_token=None,
        tflops_per_gpu=None,
        mfu=None,
        hfu=None,
        inputs={},
        reason=NEEDS_DIMENSIONS,
    )


def _evaluate(
    step: Step,
    name: str,
    formula: Formula,
    flops_per_token: int,
    inputs: Mapping[str, float],
    *,
    recomputes: bool = False,
    reason: str = "",
) -> Convention:
    """A convention with its figure, as MFU or as HFU."""
    name_of_share = "HFU" if recomputes else "MFU"
    utilisation, doubt = check_share(
        step.utilisation(flops_per_token), f"the {name_of_share} by `{name}`", UTILISATION_CAUSES
    )
    return Convention(
        name=name,
        formula=formula,
        recomputes=recomputes,
        flops_per_token=flops_per_token,
        tflops_per_gpu=step.tflops_per_gpu(flops_per_token),
        mfu=None if recomputes else utilisation,
        hfu=utilisation if recomputes else None,
        inputs=inputs,
        reason=doubt or reason,
    )


def _add_recomputation(step: Step, convention: Convention, recomputed_per_token: int, term: str) -> Convention:
    """A convention that counts no recomputation, with the recomputed operations added."""
    formula = Formula(
        f"{convention.formula.text} + {term}", f"{convention.formula.source}; recomputation added by perfscope"
    )
    total = (convention.flops_per_token or 0) + recomputed_per_token
    return _evaluate(step, f"{convention.name}+recomputation", formula, total, convention.inputs, recomputes=True)


def explain_spread(step: Step, conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Say by how much the conventions differ."""
    figures = {convention.name: convention for convention in conventions if convention.flops_per_token is not None}
    return tuple(_range(figures, step))


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


def _excess(high: Convention, low: Convention) -> float:
    assert high.flops_per_token is not None
    assert low.flops_per_token is not None
    return high.flops_per_token / low.flops_per_token - 1


class AllowedRange(NamedTuple):
    """The operations per token that one line of a log allows, from the lowest to the highest."""

    step: int
    low: float
    high: float


class LogMatch(NamedTuple):
    """How a log's own figure compares with the conventions.

    Attributes:
        convention: The convention that explains every line; absent for none.
        lines: How many lines state a figure.
        nearest: The convention that is nearest to the log, in the median line.
        nearest_deviation: How far the log is above it, as a share.
    """

    convention: str | None
    lines: int
    nearest: str
    nearest_deviation: float


def match_log(allowed: Sequence[AllowedRange], conventions: Sequence[Convention]) -> LogMatch | None:
    """Find the convention that a log used; absent where no line states a figure or no convention has one.

    Of several that explain every line, the first is taken, so the order of ``conventions`` is the preference.
    """
    figures = [
        (convention.name, convention.flops_per_token)
        for convention in conventions
        if convention.flops_per_token is not None
    ]
    if not allowed or not figures:
        return None
    explaining = [name for name, figure in figures if all(line.low <= figure <= line.high for line in allowed)]
    # The line with the narrowest range is the most precise.
    sharpest = min(allowed, key=lambda line: (line.high - line.low) / line.high)
    logged = (sharpest.low + sharpest.high) / 2
    nearest, figure = min(figures, key=lambda name_and_figure: abs(logged / name_and_figure[1] - 1))
    return LogMatch(explaining[0] if explaining else None, len(allowed), nearest, logged / figure - 1)
