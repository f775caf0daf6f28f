"""The same step by every convention: TFLOPs per GPU, MFU and HFU side by side.

MFU is the model's operations over what the GPU can do at most, HFU the operations that the hardware did, recomputation
included. Each convention states one of the two. The variants say the rest: what the other passes of a form would give,
and each convention with the recomputed operations added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from perfscope.constants import NS_PER_S
from perfscope.models.conventions import Checkpointing, bigscience, bigscience_passes, six_n
from perfscope.report import Json

if TYPE_CHECKING:
    from perfscope.models.transformer import Transformer

NEEDS_DIMENSIONS = "needs the dimensions of the model: give --model, or --layers, --hidden, --heads and --vocab"


class Step(NamedTuple):
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
        return flops_per_token * self.tokens / (self.step_ns / NS_PER_S) / self.gpus / 1e12

    def utilisation(self, flops_per_token: int) -> float | None:
        """The share of the peak; absent without a peak."""
        return None if self.peak_tflops is None else self.tflops_per_gpu(flops_per_token) / self.peak_tflops


class Form(NamedTuple):
    """What is said of a convention before anything is computed.

    Attributes:
        formula: Operations per token, in the letters of ``Convention.inputs``.
        source: Where the formula is published.
        printed_by: The log that prints this figure; empty for none.
    """

    formula: str
    source: str
    printed_by: str = ""


class Convention(NamedTuple):
    """One way to count the operations of a step, with its result.

    Attributes:
        name: What it is called here.
        form: Its formula and source.
        recomputes: Whether it counts recomputed activations: what it gives is then an HFU.
        flops_per_token: Operations per token; absent where dimensions are missing.
        tflops_per_gpu: TFLOPs per GPU; absent likewise.
        mfu, hfu: The share of the peak, in the one of the two that the convention states.
        inputs: What went into the formula.
        reason: Why there is no figure, or what makes it doubtful; empty for neither.
    """

    name: str
    form: Form
    recomputes: bool
    flops_per_token: int | None
    tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None
    inputs: Mapping[str, int]
    reason: str

    def data(self) -> dict[str, Json]:
        """The convention for JSON."""
        return {
            "name": self.name,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "formula": self.form.formula,
            "source": self.form.source,
            "flops_per_token": self.flops_per_token,
            "counts_recomputation": self.recomputes,
            "printed_by": self.form.printed_by or None,
            "inputs": dict(self.inputs),
            "reason": self.reason or None,
        }


_PAPER = "Narayanan et al. 2021, arXiv 2104.04473, equation 3"
_PRODUCTS = "6 (attention + MLP or top-k experts + h V)"

PAPER_FORMS = {
    Checkpointing.FULL: Form("96 L h^2 (1 + s/6h + V/16Lh)", _PAPER),
    Checkpointing.SELECTIVE: Form(
        "72 L h^2 (1 + s/6h + V/12Lh) + 4 L s h", "Korthikanti et al. 2022, arXiv 2205.05198, section 5"
    ),
    Checkpointing.NONE: Form("72 L h^2 (1 + s/6h + V/12Lh)", _PAPER),
}

FORMS = {
    "6n": Form("6 N", "Kaplan et al. 2020, arXiv 2001.08361, section 2.1"),
    "megatron_core": Form(
        f"{_PRODUCTS} + 3 L a (d_qk + d_v) s",
        "NVIDIA/Megatron-LM d98e8a6, megatron/training/training.py, num_floating_point_operations",
        "Megatron-LM since March 2025: throughput per GPU (TFLOP/s/GPU)",
    ),
    "megatron_before_2025": Form(
        f"{_PRODUCTS} + 6 L a (d_qk + d_v) s",
        "NVIDIA/Megatron-LM before 8873b55 (2025-03-06), num_floating_point_operations",
        "Megatron-LM from November 2023 to March 2025: throughput per GPU (TFLOP/s/GPU)",
    ),
    "bigscience_code": Form(
        "24 k L h^2 (1 + s/6h + V/16Lh), 32 k with a gate",
        "bigscience-workshop/Megatron-DeepSpeed, megatron/training.py, training_log",
        "Megatron-DeepSpeed: TFLOPs",
    ),
    "torchtitan": Form(
        "6 (N - embedding unless tied) + 6 L a (d_qk + d_v) s",
        "pytorch/torchtitan b5bcd76, torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
        "torchtitan: tflops and mfu",
    ),
    "palm": Form(
        "6 N + 6 L a (d_qk + d_v) s", "Chowdhery et al. 2022, arXiv 2204.02311, appendix B, N with embeddings"
    ),
}


def compare(step: Step) -> tuple[Convention, ...]:
    """Count a step by each of the six conventions, in the order from the plainest to the most detailed."""
    plain = (_bigscience(step, step.checkpointing, "bigscience"), plain_six_n(step))
    if step.model is None:
        paper = absent("megatron_paper", PAPER_FORMS[step.checkpointing])
        return (*plain, paper, *(absent(name, FORMS[name]) for name in ("megatron_core", "torchtitan", "palm")))
    from perfscope.analyzers.flops.model_comparison import dimensioned

    return (*plain, *dimensioned(step, step.model))


def variants(step: Step) -> tuple[Convention, ...]:
    """The other passes of the forms that have them, older code, and the conventions with recomputation added."""
    passes = tuple(
        _bigscience(step, other, f"bigscience_{bigscience_passes(other)}_passes")
        for other in (Checkpointing.NONE, Checkpointing.FULL)
    )
    if step.model is not None:
        from perfscope.analyzers.flops.model_comparison import other_forms

        return (*passes, *other_forms(step, step.model))
    if step.checkpointing is Checkpointing.NONE:
        return passes
    recomputed, said = (2 * step.parameters, "2 N") if step.checkpointing is Checkpointing.FULL else (0, "0")
    return (*passes, recomputing(step, plain_six_n(step), recomputed, said))


def plain_six_n(step: Step) -> Convention:
    """Count a step by ``6n``."""
    return counted(step, "6n", FORMS["6n"], six_n(step.parameters), {"N": step.parameters})


def _bigscience(step: Step, checkpointing: Checkpointing, name: str) -> Convention:
    passes = bigscience_passes(checkpointing)
    return counted(
        step,
        name,
        Form(f"{passes} passes x 2 N", 'bigscience-workshop/bigscience, experiments/gpt2.md, "Metrics"'),
        bigscience(step.parameters, checkpointing),
        {"N": step.parameters, "passes": passes},
        recomputes=checkpointing is Checkpointing.FULL,
    )


def absent(name: str, form: Form) -> Convention:
    """A convention that needs dimensions which are not known."""
    return Convention(name, form, False, None, None, None, None, {}, NEEDS_DIMENSIONS)  # noqa: FBT003 - a record


def counted(
    step: Step,
    name: str,
    form: Form,
    flops_per_token: int,
    inputs: Mapping[str, int],
    *,
    recomputes: bool = False,
    reason: str = "",
) -> Convention:
    """A convention with its figure, as MFU or as HFU."""
    used = step.utilisation(flops_per_token)
    return Convention(
        name=name,
        form=form,
        recomputes=recomputes,
        flops_per_token=flops_per_token,
        tflops_per_gpu=step.tflops_per_gpu(flops_per_token),
        mfu=None if recomputes else used,
        hfu=used if recomputes else None,
        inputs=inputs,
        reason=reason,
    )


def recomputing(step: Step, plain: Convention, recomputed_per_token: int, said: str) -> Convention:
    """A convention that counts no recomputation, with the recomputed operations added."""
    form = Form(f"{plain.form.formula} + {said}", f"{plain.form.source}; recomputation added by perfscope")
    total = (plain.flops_per_token or 0) + recomputed_per_token
    return counted(step, f"{plain.name}+recomputation", form, total, plain.inputs, recomputes=True)
