"""A checkpoint as a table of files: the kind of each by its name, and its tensors by its own table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from perfscope.result import Doc, Figures, figure


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


class TensorGroup(Figures, frozen=True):
    """The tensors of a file with one role and dtype, summed."""

    role: Annotated[Role, Doc("What they are for.")]
    dtype: Annotated[str, Doc("Their data type.")]
    elements: Annotated[int, Doc("Their number of elements; tensors that share a storage count once.")]
    bytes: Annotated[int, Doc("Their size.")]


class CheckpointFile(Figures, frozen=True):
    """One file."""

    path: Annotated[str, Doc("Its path below the checkpoint.")]
    bytes: Annotated[int, Doc("Its size.")]
    kind: Annotated[Kind, Doc("What it is, by its name.")]
    ranks: Annotated[Mapping[str, int], Doc("The ranks, layer or expert that it belongs to, by its name.")]
    holds: Annotated[tuple[TensorGroup, ...] | None, Doc("Its tensors, by its own table of contents, if that is read.")]
    unused_bytes: Annotated[int, Doc("Bytes of storages outside of every tensor: views saved without a copy.")] = 0
    unread: Annotated[str | None, Doc("Why its contents are not known; null if they are.")] = None
    dangerous_calls: Annotated[tuple[str, ...], Doc("Functions it would call that no checkpoint needs.")] = ()
    copy_of: Annotated[str | None, Doc("The file of another rank with the same tensors, by their checksums.")] = None


class CheckpointSummary(Figures, frozen=True):
    """One of the checkpoints in a folder, from its names, its sizes and the ends of its files."""

    name: Annotated[str, Doc("Its name in the folder; empty for the folder itself.")]
    step: Annotated[int | None, Doc("The training step after which it was saved, where it is stated.")]
    epoch: Annotated[int | None, Doc("The epoch, as for the step.")]
    files: Annotated[int, Doc("How many files it has.")]
    bytes: Annotated[int, Doc("Their size.")]
    modified_ns: Annotated[int | None, Doc("When one of them was last modified; null for a list of names.")]
    problems: Annotated[tuple[str, ...], Doc("What is missing or cut off; empty where it seems complete.")]
    newest: Annotated[bool, Doc("It is the newest of the folder.")] = False
    shown: Annotated[bool, Doc("It is the one whose files are read.")] = False

    @figure
    def complete(self) -> bool:
        """It has no problems."""
        return not self.problems


class Checkpoint(Figures, frozen=True, kw_only=True, dict=True):
    """One checkpoint.

    Attributes:
        stated_parameters: The number of parameters that the checkpoint itself states; absent if it states none.
        damage: What is missing or cannot be read, in words.
        tied: A weight that is stored again under this name; absent if none is.
    """

    path: Annotated[str, Doc("Its folder, or a list of its files.")]
    tag: Annotated[str | None, Doc("Its name in a folder of several; null if the folder itself is the checkpoint.")]
    layout: Annotated[Layout, Doc("Which framework wrote it, and how it is split.")]
    files: Annotated[tuple[CheckpointFile, ...], Doc("Its files, by path.")]
    mixture_of_experts: Annotated[bool, Doc("There are files of experts.")]
    stated_parameters: int | None
    checkpoints: Annotated[tuple[CheckpointSummary, ...], Doc("All of the folder; empty for a single file.")]
    damage: tuple[str, ...]
    notes: Annotated[tuple[str, ...], Doc("Why this one was taken, and what is unusual about the folder.")] = ()
    tied: str | None = None

    @figure
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    @figure
    def other_checkpoints(self) -> dict[str, int]:
        """The sizes of the others of the folder."""
        return {each.name: each.bytes for each in self.checkpoints if not each.shown}

    @cached_property
    def has_optimizer_files(self) -> bool:
        """Whether optimizer states have files of their own."""
        return any(file.kind is Kind.OPTIMIZER for file in self.files)
