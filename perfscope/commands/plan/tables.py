"""The tables of ``perfscope plan`` about memory and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.planning.memory import Memory
from perfscope.commands.options.model_choice import Choice
from perfscope.commands.options.peaks import Peak
from perfscope.commands.plan.inputs import Question
from perfscope.constants import GB
from perfscope.report import Cell, Column, Json, Section
from perfscope.units import format_bytes

_MEMORY_COLUMNS = (
    Column("Checkpointing"),
    Column("ZeRO"),
    Column("TP"),
    Column("PP"),
    Column("DP"),
    Column("Weights (GB)"),
    Column("Gradients (GB)"),
    Column("Optimizer (GB)"),
    Column("Activations (GB)"),
    Column("Total (GB)"),
    Column("Fits"),
)


def memory_data(memory: Memory, peak: Peak) -> dict[str, Json]:
    """One layout's memory for JSON."""
    layout = memory.layout
    return {
        "zero": layout.zero,
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "dp": layout.data,
        "ep": layout.expert,
        "cp": layout.context,
        "virtual_stages": layout.virtual,
        "checkpointing": str(layout.checkpointing),
        "micro_batch": layout.micro_batch,
        "weights_bytes": memory.weights,
        "gradients_bytes": memory.gradients,
        "optimizer_bytes": memory.optimizer,
        "activations_bytes": memory.activations,
        "total_bytes": memory.total,
        "fits": None if peak.gpu is None else memory.total <= peak.gpu.memory_bytes,
    }


def checkpoint_data(question: Question, choice: Choice, peak: Peak) -> dict[str, Json]:
    """The checkpoint for JSON."""
    precision = question.precision(peak.dtype)
    parameters = choice.stored_parameters
    return {
        "weights_bytes": parameters * precision.weights,
        "optimizer_bytes": parameters * precision.optimizer,
        "total_bytes": parameters * precision.checkpoint,
        "bytes_per_parameter": precision.checkpoint,
    }


def _row(memory: Memory, peak: Peak) -> tuple[Cell, ...]:
    layout = memory.layout
    return (
        str(layout.checkpointing),
        layout.zero,
        layout.tensor,
        layout.pipeline,
        layout.data,
        memory.weights / GB,
        memory.gradients / GB,
        memory.optimizer / GB,
        memory.activations / GB,
        memory.total / GB,
        None if peak.gpu is None else "yes" if memory.total <= peak.gpu.memory_bytes else "no",
    )


def memory_section(memory: Sequence[Memory], peak: Peak) -> Section:
    """The memory of the layouts that were asked for."""
    notes = ["Of the fullest GPU; buffers of the allocator and of communication come on top."]
    if memory[0].layout.context > 1:
        notes.append(f"Every sequence is shared by {memory[0].layout.context} context-parallel ranks.")
    if peak.gpu:
        notes.append(f"It fits below the {format_bytes(peak.gpu.memory_bytes)} of {peak.gpu.name}'s datasheet.")
    return Section("Memory per GPU", _MEMORY_COLUMNS, tuple(_row(each, peak) for each in memory), tuple(notes))


def fits_section(fits: Sequence[Memory] | None, peak: Peak) -> Section:
    """The layouts that fit."""
    title = "What fits, with the fewest model-parallel GPUs"
    if fits is None:
        return Section(title, notes=("n/a: the memory of the GPU is not known; give --gpu.",))
    if not fits:
        return Section(title, notes=("Nothing: more GPUs, a smaller micro-batch or offloading are needed.",))
    return Section(title, _MEMORY_COLUMNS, tuple(_row(each, peak) for each in fits))


def checkpoint_section(question: Question, choice: Choice, peak: Peak) -> Section:
    """The size of a checkpoint."""
    precision = question.precision(peak.dtype)
    parameters = choice.stored_parameters
    columns = (Column("Weights only (GB)"), Column("Optimizer (GB)"), Column("Whole (GB)"), Column("Bytes a parameter"))
    row: tuple[Cell, ...] = (
        parameters * precision.weights / GB,
        parameters * precision.optimizer / GB,
        parameters * precision.checkpoint / GB,
        precision.checkpoint,
    )
    notes = ["Gradients are not saved. Every sharding of the same state has the same sum."]
    if precision.weights < precision.optimizer:
        notes.append("ZeRO 3 leaves the 16-bit weights out, which are made again from the fp32 copy.")
    return Section("Checkpoint", columns, (row,), tuple(notes))
