"""What ``perfscope tflops`` knows of a step before the model is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from perfscope.commands.options.peaks import Dtype
    from perfscope.models.conventions import Checkpointing

DEFAULT_GPUS = 64
DEFAULT_SEQ_LEN = 1024


class Asked(NamedTuple):
    """A step as far as it is known; absent is what was neither typed nor read.

    Attributes:
        samples: Global batch size.
        step_ns: Time of one step.
        gpus: Number of GPUs.
        seq_len: Tokens in a sequence.
        checkpointing: Which activations are recomputed.
        dtype: The number format.
        read: What was read from files, in words.
    """

    samples: int | None
    step_ns: int | None
    gpus: int | None
    seq_len: int | None
    checkpointing: Checkpointing | None
    dtype: Dtype | None
    read: tuple[str, ...] = ()
