"""A checkpoint as a table of files: what each one is by its name, and what it holds by its own table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What bytes of a checkpoint are for."""

    WEIGHTS = "weights"
    MASTER = "fp32 master weights"
    MOMENTS = "optimizer moments"
    OTHER = "other"


class Kind(StrEnum):
    """What a file is, by its name."""

    MODEL = "model states"
    MODEL_METADATA = "model metadata"
    LAYER = "layer weights"
    EXPERT = "expert weights"
    OPTIMIZER = "optimizer states"
    EXPERT_OPTIMIZER = "expert optimizer states"
    MODEL_AND_OPTIMIZER = "model and optimizer states"
    SHARD = "shard"
    WEIGHTS = "weights"
    UNIVERSAL = "state of one parameter"
    METADATA = "metadata"
    OTHER = "other"


class Layout(StrEnum):
    """Who wrote the checkpoint, and how it is split."""

    DEEPSPEED_ZERO_0 = "DeepSpeed, ZeRO 0"
    DEEPSPEED_ZERO_1_2 = "DeepSpeed, ZeRO 1 or 2"
    DEEPSPEED_ZERO_3 = "DeepSpeed, ZeRO 3"
    DEEPSPEED_PIPELINE = "DeepSpeed, pipeline"
    DEEPSPEED_UNIVERSAL = "DeepSpeed, universal"
    MEGATRON_LEGACY = "Megatron, one file a model-parallel rank"
    MEGATRON_DIST = "Megatron, torch_dist"
    TORCH_DCP = "torch distributed checkpoint"
    HUGGING_FACE = "Hugging Face"
    TORCH_FILE = "torch.save"
    UNKNOWN = "not recognised"


@dataclass(frozen=True, slots=True)
class Held:
    """Tensors of one role and kind of number.

    Attributes:
        role: What they are for.
        dtype: Their kind of number.
        elements: How many numbers they are; tensors that share a storage count once.
        size_bytes: Their size.
    """

    role: Role
    dtype: str
    elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file.

    Attributes:
        path: Its path below the checkpoint.
        size_bytes: Its size.
        kind: What its name says it is.
        ranks: Which ranks, layer or expert its name says it belongs to.
        held: What it holds, by its own table of contents; absent where that was not read.
        unused_bytes: Bytes of storages that no tensor shows: views that were saved without a copy.
        unread: Why its contents are not known; absent where they are.
        dangers: Functions that loading it would call and that no checkpoint needs.
    """

    path: str
    size_bytes: int
    kind: Kind
    ranks: Mapping[str, int]
    held: tuple[Held, ...] | None
    unused_bytes: int
    unread: str | None
    dangers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        path: Its folder, or the list of files that stands for it.
        tag: Its name beside others; empty for a folder that is one.
        layout: Who wrote it and how it is split.
        files: Its files, by path.
        has_experts: Whether it is of a mixture of experts.
        parameters: The number of parameters as the checkpoint itself states it; absent where it does not.
        other_tags: Other checkpoints beside it, with their sizes in bytes.
        damage: What is missing or cannot be read, in words.
    """

    path: str
    tag: str
    layout: Layout
    files: tuple[CheckpointFile, ...]
    has_experts: bool
    parameters: int | None
    other_tags: Mapping[str, int]
    damage: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)
