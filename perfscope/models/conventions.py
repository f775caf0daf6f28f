"""Floating-point operations that one token costs in a training step, by conventions that need no dimensions.

All count a multiplication and an addition as two, and a backward pass as two forward ones. A convention that counts
recomputation says what the hardware did (HFU), the others what the model needs (MFU).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

#: What BigScience's one-liner assumes of a benchmark (experiments/gpt2.md).
DEFAULT_GPUS, DEFAULT_SEQ_LEN = 64, 1024
FORWARD = 2
FORWARD_AND_BACKWARD = 3 * FORWARD


class Checkpointing(StrEnum):
    """Which activations are recomputed in the backward pass."""

    FULL = "full"
    SELECTIVE = "selective"
    NONE = "none"


class Recomputed(NamedTuple):
    """What of the layers' forward pass runs again, as shares: products with weights, and the attention matrix."""

    weights: float
    attention: float


def bigscience(parameters: int, checkpointing: Checkpointing) -> int:
    """Two operations a parameter in each of 4 passes, or of 3 where not all activations are recomputed.

    Source: bigscience-workshop/bigscience, experiments/gpt2.md, "Metrics": ``size * 4 * 2 * seq * gbs``.
    """
    return 2 * bigscience_passes(checkpointing) * parameters


def bigscience_passes(checkpointing: Checkpointing) -> int:
    """Forward passes' worth of work: one forward, two backward, one more where all activations are recomputed."""
    return 4 if checkpointing is Checkpointing.FULL else 3


def six_n(parameters: int) -> int:
    """Six operations a parameter (Kaplan et al. 2020, arXiv 2001.08361, section 2.1)."""
    return FORWARD_AND_BACKWARD * parameters
