"""The record of how a rank's training is set up: what options of its frameworks it uses."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoaderRecord:
    """A DataLoader; loaders with the same options are one entry, whose iterations began ``starts`` times.

    ``prefetch`` is how many batches each worker loads ahead; ``persistent`` workers outlive an epoch.
    """

    workers: int
    pin_memory: bool
    prefetch: int | None
    persistent: bool
    starts: int


@dataclass(frozen=True)
class DdpRecord:
    """What DistributedDataParallel was built with: its largest bucket, and all gradients that it reduces."""

    find_unused_parameters: bool
    bucket_bytes: int | None
    gradient_bytes: int
    tensors: int


@dataclass(frozen=True)
class OptimizerRecord:
    """The class of the optimizer that was seen to step first, its options where set, and how many parameters it has."""

    name: str
    module: str
    foreach: bool | None
    fused: bool | None
    has_fused: bool
    tensors: int


@dataclass(frozen=True)
class PaddingRecord:
    """The attention masks of the first batches of data loaders: positions in them, and those that hold padding."""

    positions: int
    padded: int
    batches: int


@dataclass(frozen=True)
class SetupRecord:
    """How a rank trains; written when the first step completed, and again at the end.

    Attributes:
        frameworks: What is loaded of ``deepspeed``, ``megatron``, ``transformers``, ``lightning``, ``accelerate`` and
            ``torchtitan``.
        engine: Plain options of DeepSpeed's engine, by its own names.
        padding: Absent where no batch has an attention mask.
        collects_garbage: Whether Python's garbage collection was on after the first step.
    """

    frameworks: tuple[str, ...] = ()
    loaders: tuple[LoaderRecord, ...] = ()
    ddp: DdpRecord | None = None
    optimizer: OptimizerRecord | None = None
    engine: dict[str, object] = field(default_factory=dict)
    padding: PaddingRecord | None = None
    collects_garbage: bool | None = None
