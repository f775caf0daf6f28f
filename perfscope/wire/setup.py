"""The record of how a rank's training is set up: what options of its frameworks it uses."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoaderRecord:
    """A DataLoader; loaders with the same options are one entry.

    Attributes:
        workers: Processes that load.
        pin_memory: Whether batches are copied into pinned memory.
        prefetch: Batches that each worker loads ahead; absent without workers.
        persistent: Whether workers outlive an epoch.
        starts: How often an iteration began.
    """

    workers: int
    pin_memory: bool
    prefetch: int | None
    persistent: bool
    starts: int


@dataclass(frozen=True)
class DdpRecord:
    """What DistributedDataParallel was built with.

    Attributes:
        find_unused_parameters: It searches each output's graph for parameters that get no gradient.
        bucket_bytes: Largest bucket of gradients.
        gradient_bytes: All gradients that it reduces.
        tensors: How many there are.
    """

    find_unused_parameters: bool
    bucket_bytes: int | None
    gradient_bytes: int
    tensors: int


@dataclass(frozen=True)
class OptimizerRecord:
    """The optimizer that was seen to step first.

    Attributes:
        name: Its class.
        module: The module that defines the class.
        foreach: Its option ``foreach``; absent where it is not set, or the class has none.
        fused: Its option ``fused``; likewise.
        has_fused: Whether the class has the option ``fused``.
        tensors: Parameters that it steps.
    """

    name: str
    module: str
    foreach: bool | None
    fused: bool | None
    has_fused: bool
    tensors: int


@dataclass(frozen=True)
class PaddingRecord:
    """The attention masks of the first batches of data loaders.

    Attributes:
        positions: Positions in them.
        padded: Positions that hold padding.
        batches: How many batches were looked at.
    """

    positions: int
    padded: int
    batches: int


@dataclass(frozen=True)
class SetupRecord:
    """How a rank trains; written when the first step completed, and again at the end.

    Attributes:
        frameworks: What is loaded of ``deepspeed``, ``megatron``, ``transformers``, ``lightning``, ``accelerate`` and
            ``torchtitan``.
        ddp: DistributedDataParallel; absent where it is not used.
        optimizer: Absent where none was seen.
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
