"""The same step by every convention: TFLOPs per GPU, MFU and HFU side by side, and why they differ.

MFU is the model's operations over what the GPU can do at most, HFU the operations that the hardware did, recomputation
included. Each convention states one of the two. The variants say the rest: what the other passes of a form would give,
and each convention with the recomputed operations added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfscope.analyzers import conventions as per_token
from perfscope.analyzers.conventions import Checkpointing
from perfscope.report import Json
from perfscope.transformer import Transformer

_NS_PER_S = 10**9
_NEEDS_DIMENSIONS = "needs the dimensions of the model: give --model, or --layers, --hidden, --heads and --vocab"


@dataclass(frozen=True, slots=True)
class Step:
    """One training step, as far as its operations depend on it.

    Attributes:
        parameters: N of the forms that need no dimensions: the parameters that a token uses.
        model: The dimensions; absent where only the size is known.
        tokens: Tokens of the step over all GPUs.
        seq_len: Tokens in a sequence.
        checkpointing: Which activations are recomputed.
        step_ns: Time of the step.
        gpus: Number of GPUs.
        peak_tflops: What one GPU can do at most; absent for an unknown GPU.
    """

    parameters: int
    model: Transformer | None
    tokens: int
    seq_len: int
    checkpointing: Checkpointing
    step_ns: int
    gpus: int
    peak_tflops: float | None

    def tflops_per_gpu(self, flops_per_token: int) -> float:
        """TFLOPs per GPU from operations per token."""
        return flops_per_token * self.tokens / (self.step_ns / _NS_PER_S) / self.gpus / 1e12

    def utilisation(self, flops_per_token: int) -> float | None:
        """The share of the peak; absent without a peak."""
        return None if self.peak_tflops is None else self.tflops_per_gpu(flops_per_token) / self.peak_tflops


@dataclass(frozen=True, slots=True)
class Convention:
    """One way to count the operations of a step, with its result.

    Attributes:
        name: What it is called here.
        formula: Operations per token, in the letters of ``inputs``.
        source: Where the formula is published.
        printed_by: The log that prints this figure; empty for none.
        recomputes: Whether it counts recomputed activations: what it gives is then an HFU.
        flops_per_token: Operations per token; absent where dimensions are missing.
        tflops_per_gpu: TFLOPs per GPU; absent likewise.
        mfu, hfu: The share of the peak, in the one of the two that the convention states.
        inputs: What went into the formula.
        reason: Why there is no figure, or what makes it doubtful; empty for neither.
    """

    name: str
    formula: str
    source: str
    printed_by: str
    recomputes: bool
    flops_per_token: int | None
    tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None
    inputs: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    def data(self) -> dict[str, Json]:
        """The convention for JSON."""
        return {
            "name": self.name,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "formula": self.formula,
            "source": self.source,
            "flops_per_token": self.flops_per_token,
            "counts_recomputation": self.recomputes,
            "printed_by": self.printed_by or None,
            "inputs": dict(self.inputs),
            "reason": self.reason or None,
        }


def compare(step: Step) -> tuple[Convention, ...]:
    """Count a step by each of the six conventions, in the order from the plainest to the most detailed."""
    return (
        _bigscience(step, step.checkpointing, "bigscience"),
        _six_n(step),
        _megatron_paper(step, step.checkpointing, "megatron_paper"),
        _megatron_core(step),
        _torchtitan(step),
        _palm(step),
    )


def variants(step: Step) -> tuple[Convention, ...]:
    """The other passes of the forms that have them, older code, and the conventions with recomputation added."""
    passes = tuple(
        _bigscience(step, other, f"bigscience_{per_token.bigscience_passes(other)}_passes")
        for other in (Checkpointing.NONE, Checkpointing.FULL)
    )
    if step.model is None:
        return (*passes, *_with_recomputation(step))
    forms = tuple(_megatron_paper(step, form, f"megatron_paper_{form}") for form in Checkpointing)
    return (*passes, *forms, _whole_attention(step), _bigscience_code(step), *_with_recomputation(step))


def _result(
    step: Step,
    *,
    name: str,
    formula: str,
    source: str,
    flops_per_token: int | None,
    inputs: Mapping[str, int],
    recomputes: bool = False,
    printed_by: str = "",
    reason: str = "",
) -> Convention:
    used = None if flops_per_token is None else step.utilisation(flops_per_token)
    return Convention(
        name=name,
        formula=formula,
        source=source,
        printed_by=printed_by,
        recomputes=recomputes,
        flops_per_token=flops_per_token,
        tflops_per_gpu=None if flops_per_token is None else step.tflops_per_gpu(flops_per_token),
        mfu=None if recomputes else used,
        hfu=used if recomputes else None,
        inputs=inputs if flops_per_token is not None else {},
        reason=reason if flops_per_token is not None else _NEEDS_DIMENSIONS,
    )


def _bigscience(step: Step, checkpointing: Checkpointing, name: str) -> Convention:
    passes = per_token.bigscience_passes(checkpointing)
    return _result(
        step,
        name=name,
        formula=f"{passes} passes x 2 N",
        source='bigscience-workshop/bigscience, experiments/gpt2.md, "Metrics"',
        flops_per_token=per_token.bigscience(step.parameters, checkpointing),
        inputs={"N": step.parameters, "passes": passes},
        recomputes=checkpointing is Checkpointing.FULL,
    )


def _six_n(step: Step) -> Convention:
    return _result(
        step,
        name="6n",
        formula="6 N",
        source="Kaplan et al. 2020, arXiv 2001.08361, section 2.1",
        flops_per_token=per_token.six_n(step.parameters),
        inputs={"N": step.parameters},
    )


_PAPER_FORMULAS = {
    Checkpointing.FULL: "96 L h^2 (1 + s/6h + V/16Lh)",
    Checkpointing.SELECTIVE: "72 L h^2 (1 + s/6h + V/12Lh) + 4 L s h",
    Checkpointing.NONE: "72 L h^2 (1 + s/6h + V/12Lh)",
}


def _megatron_paper(step: Step, checkpointing: Checkpointing, name: str) -> Convention:
    model = step.model
    doubt = "" if model is None or model.is_plain_gpt else "assumes multi-head attention and a plain MLP of 4h"
    selective = checkpointing is Checkpointing.SELECTIVE
    return _result(
        step,
        name=name,
        formula=_PAPER_FORMULAS[checkpointing],
        source="Korthikanti et al. 2022, arXiv 2205.05198, section 5"
        if selective
        else "Narayanan et al. 2021, arXiv 2104.04473, equation 3",
        flops_per_token=per_token.megatron_paper(model, step.seq_len, checkpointing) if model else None,
        inputs=_dimensions(step),
        recomputes=checkpointing is not Checkpointing.NONE,
        reason=doubt,
    )


_MEGATRON_PRODUCTS = "6 (attention + MLP or top-k experts + h V)"


def _megatron_core(step: Step) -> Convention:
    return _result(
        step,
        name="megatron_core",
        formula=f"{_MEGATRON_PRODUCTS} + 3 L a (d_qk + d_v) s",
        source="NVIDIA/Megatron-LM d98e8a6, megatron/training/training.py, num_floating_point_operations",
        flops_per_token=per_token.megatron_core(step.model, step.seq_len) if step.model else None,
        inputs=_dimensions(step),
        printed_by="Megatron-LM since March 2025: throughput per GPU (TFLOP/s/GPU)",
    )


def _whole_attention(step: Step) -> Convention:
    assert step.model is not None
    return _result(
        step,
        name="megatron_before_2025",
        formula=f"{_MEGATRON_PRODUCTS} + 6 L a (d_qk + d_v) s",
        source="NVIDIA/Megatron-LM before 8873b55 (2025-03-06), num_floating_point_operations",
        flops_per_token=per_token.megatron_whole_attention(step.model, step.seq_len),
        inputs=_dimensions(step),
        printed_by="Megatron-LM from November 2023 to March 2025: throughput per GPU (TFLOP/s/GPU)",
    )


def _bigscience_code(step: Step) -> Convention:
    assert step.model is not None
    return _result(
        step,
        name="bigscience_code",
        formula="24 k L h^2 (1 + s/6h + V/16Lh), 32 k with a gate",
        source="bigscience-workshop/Megatron-DeepSpeed, megatron/training.py, training_log",
        flops_per_token=per_token.bigscience_code(step.model, step.seq_len, step.checkpointing),
        inputs=_dimensions(step),
        recomputes=step.checkpointing is Checkpointing.FULL,
        printed_by="Megatron-DeepSpeed: TFLOPs",
    )


def _torchtitan(step: Step) -> Convention:
    return _result(
        step,
        name="torchtitan",
        formula="6 (N - embedding unless tied) + 6 L a (d_qk + d_v) s",
        source="pytorch/torchtitan b5bcd76, torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
        flops_per_token=per_token.torchtitan(step.model, step.seq_len) if step.model else None,
        inputs={"N": step.parameters, **_dimensions(step)},
        printed_by="torchtitan: tflops and mfu",
    )


def _palm(step: Step) -> Convention:
    return _result(
        step,
        name="palm",
        formula="6 N + 6 L a (d_qk + d_v) s",
        source="Chowdhery et al. 2022, arXiv 2204.02311, appendix B, N with embeddings",
        flops_per_token=per_token.palm(step.model, step.seq_len) if step.model else None,
        inputs={"N": step.parameters, **_dimensions(step)},
    )


def _dimensions(step: Step) -> dict[str, int]:
    model = step.model
    if model is None:
        return {}
    return {
        "L": model.layers,
        "h": model.hidden,
        "a": model.heads,
        "d_qk": model.query_dim // model.heads,
        "d_v": model.value_dim // model.heads,
        "V": per_token.vocabulary_rows(model),
        "s": step.seq_len,
    }


def _with_recomputation(step: Step) -> tuple[Convention, ...]:
    """The conventions that count none, with the recomputed operations added: an HFU for each."""
    if step.checkpointing is Checkpointing.NONE:
        return ()
    base = (
        (_six_n(step),) if step.model is None else (_six_n(step), _megatron_core(step), _torchtitan(step), _palm(step))
    )
    return tuple(
        _result(
            step,
            name=f"{convention.name}+recomputation",
            formula=f"{convention.formula} + {formula}",
            source=f"{convention.source}; recomputation added by perfscope",
            flops_per_token=(convention.flops_per_token or 0) + operations,
            inputs=convention.inputs,
            recomputes=True,
        )
        for convention in base
        for operations, formula in [_recomputation(step, convention.name)]
    )


def _recomputation(step: Step, name: str) -> tuple[int, str]:
    """Operations that are done twice, counted as the convention counts them the first time."""
    full = step.checkpointing is Checkpointing.FULL
    model = step.model
    if model is None:
        return (2 * step.parameters, "2 N") if full else (0, "0")
    products = per_token.recomputed_products(model) if full else 0
    if name == "6n":
        return products, "2 N of the layers" if full else "0"
    halved = name == "megatron_core"
    scores = per_token.recomputed_scores(model, step.seq_len) // (2 if halved else 1)
    scores_formula = f"{1 if halved else 2} L a (d_qk + d_v) s"
    return products + scores, f"2 N of the layers + {scores_formula}" if full else scores_formula
