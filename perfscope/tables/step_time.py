"""Configurations of a training, and how long a step of each took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import Transformer
from perfscope.tables.ceiling import Ceiling

#: Software with stages of equal cost, and constants of its own.
NANOTRON = "nanotron"


@dataclass(frozen=True, slots=True)
class StepSetup:
    """All that the time of a step is computed from.

    Attributes:
        gpu: A name of ``hardware.toml``.
        data: Replicas; context-parallel ranks are counted apart.
        virtual: Stages of each pipeline rank (interleaving).
        micro_batch: Sequences of one forward pass, of which a step has ``micro_batches`` one after another.
        is_eager: The attention matrix is written to memory.
        gradient_bytes: Of one gradient, as it is sent.
        software: ``NANOTRON``, whose steps differ from those of other software; "" for all others.
        network_gb_s: Of one GPU to other nodes, in 10**9 bytes/s and direction; None: as in the GPU's usual node.
    """

    model: Transformer
    gpu: str
    seq_len: int
    micro_batch: int
    micro_batches: int
    dtype: str = "bf16"
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    zero: int = 0
    checkpointing: Checkpointing = Checkpointing.NONE
    is_eager: bool = False
    sequence_parallel: bool = False
    gradient_bytes: int = 2
    software: str = ""
    network_gb_s: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def gbs(self) -> int:
        """Sequences of a step."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.gbs * self.seq_len


class StepTerms(NamedTuple):
    """Seconds of a step in which the mean GPU works at each kind of kernel, or its host; None where unknown.

    Attributes:
        products: Matrix products, also those that run again.
        attention: Fused attention.
        memory: All other kernels and copies, but of the optimizer.
        optimizer: The update of the weights.
        host: The launching of all of them, an estimate where no GPU waits for it.
    """

    products: float | None = None
    attention: float | None = None
    memory: float | None = None
    optimizer: float | None = None
    host: float | None = None


#: Of a step that only its time is known of.
UNKNOWN = StepTerms()


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A configuration that ran, and the seconds of one of its steps; ``source`` is who published or logged it."""

    setup: StepSetup
    seconds: float
    source: str
    terms: StepTerms = UNKNOWN


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Measured steps, each row that could not be used with its reason, and what a machine attains at best."""

    rows: tuple[MeasuredStep, ...]
    refused: tuple[tuple[str, str], ...] = ()
    ceiling: Ceiling | None = None
