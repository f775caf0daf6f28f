"""The expected size of a checkpoint, from the number of parameters.

Mixed precision with Adam saves 14 bytes/parameter: 2 of bf16 or fp16 weights, 4 of fp32 master weights, and 4 + 4 of
Adam's moments; gradients are not saved. Pure fp32 saves 12 (4 + 8). ZeRO 3 shards the weights and restores them from
the master weights, so 12 are saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from perfscope.constants import GB, GIB, TB, TIB
from perfscope.report import Section
from perfscope.result import Column, Doc, Figures, InUnit, Result, Table, figure


class PlannedPart(Figures, frozen=True):
    """The size of one part, or of all."""

    part: str
    files: int
    bytes: Annotated[int, Doc("Its size.")]
    bytes_per_parameter: Annotated[int, Doc("Its bytes for each parameter.")]
    tb = InUnit("bytes", TB, "The size in 10**12 bytes.")
    tib = InUnit("bytes", TIB, "The size in 2**40 bytes.")

    @figure
    def per_file_bytes(self) -> float:
        """The size of one of its files."""
        return self.bytes / self.files

    per_file_gb = InUnit("per_file_bytes", GB, "The same in 10**9 bytes.")
    per_file_gib = InUnit("per_file_bytes", GIB, "The same in 2**30 bytes.")


class SavedOptimizer(StrEnum):
    """The optimizer, which decides the state per parameter."""

    ADAM = "adam"
    ADAM_8BIT = "adam8bit"
    SGD_MOMENTUM = "sgd"
    NONE = "none"


class SavedPrecision(StrEnum):
    """The training precision."""

    MIXED = "mixed"
    FP32 = "fp32"


_ZERO_STAGE_OF_WEIGHTS = 3
_MOMENT_BYTES: Mapping[SavedOptimizer, int] = {
    SavedOptimizer.ADAM: 8,
    SavedOptimizer.ADAM_8BIT: 2,
    SavedOptimizer.SGD_MOMENTUM: 4,
    SavedOptimizer.NONE: 0,
}


@dataclass(frozen=True, slots=True)
class BytesPerParameter:
    """The bytes that are saved for one parameter."""

    weights: int
    master: int
    moments: int

    @property
    def optimizer(self) -> int:
        """Master weights and moments, which are in the same files."""
        return self.master + self.moments

    @property
    def total(self) -> int:
        """Everything."""
        return self.weights + self.optimizer


def bytes_per_parameter(
    optimizer: SavedOptimizer = SavedOptimizer.ADAM,
    precision: SavedPrecision = SavedPrecision.MIXED,
    zero_stage: int = 1,
) -> BytesPerParameter:
    """The bytes that are saved for one parameter.

    >>> bytes_per_parameter().total, bytes_per_parameter(zero_stage=3).total
    (14, 12)
    """
    has_optimizer = optimizer is not SavedOptimizer.NONE
    is_mixed = precision is SavedPrecision.MIXED
    shards_weights = zero_stage == _ZERO_STAGE_OF_WEIGHTS and has_optimizer
    return BytesPerParameter(
        weights=0 if shards_weights else 2 if is_mixed else 4,
        master=4 if has_optimizer and (is_mixed or shards_weights) else 0,
        moments=_MOMENT_BYTES[optimizer],
    )


class CheckpointPlan(Result, frozen=True):
    """The size of a checkpoint."""

    parameters: Annotated[int, Doc("Number of parameters.")]
    gpus: Annotated[int, Doc("Number of GPUs; each writes one file of weights and one of optimizer states.")]
    weights: Annotated[PlannedPart, Doc("The weights.")]
    optimizer: Annotated[PlannedPart, Doc("Master weights and moments.")]
    total: Annotated[PlannedPart, Doc("Both.")]

    TABLES = (
        Table(
            "Planned size",
            "parts",
            (
                Column("Part", "part"),
                Column("Bytes per parameter", "bytes_per_parameter"),
                Column("TB", "tb", None, 3),
                Column("TiB", "tib", None, 3),
                Column("GB per file", "per_file_gb", None, 3),
                Column("GiB per file", "per_file_gib", None, 3),
            ),
        ),
    )

    @property
    def parts(self) -> tuple[PlannedPart, ...]:
        """The rows of its table."""
        return self.weights, self.optimizer, self.total

    def sections(self) -> tuple[Section, ...]:
        """The planned sizes."""
        files = f"one file per GPU, {self.gpus} of each part"
        note = f"TB is 10**12 bytes, TiB is 2**40; {files}; gradients are not saved."
        return (self.TABLES[0].section(self.parts, (note,)),)


def plan_checkpoint(parameters: int, gpus: int, per_parameter: BytesPerParameter) -> CheckpointPlan:
    """Plan a checkpoint's size; the files of a part are assumed to have one size."""
    by_part = {
        "weights": per_parameter.weights,
        "optimizer": per_parameter.optimizer,
        "total": per_parameter.total,
    }
    parts = {name: PlannedPart(name, gpus, parameters * size, size) for name, size in by_part.items()}
    return CheckpointPlan(parameters, gpus, **parts)
