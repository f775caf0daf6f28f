"""The parts of a plan's report about memory and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.planning.memory import Memory
from perfscope.commands.options.peaks import Peak
from perfscope.commands.plan.calculation import Plan
from perfscope.commands.plan.options import States
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
        "gathered_bytes": memory.gathered,
        "buckets_bytes": memory.buckets,
        "total_bytes": memory.total,
        "fits": _fits(memory, peak),
    }


def _fits(memory: Memory, peak: Peak) -> bool | None:
    return None if peak.gpu is None else memory.total <= peak.gpu.memory_bytes


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
        {None: None, True: "yes", False: "no"}[_fits(memory, peak)],
    )


def describe_fit(plan: Plan) -> str:
    """Answer whether the model fits: as typed, in another layout, or not; for the title."""
    if plan.peak.gpu is None:
        return "Does it fit? Give --gpu"
    limit = format_bytes(plan.peak.gpu.memory_bytes)
    for memory in plan.memory:  # from no checkpointing and ZeRO 0 on, so that the first needs least
        if _fits(memory, plan.peak):
            return f"Fits with {_describe_layout(memory)}, {format_bytes(memory.total)} of {limit}"
    least = min(memory.total for memory in plan.memory)
    if not plan.fitting:
        return f"Does not fit: at least {format_bytes(least)}, and a GPU has {limit}"
    fitting = _describe_layout(plan.fitting[0])
    return f"Does not fit as typed, at least {format_bytes(least)} of {limit}; fits with {fitting}"


def _describe_layout(memory: Memory) -> str:
    layout = memory.layout
    degrees = [f"{name} {size}" for name, size in (("TP", layout.tensor), ("PP", layout.pipeline)) if size > 1]
    return ", ".join((*degrees, f"ZeRO {layout.zero}", f"checkpointing {layout.checkpointing}"))


def memory_section(estimates: Sequence[Memory], peak: Peak) -> Section:
    """The memory of the typed layouts."""
    notes = ["For the fullest GPU; buffers of the allocator and of communication are not included."]
    if estimates[0].is_plain_loop:
        notes.append(
            "Total: without accumulation the gradients are freed before the forward pass, and the activations are gone "
            "when all gradients are there, so that the total is less than the sum."
        )
    if any(memory.gathered for memory in estimates):
        notes.append("Total: with the weights that ZeRO 3 gathers at once, and its buckets of gradients.")
    if any(memory.buckets for memory in estimates):
        notes.append("Total: with the buckets in which DistributedDataParallel sends the gradients.")
    context = estimates[0].layout.context
    if context > 1:
        notes.append(f"Each sequence is split over {context} context-parallel ranks.")
    if peak.gpu:
        notes.append(f"Fits: below the {format_bytes(peak.gpu.memory_bytes)} of {peak.gpu.name}'s datasheet.")
    return Section("Memory per GPU", _MEMORY_COLUMNS, tuple(_row(memory, peak) for memory in estimates), tuple(notes))


def fitting_section(fitting: Sequence[Memory] | None, peak: Peak) -> Section:
    """The layouts that fit."""
    title = "What fits, with the fewest model-parallel GPUs"
    if fitting is None:
        return Section(title, notes=("n/a: the memory of the GPU is unknown; give --gpu.",))
    if not fitting:
        return Section(title, notes=("Nothing: more GPUs, a smaller micro-batch or offloading are needed.",))
    return Section(title, _MEMORY_COLUMNS, tuple(_row(memory, peak) for memory in fitting))


def checkpoint_data(plan: Plan) -> dict[str, Json]:
    """The checkpoint for JSON."""
    precision = plan.inputs.precision(plan.peak.dtype)
    parameters = plan.choice.total_parameters
    return {
        "weights_bytes": parameters * precision.weights,
        "optimizer_bytes": parameters * precision.optimizer,
        "total_bytes": plan.checkpoint_bytes,
        "bytes_per_parameter": precision.checkpoint,
    }


def checkpoint_section(plan: Plan) -> Section:
    """The size of a checkpoint."""
    precision = plan.inputs.precision(plan.peak.dtype)
    parameters = plan.choice.total_parameters
    columns = (Column("Weights (GB)"), Column("Optimizer (GB)"), Column("Total (GB)"), Column("Bytes/parameter"))
    row: tuple[Cell, ...] = (
        parameters * precision.weights / GB,
        parameters * precision.optimizer / GB,
        plan.checkpoint_bytes / GB,
        precision.checkpoint,
    )
    notes = ["Gradients are not saved. The sum does not depend on the sharding."]
    if plan.inputs.states(plan.peak.dtype) is States.MIXED:
        notes.append("ZeRO 3 does not save the 16-bit weights, which are recomputed from the fp32 copy.")
    return Section("Checkpoint", columns, (row,), tuple(notes))
