"""A plan as the neutral document."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.plan import MemoryEstimate, StatePrecision
from perfscope.commands.model import Peak, describe_assumed_seq_len
from perfscope.commands.plan.calculation import TrainingPlan
from perfscope.commands.plan.options import PlanInputs
from perfscope.constants import GB, GIGA, S_PER_DAY, S_PER_HOUR, S_PER_MINUTE
from perfscope.report import Cell, Column, Json, Report, Section, percent
from perfscope.units import format_bytes, format_parameters

_TITLE = "Duration"
_UNITS = ((S_PER_DAY, "days"), (S_PER_HOUR, "hours"), (S_PER_MINUTE, "minutes"))


def duration_data(plan: TrainingPlan) -> dict[str, Json]:
    """The duration for JSON."""
    duration = plan.duration
    return {
        "tokens": duration.tokens,
        "tflops_per_gpu": duration.tflops_per_gpu,
        "convention": str(plan.inputs.target.convention),
        "flops_per_token": duration.flops_per_token,
        "total_flops": None if duration.tokens is None else duration.flops_per_token * duration.tokens,
        "seconds": duration.seconds,
        "hours": duration.hours,
        "days": duration.days,
        "gpu_hours": duration.gpu_hours,
        "solved_for": duration.solved_for or None,
        "mfu": None if plan.recomputes else plan.utilisation,
        "hfu": plan.utilisation if plan.recomputes else None,
    }


def duration_section(plan: TrainingPlan) -> Section:
    """The duration."""
    duration, inputs = plan.duration, plan.inputs
    if not duration.solved_for:
        advice = "give --tokens with --tflops or --days, or --tflops with --days"
        return Section(_TITLE, notes=(f"Not computed: {advice}.",))
    columns = (
        Column("Tokens"),
        Column("GPUs"),
        Column("TFLOPs per GPU"),
        Column("Of peak (%)"),
        Column("Days"),
        Column("Hours"),
        Column("GPU-hours", 0),
    )
    row: tuple[Cell, ...] = (
        format_parameters(duration.tokens or 0),
        inputs.gpus,
        duration.tflops_per_gpu,
        percent(plan.utilisation),
        duration.days,
        duration.hours,
        duration.gpu_hours,
    )
    notes = (
        f"Solved for {duration.solved_for}: tokens x operations per token = time x GPUs x TFLOPs.",
        f"Convention `{inputs.target.convention}` with checkpointing `{inputs.checkpointing}`: "
        f"{duration.flops_per_token / GIGA:.4g} GFLOP/token. Stalls, restarts and evaluation are not counted.",
    )
    return Section(_TITLE, columns, (row,), notes)


def describe_duration(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


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
    Column("Reserved (GB)"),
    Column("Fits (%)", 0),
)


def memory_data(memory: MemoryEstimate, peak: Peak) -> dict[str, Json]:
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
        "exchanged_bytes": memory.exchanged,
        "total_bytes": memory.total,
        "reserved_bytes": memory.reserved,
        "stage": memory.stage,
        "fits": None if peak.gpu is None else memory.reserved <= peak.gpu.memory_bytes,
        "fit_probability": _fit_probability(memory, peak),
    }


def _fit_probability(memory: MemoryEstimate, peak: Peak) -> float | None:
    return None if peak.gpu is None else memory.fit_probability(peak.gpu.memory_bytes)


def _row(memory: MemoryEstimate, peak: Peak) -> tuple[Cell, ...]:
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
        memory.reserved / GB,
        percent(_fit_probability(memory, peak)),
    )


#: Below this probability a layout that probably fits is called tight.
TIGHT = 0.9


def describe_fit(plan: TrainingPlan) -> str:
    """Answer whether the model fits: as typed, in another layout, or not; for the title."""
    if plan.peak.gpu is None:
        return "Does it fit? Give --gpu"
    limit = format_bytes(plan.peak.gpu.memory_bytes)
    bound = plan.peak.gpu.memory_bytes
    likely = [(memory, memory.fit_probability(bound)) for memory in plan.memory if memory.reserved <= bound]
    if likely:  # from no checkpointing and ZeRO 0 on, so that the first needs least
        memory, probability = next((pair for pair in likely if pair[1] >= TIGHT), likely[0])
        word = "Fits" if probability >= TIGHT else "Tight"
        fits = f"{word} (probability {min(0.99, probability):.0%})"
        return f"{fits} with {_describe_layout(memory)}, {format_bytes(memory.reserved)} of {limit}"
    least = min(memory.reserved for memory in plan.memory)
    if not plan.fitting:
        return f"Does not fit: at least {format_bytes(least)}, and a GPU has {limit}"
    fitting = _describe_layout(plan.fitting[0])
    return f"Does not fit as typed, at least {format_bytes(least)} of {limit}; fits with {fitting}"


def _describe_layout(memory: MemoryEstimate) -> str:
    layout = memory.layout
    degrees = [f"{name} {size}" for name, size in (("TP", layout.tensor), ("PP", layout.pipeline)) if size > 1]
    return ", ".join((*degrees, f"ZeRO {layout.zero}", f"checkpointing {layout.checkpointing}"))


def memory_section(estimates: Sequence[MemoryEstimate], peak: Peak) -> Section:
    """The memory of the typed layouts."""
    notes = ["For the fullest GPU. Reserved: with what PyTorch's allocator keeps; without NCCL and the CUDA context."]
    if estimates[0].is_plain_loop:
        notes.append(
            "Total: without accumulation the gradients are freed before the forward pass, and the activations are gone "
            "when all gradients are there, so that the total is less than the sum."
        )
    if any(memory.gathered or memory.buckets or memory.exchanged for memory in estimates):
        notes.append(
            "Total: with the weights that ZeRO 3 gathers at once, the buckets that gradients are sent in, and the "
            "whole sequences that sequence parallelism exchanges."
        )
    if peak.gpu:
        notes.append(
            f"Fits: the probability that the reserved memory is below the {format_bytes(peak.gpu.memory_bytes)} of "
            f"{peak.gpu.name}'s datasheet, by how far measured runs are from their estimates."
        )
    return Section("Memory per GPU", _MEMORY_COLUMNS, tuple(_row(memory, peak) for memory in estimates), tuple(notes))


def fitting_section(fitting: Sequence[MemoryEstimate] | None, peak: Peak) -> Section:
    """The layouts that fit."""
    title = "What fits, with the fewest model-parallel GPUs"
    if fitting is None:
        return Section(title, notes=("n/a: the memory of the GPU is unknown; give --gpu.",))
    if not fitting:
        return Section(title, notes=("Nothing: more GPUs or a smaller micro-batch are needed.",))
    return Section(title, _MEMORY_COLUMNS, tuple(_row(memory, peak) for memory in fitting))


def checkpoint_data(plan: TrainingPlan) -> dict[str, Json]:
    """The checkpoint for JSON."""
    precision = plan.precision
    parameters = plan.choice.total_parameters
    return {
        "weights_bytes": parameters * precision.weights,
        "optimizer_bytes": parameters * precision.optimizer,
        "total_bytes": plan.checkpoint_bytes,
        "bytes_per_parameter": precision.checkpoint,
    }


def checkpoint_section(plan: TrainingPlan) -> Section:
    """The size of a checkpoint."""
    precision = plan.precision
    parameters = plan.choice.total_parameters
    columns = (Column("Weights (GB)"), Column("Optimizer (GB)"), Column("Total (GB)"), Column("Bytes/parameter"))
    row: tuple[Cell, ...] = (
        parameters * precision.weights / GB,
        parameters * precision.optimizer / GB,
        plan.checkpoint_bytes / GB,
        precision.checkpoint,
    )
    notes = ["Gradients are not saved. The sum does not depend on the sharding."]
    if precision.optimizer and plan.inputs.states(plan.peak.dtype) in (StatePrecision.MIXED, StatePrecision.MEGATRON):
        notes.append("ZeRO 3 does not save the 16-bit weights, which are recomputed from the fp32 copy.")
    return Section("Checkpoint", columns, (row,), tuple(notes))


def to_report(plan: TrainingPlan) -> Report:
    """Write the plan."""
    inputs, choice, peak = plan.inputs, plan.choice, plan.peak
    assumptions, gpu = _list_assumptions(plan), peak.data()
    data: dict[str, Json] = {
        "schema": "perfscope/plan/1",
        **duration_data(plan),
        "model": {
            "name": choice.transformer.name if choice.transformer else None,
            "origin": choice.origin,
            "parameters": choice.total_parameters,
            "active_parameters": choice.active_parameters,
            "shape": {
                "layers": plan.shape.layers,
                "hidden": plan.shape.hidden,
                "heads": plan.shape.heads,
                "assumed": choice.transformer is None,
            },
        },
        "gpus": inputs.gpus,
        "gpu": {**gpu, "memory_bytes": peak.gpu.memory_bytes if peak.gpu else None} if gpu else None,
        "memory": [memory_data(memory, peak) for memory in plan.memory],
        "fits": None if plan.fitting is None else [memory_data(memory, peak) for memory in plan.fitting],
        "checkpoint": checkpoint_data(plan),
        "checkpoint_bytes": plan.checkpoint_bytes,
        "assumptions": _assumptions_data(inputs, peak),
        "assumed": list(assumptions),
        "verdict": describe_fit(plan),
    }
    sections = [memory_section(plan.memory, peak), checkpoint_section(plan)]
    if not plan.has_configurations:
        sections.insert(1, fitting_section(plan.fitting, peak))
    if plan.duration.solved_for or not plan.has_configurations:
        sections.insert(0, duration_section(plan))
    if assumptions:
        sections.append(Section("Assumptions", notes=assumptions))
    return Report(_title(plan), data, tuple(sections), (*peak.warnings, *_warn_above_peak(plan)))


def _assumptions_data(inputs: PlanInputs, peak: Peak) -> dict[str, Json]:
    return {
        "checkpointing": str(inputs.checkpointing),
        "seq_len": inputs.seq_len,
        "micro_batch": inputs.layout.size("micro_batch"),
        "dtype": peak.dtype,
        "attention": str(inputs.memory.attention),
        "optimizer": str(inputs.memory.optimizer),
        "gradient_bytes": inputs.precision(peak.dtype).gradients,
        "sequence_parallel": inputs.layout.sequence_parallel,
    }


def _list_assumptions(plan: TrainingPlan) -> tuple[str, ...]:
    inputs = plan.inputs
    lines = []
    if inputs.training.checkpointing is None:
        lines.append(f"activation checkpointing {inputs.checkpointing} for the duration (--checkpointing)")
    if inputs.training.seq_len is None:
        lines.append(describe_assumed_seq_len(inputs.seq_len, inputs.model_seq_len))
    if inputs.layout.micro_batch is None:
        lines.append(f"micro-batch {inputs.layout.size('micro_batch')} (--micro-batch)")
    lines.append(f"{inputs.memory.attention} attention (--attention), {inputs.memory.optimizer} (--optimizer)")
    if inputs.memory.loss is None:
        lines.append("where the model is split, Megatron's loss over ranks and fused SwiGLU, else PyTorch's (--loss)")
    if plan.shape_note:
        lines.append(plan.shape_note)
    return (*lines, *plan.peak.assumptions, *plan.choice.notes)


def _title(plan: TrainingPlan) -> str:
    choice, duration = plan.choice, plan.duration
    model = choice.transformer.name if choice.transformer else format_parameters(choice.active_parameters)
    gpus = f"{plan.inputs.gpus} {plan.peak.gpu.name if plan.peak.gpu else 'GPUs'}"
    training = plan.inputs.training
    sequences = f"{plan.inputs.seq_len} tokens{' (assumed)' if training.seq_len is None else ''}"
    question = f"{describe_fit(plan)}: {model} on {gpus}, sequences of {sequences}"
    if duration.seconds is None or duration.tokens is None:
        return question
    return (
        f"{question}; {describe_duration(duration.seconds)} at {duration.tflops_per_gpu:.1f} TFLOPs per GPU "
        f"for {format_parameters(duration.tokens)} tokens, with checkpointing {plan.inputs.checkpointing}"
        f"{' (assumed)' if training.checkpointing is None else ''}"
    )


def _warn_above_peak(plan: TrainingPlan) -> Sequence[str]:
    if plan.utilisation is not None or plan.share_of_peak is None:
        return ()
    return (
        f"{plan.duration.tflops_per_gpu:.1f} TFLOPs per GPU is above the dense {plan.peak.dtype} peak "
        f"({plan.peak.tflops:g}): no run reaches it",
    )
