"""The conventions' formulas for operations per token, in letters, and where each is published."""

from __future__ import annotations

from typing import NamedTuple

from perfscope.models.conventions import Checkpointing

_PAPER = "Narayanan et al. 2021, arXiv 2104.04473, equation 3"
_PRODUCTS = "6 (attention + MLP or top-k experts + h V)"


class Formula(NamedTuple):
    """How a convention counts.

    Attributes:
        text: Operations per token, in the letters of ``Convention.inputs``.
        source: Where the formula is published.
        printed_by: The log that prints this figure; empty for none.
    """

    text: str
    source: str
    printed_by: str = ""


PAPER_FORMULAS = {
    Checkpointing.FULL: Formula("96 L h^2 (1 + s/6h + V/16Lh)", _PAPER),
    Checkpointing.SELECTIVE: Formula(
        "72 L h^2 (1 + s/6h + V/12Lh) + 4 L s h", "Korthikanti et al. 2022, arXiv 2205.05198, section 5"
    ),
    Checkpointing.NONE: Formula("72 L h^2 (1 + s/6h + V/12Lh)", _PAPER),
}

#: With the measured shares of the layers' products (p) and of their attention matrices (q) that run again.
MEASURED_PAPER_FORMULA = Formula(
    "72 L h^2 (1 + s/6h + V/12Lh) + 24 p L h^2 + 4 q L s h", f"{_PAPER}; shares measured by perfscope"
)

FORMULAS = {
    "6n": Formula("6 N", "Kaplan et al. 2020, arXiv 2001.08361, section 2.1"),
    "megatron_core": Formula(
        f"{_PRODUCTS} + 3 L a (d_qk + d_v) s",
        "NVIDIA/Megatron-LM d98e8a6, megatron/training/training.py, num_floating_point_operations",
        "Megatron-LM since March 2025: throughput per GPU (TFLOP/s/GPU)",
    ),
    "megatron_before_2025": Formula(
        f"{_PRODUCTS} + 6 L a (d_qk + d_v) s",
        "NVIDIA/Megatron-LM before 8873b55 (2025-03-06), num_floating_point_operations",
        "Megatron-LM from November 2023 to March 2025: throughput per GPU (TFLOP/s/GPU)",
    ),
    "bigscience_code": Formula(
        "24 k L h^2 (1 + s/6h + V/16Lh), 32 k with a gate",
        "bigscience-workshop/Megatron-DeepSpeed, megatron/training.py, training_log",
        "Megatron-DeepSpeed: TFLOPs",
    ),
    "torchtitan": Formula(
        "6 (N - embedding, tied too) + 6 L a (d_qk + d_v) s",
        "pytorch/torchtitan v0.2.2, torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
        "torchtitan since 2024-04-26, all releases until 0.2.2: tflops and mfu",
    ),
    "torchtitan_before_april_2024": Formula(
        "6 N + 6 L a (d_qk + d_v) s",
        "pytorch/torchtitan e5d1b89 (2024-03-20) until 0c6ca90 (2024-04-26), get_num_flop_per_token, all parameters",
        "torchtitan from 2024-03-20 to 2024-04-26, and its published tables of Llama 2 and 3 on A100: mfu",
    ),
    "torchtitan_since_may_2026": Formula(
        "6 (N - embedding unless tied) + 6 L a (d_qk + d_v) s",
        "pytorch/torchtitan b5bcd76, torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
        "torchtitan's main branch since 4ed3c53 (2026-05-08): tflops and mfu",
    ),
    "palm": Formula(
        "6 N + 6 L a (d_qk + d_v) s", "Chowdhery et al. 2022, arXiv 2204.02311, appendix B, N with embeddings"
    ),
}


def bigscience_formula(passes: float) -> Formula:
    """The formula of ``bigscience`` with as many passes."""
    return Formula(f"{passes:.4g} passes x 2 N", 'bigscience-workshop/bigscience, experiments/gpt2.md, "Metrics"')
