"""The same step by every convention: TFLOPs per GPU, MFU and HFU side by side.

HFU counts recomputation, MFU does not; each convention states one of the two. Letters of formulas: L layers, h hidden
size, a heads of d_qk and d_v dimensions, V vocabulary, s sequence length, N parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

from perfscope.analyzers.tflops import per_token
from perfscope.analyzers.tflops.per_token import trained_products
from perfscope.constants import NS_PER_S, TERA
from perfscope.measures.doubt import UTILISATION_CAUSES, check_share
from perfscope.models.conventions import Checkpointing, bigscience, bigscience_passes, six_n
from perfscope.models.transformer import Mixing, Transformer
from perfscope.result import Doc, Figures

NEEDS_DIMENSIONS = (
    "needs the dimensions of the model: give --model, a name or layers=32,hidden=4096,heads=32,vocab=32000"
)

_NOT_UNIFORM = "assumes attention in every layer, and that all weights are trained"
_NOT_PLAIN = "assumes multi-head attention and a plain MLP of 4h"
_NEED_DIMENSIONS = ("megatron_core", "torchtitan", "palm")


class _Formula(NamedTuple):
    """Operations per token in letters, where that is published, how it is computed, and the log that prints it."""

    text: str
    source: str
    of_model: Callable[[Transformer, int], int] | None = None
    printed_by: str | None = None


_NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, equation 3"
_PRODUCTS = "6 (attention + MLP or top-k experts + h V)"
_PAPER = {
    Checkpointing.FULL: _Formula("96 L h^2 (1 + s/6h + V/16Lh)", _NARAYANAN),
    Checkpointing.SELECTIVE: _Formula(
        "72 L h^2 (1 + s/6h + V/12Lh) + 4 L s h", "Korthikanti et al. 2022, arXiv 2205.05198, section 5"
    ),
    Checkpointing.NONE: _Formula("72 L h^2 (1 + s/6h + V/12Lh)", _NARAYANAN),
}
_FORMULAS = {
    "megatron_core": _Formula(
        f"{_PRODUCTS} + 3 L a (d_qk + d_v) s",
        "NVIDIA/Megatron-LM d98e8a6, megatron/training/training.py, num_floating_point_operations",
        per_token.megatron_core,
        "Megatron-LM since March 2025: throughput per GPU (TFLOP/s/GPU)",
    ),
    "torchtitan": _Formula(
        "6 (N - embedding, tied too) + 6 L a (d_qk + d_v) s",
        "pytorch/torchtitan v0.2.2, torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
        per_token.torchtitan,
        "torchtitan since 2024-04-26, all releases until 0.2.2: tflops and mfu",
    ),
    "palm": _Formula(
        "6 N + 6 L a (d_qk + d_v) s",
        "Chowdhery et al. 2022, arXiv 2204.02311, appendix B, N with embeddings",
        per_token.palm,
    ),
    "megatron_bridge_before_26_06": _Formula(
        f"{_PRODUCTS}, a gate only in SwiGLU, + 3 L a (d_qk + d_v) s without windows",
        "NVIDIA-NeMo/Megatron-Bridge 067f987, docs/performance-summary-archive.md, GPT OSS 120B until 26.04.01",
        per_token.megatron_bridge_before_26_06,
        "Megatron-LM, and Megatron-Bridge until container 26.04: no windows, no gates but SwiGLU's",
    ),
    "megatron_before_2025": _Formula(
        f"{_PRODUCTS} + 6 L a (d_qk + d_v) s",
        "NVIDIA/Megatron-LM before 8873b55 (2025-03-06), num_floating_point_operations",
        per_token.megatron_whole_attention,
        "Megatron-LM from November 2023 to March 2025: throughput per GPU (TFLOP/s/GPU)",
    ),
    "torchtitan_before_april_2024": _Formula(
        "6 N + 6 L a (d_qk + d_v) s",
        "pytorch/torchtitan e5d1b89 (2024-03-20) until 0c6ca90 (2024-04-26), get_num_flop_per_token, all parameters",
        per_token.palm,
        "torchtitan from 2024-03-20 to 2024-04-26, and its published tables of Llama 2 and 3 on A100: mfu",
    ),
    "torchtitan_since_may_2026": _Formula(
        "6 (N - embedding unless tied) + 6 L a (d_qk + d_v) s",
        "pytorch/torchtitan b5bcd76, torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
        per_token.torchtitan_with_tied_table,
        "torchtitan's main branch since 4ed3c53 (2026-05-08): tflops and mfu",
    ),
    "torchtitan_since_september_2026": _Formula(
        "6 (N - embedding unless tied, + h V a prediction module) + 6 L a (d_qk + d_v) min(s, window)",
        "pytorch/torchtitan 01c01c8, torchtitan/models/utils.py, pull requests 4300 and 4441",
        per_token.torchtitan_with_windows,
        "torchtitan's main branch since September 2026: also windows, delta rules, logits of prediction modules",
    ),
}
#: Forms that differ from another convention for some models alone.
_OTHERWISE_SAME = {
    "megatron_bridge_before_26_06": per_token.megatron_core,
    "torchtitan_since_september_2026": per_token.torchtitan_with_tied_table,
}
_SIX_N = _Formula("6 N", "Kaplan et al. 2020, arXiv 2001.08361, section 2.1")
_BIGSCIENCE_CODE = _Formula(
    "24 k L h^2 (1 + s/6h + V/16Lh), 32 k with a gate",
    "bigscience-workshop/Megatron-DeepSpeed, megatron/training.py, training_log",
    printed_by="Megatron-DeepSpeed: TFLOPs",
)


class Step(NamedTuple):
    """One training step, as far as its operations depend on it.

    ``parameters`` are those that a token uses, ``tokens`` are over all GPUs. ``model`` is absent where only the size is
    known, ``peak_tflops`` for an unknown GPU. Attention counts as in sequences of ``attended_len``, which is not
    ``seq_len`` where sequences are packed or vary.
    """

    parameters: int
    model: Transformer | None
    tokens: int
    seq_len: int
    checkpointing: Checkpointing
    step_ns: int
    gpus: int
    peak_tflops: float | None
    attended_len: int | None = None

    @property
    def attention_len(self) -> int:
        """Tokens of the sequences that attention stays within."""
        return self.attended_len or self.seq_len

    @property
    def without_gradients(self) -> int:
        """Operations for a token that frozen weights save: the gradients of the weights."""
        model = self.model
        return six_n(self.parameters) - trained_products(model, self.parameters) if model else 0

    def tflops_per_gpu(self, flops_per_token: int) -> float:
        """TFLOPs per GPU from operations per token."""
        return flops_per_token * self.tokens / (self.step_ns / NS_PER_S) / self.gpus / TERA

    def utilisation(self, flops_per_token: int) -> float | None:
        """The share of the peak, however large; absent without a peak."""
        return None if self.peak_tflops is None else self.tflops_per_gpu(flops_per_token) / self.peak_tflops


class Convention(Figures, frozen=True):
    """The median step by one convention of counting operations."""

    name: Annotated[str, Doc("Its name in perfscope.")]
    formula: Annotated[str, Doc("Its formula.")]
    source: Annotated[str, Doc("Where the formula is from.")]
    printed_by: Annotated[str | None, Doc("The framework that prints it.")]
    counts_recomputation: Annotated[bool, Doc("Whether recomputed activations count: the share is then an HFU.")]
    flops_per_token: Annotated[int | None, Doc("Operations for a token; None where dimensions are missing.")]
    tflops_per_gpu: Annotated[
        float | None, Doc("``flops_per_token * tokens_per_s / gpus / 10**12``; None where dimensions are missing.")
    ]
    mfu: Annotated[float | None, Doc("``tflops_per_gpu`` over the dense peak, without recomputation.")]
    hfu: Annotated[float | None, Doc("The same, where the convention counts recomputation.")]
    reason: Annotated[str | None, Doc("Why there is no figure, or what makes it doubtful.")]


def compare(step: Step) -> tuple[Convention, ...]:
    """Count a step by each of the six conventions, in the order from the plainest to the most detailed."""
    return (
        _bigscience(step, step.checkpointing, "bigscience"),
        _evaluate(step, "6n", _SIX_N, six_n(step.parameters) - step.without_gradients),
        _paper(step, step.checkpointing, "megatron_paper"),
        *_by_formulas(step, _NEED_DIMENSIONS),
    )


def variants(step: Step) -> tuple[Convention, ...]:
    """The other passes of the formulas that have them, and other versions of code."""
    found = [
        _bigscience(step, kind, f"bigscience_{bigscience_passes(kind)}_passes")
        for kind in (Checkpointing.NONE, Checkpointing.FULL)
    ]
    if step.model is not None:
        is_uniform = _is_uniform(step.model)
        found += [_paper(step, kind, f"megatron_paper_{kind}") for kind in Checkpointing if is_uniform]
        code = per_token.bigscience_code(step.model, step.attention_len, step.checkpointing)
        names = [name for name in _FORMULAS if name not in _NEED_DIMENSIONS and _differs(step, name)]
        is_full = step.checkpointing is Checkpointing.FULL
        found += _by_formulas(step, [name for name in names if name.startswith("megatron")])
        if is_uniform:
            found.append(_evaluate(step, "bigscience_code", _BIGSCIENCE_CODE, code, recomputes=is_full))
        found += _by_formulas(step, [name for name in names if not name.startswith("megatron")])
    return tuple(found)


def _differs(step: Step, name: str) -> bool:
    """Whether a form is another than the one that it is for most models."""
    usual, formula = _OTHERWISE_SAME.get(name), _FORMULAS[name].of_model
    if usual is None or formula is None or step.model is None:
        return True
    return formula(step.model, step.attention_len) != usual(step.model, step.attention_len)


def _bigscience(step: Step, checkpointing: Checkpointing, name: str) -> Convention:
    passes = bigscience_passes(checkpointing)
    formula = _Formula(f"{passes} passes x 2 N", 'bigscience-workshop/bigscience, experiments/gpt2.md, "Metrics"')
    flops = bigscience(step.parameters, checkpointing) - step.without_gradients
    recomputes = passes > bigscience_passes(Checkpointing.NONE)
    return _evaluate(step, name, formula, flops, recomputes=recomputes)


def _paper(step: Step, checkpointing: Checkpointing, name: str) -> Convention:
    model, formula = step.model, _PAPER[checkpointing]
    if model is None:
        return _evaluate(step, name, formula, None)
    if not _is_uniform(model):
        return _evaluate(step, name, formula, None, reason=_NOT_UNIFORM)
    flops = per_token.megatron_paper(model, step.attention_len, checkpointing)
    reason = None if model.is_plain_gpt else _NOT_PLAIN
    return _evaluate(step, name, formula, flops, recomputes=checkpointing is not Checkpointing.NONE, reason=reason)


def _is_uniform(model: Transformer) -> bool:
    """Whether every layer has attention over tokens and all weights are trained, as closed forms assume."""
    return model.trained == 1 and all(mixer.kind in (Mixing.WINDOW, Mixing.CHUNK) for mixer in model.mixers)


def _by_formulas(step: Step, names: Iterable[str]) -> tuple[Convention, ...]:
    found = []
    for name in names:
        formula, flops = _FORMULAS[name], None
        if step.model is not None and formula.of_model is not None:
            flops = formula.of_model(step.model, step.attention_len)
        found.append(_evaluate(step, name, formula, flops))
    return tuple(found)


def _evaluate(
    step: Step,
    name: str,
    formula: _Formula,
    flops_per_token: int | None,
    *,
    recomputes: bool = False,
    reason: str | None = None,
) -> Convention:
    tflops = share = None
    if flops_per_token is None:
        reason, recomputes = reason or NEEDS_DIMENSIONS, False
    else:
        tflops = step.tflops_per_gpu(flops_per_token)
        name_of_share = f"the {'HFU' if recomputes else 'MFU'} by `{name}`"
        share, doubt = check_share(step.utilisation(flops_per_token), name_of_share, UTILISATION_CAUSES)
        reason = doubt or reason
    return Convention(
        name=name,
        formula=formula.text,
        source=formula.source,
        printed_by=formula.printed_by,
        counts_recomputation=recomputes,
        flops_per_token=flops_per_token,
        tflops_per_gpu=tflops,
        mfu=None if recomputes else share,
        hfu=share if recomputes else None,
        reason=reason,
    )


def describe_doubts(conventions: Sequence[Convention], step: Step) -> tuple[str, ...]:
    """Why MFU and HFU are withheld, in one sentence for all conventions; empty where they are not."""
    withheld = [each for each in conventions if each.flops_per_token and each.mfu is None and each.hfu is None]
    if not withheld or step.peak_tflops is None:
        return ()
    names = ", ".join(f"`{convention.name}`" for convention in withheld)
    largest = max(step.utilisation(convention.flops_per_token or 0) or 0.0 for convention in withheld)
    doubt = check_share(largest, f"MFU or HFU by {names}", UTILISATION_CAUSES).doubt
    return (doubt.replace("would be", "would be up to") if len(withheld) > 1 else doubt,)


def describe_kinds(model: Transformer) -> Iterator[str]:
    """Say in words which layers have no attention over the whole sequence, and what conventions count of them."""
    if _is_uniform(model) and not model.is_plain_gpt:
        yield f"`megatron_paper` {_NOT_PLAIN}, so that it is not what this model needs."
    for mixer in model.mixers:
        layers = f"{mixer.layers} of {model.layers} layers have {mixer.kind}"
        match mixer.kind:
            case Mixing.WINDOW | Mixing.CHUNK:
                yield (
                    f"{layers} of {mixer.window} tokens. `megatron_core` counts that; `torchtitan` and `palm` count "
                    "the whole sequence."
                )
            case Mixing.COMPRESSED if mixer.ratio:
                chosen = f"the {mixer.top_k} best of the keys" if mixer.top_k else "all keys"
                yield (
                    f"{layers}: a window of {mixer.window} tokens, and {chosen} that each stand for {mixer.ratio} "
                    "tokens. All conventions count that."
                )
            case Mixing.MAMBA | Mixing.DELTA:
                yield (
                    f"{layers} in place of attention. `megatron_core` counts its state; `torchtitan` and `palm` count "
                    "its weights alone."
                )
        if mixer.kind is Mixing.MAMBA and mixer.width != 2 * model.hidden:
            yield (
                f"Megatron takes Mamba-2 layers as {2 * model.hidden} wide. They are {mixer.width} wide here, so "
                "`megatron_core` is not what the model needs."
            )


def explain_spread(step: Step, conventions: Sequence[Convention]) -> tuple[str, ...]:
    """Say by how much the conventions without recomputation differ."""
    figures = {each.name: each.flops_per_token for each in conventions if not each.counts_recomputation}
    known = {name: flops for name, flops in figures.items() if flops is not None}
    low, high = min(known, key=known.__getitem__, default=""), max(known, key=known.__getitem__, default="")
    if low == high:
        return ()
    quantity = "TFLOPs per GPU" if step.peak_tflops is None else "MFU"
    return (
        f"Spread: {known[high] / known[low] - 1:.1%} in {quantity} for the same step, from `{low}` to `{high}`, "
        "recomputation excluded. Compare figures of the same convention only.",
    )


class LogMatch(NamedTuple):
    """The convention that explains every line, and how far the most precise line is above the nearest, as a share."""

    convention: str | None
    lines: int
    nearest: str
    nearest_deviation: float


def match_log(allowed: Sequence[tuple[float, float]], conventions: Sequence[Convention]) -> LogMatch | None:
    """Find the convention that a log used; absent where no line states a figure or no convention has one.

    ``allowed`` are the lowest and highest operations per token of each line. Of several conventions that explain every
    line, the first is taken.
    """
    figures = {each.name: each.flops_per_token for each in conventions if each.flops_per_token is not None}
    if not allowed or not figures:
        return None
    explaining = [name for name, figure in figures.items() if all(low <= figure <= high for low, high in allowed)]
    low, high = min(allowed, key=lambda edges: 1 - edges[0] / edges[1])
    logged = (low + high) / 2
    nearest = min(figures, key=lambda name: abs(logged / figures[name] - 1))
    return LogMatch(next(iter(explaining), None), len(allowed), nearest, logged / figures[nearest] - 1)
