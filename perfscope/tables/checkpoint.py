"""A checkpoint as a table of files: the kind of each by its name, and its tensors by its own table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Role(StrEnum):
    """What the bytes of a checkpoint are for."""

    WEIGHTS = "weights"
    MASTER = "fp32 master weights"
    MOMENTS = "optimizer moments"
    EMA = "EMA copy of the weights"
    BUFFERS = "buffers"
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
    """Which framework wrote the checkpoint, and how it is split."""

    DEEPSPEED_ZERO_0 = "DeepSpeed, ZeRO 0"
    DEEPSPEED_ZERO_1_2 = "DeepSpeed, ZeRO 1 or 2"
    DEEPSPEED_ZERO_3 = "DeepSpeed, ZeRO 3"
    DEEPSPEED_PIPELINE = "DeepSpeed, pipeline"
    DEEPSPEED_UNIVERSAL = "DeepSpeed, universal"
    MEGATRON_LEGACY = "Megatron, one file per model-parallel rank"
    MEGATRON_DIST = "Megatron, torch_dist"
    TORCH_DCP = "torch distributed checkpoint"
    HUGGING_FACE = "Hugging Face"
    TORCH_FILE = "torch.save"
    UNKNOWN = "not recognised"


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """The tensors of a file with one role and dtype, summed.

    ``elements``: tensors that share a storage count once.
    """

    role: Role
    dtype: str
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file, by its path below the checkpoint.

    Attributes:
        ranks: The ranks, layer or expert that it belongs to, by its name.
        holds: Its tensors, by its own table of contents; absent if that was not read.
        unused_bytes: Bytes of storages outside of every tensor: views that were saved without a copy.
        unread: The reason why its contents are not known; absent if they are.
        dangerous_calls: Functions that loading it would call and that no checkpoint needs.
    """

    path: str
    bytes: int
    kind: Kind
    ranks: Mapping[str, int]
    holds: tuple[TensorGroup, ...] | None
    unused_bytes: int = 0
    unread: str | None = None
    dangerous_calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """One of the checkpoints in a folder, from its names, its sizes and the ends of its files.

    Attributes:
        name: Its name in the folder; empty for the folder itself.
        step, epoch: After which it was saved; absent where nothing states it.
        modified_ns: When one of its files was last modified.
        problems: What is missing or cut off, in words; empty where it seems complete.
        newest: Whether it is the newest of the folder.
        shown: Whether it is the one whose files are read.
    """

    name: str
    step: int | None
    epoch: int | None
    files: int
    bytes: int
    modified_ns: int | None
    problems: tuple[str, ...]
    complete: bool
    newest: bool = False
    shown: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        tag: Its name in a folder of several; absent if the folder itself is the checkpoint.
        stated_parameters: The number of parameters that the checkpoint itself states; absent if it states none.
        checkpoints: All checkpoints in the same folder, this one included; empty for a single file.
        damage: What is missing or cannot be read, in words.
        notes: Why this checkpoint of the folder was taken, and what is unusual about the folder.
        tied: A weight that is stored again under this name; absent if none is.
    """

    path: str
    tag: str | None
    layout: Layout
    files: tuple[CheckpointFile, ...]
    mixture_of_experts: bool
    stated_parameters: int | None
    checkpoints: tuple[CheckpointSummary, ...]
    damage: tuple[str, ...]
    notes: tuple[str, ...] = ()
    tied: str | None = None

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    @cached_property
    def has_optimizer_files(self) -> bool:
        """Whether optimizer states have files of their own."""
        return any(file.kind is Kind.OPTIMIZER for file in self.files)
