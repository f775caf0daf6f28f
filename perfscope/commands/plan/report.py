"""A plan as the neutral document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perfscope.commands.options.peaks import Peak
from perfscope.commands.options.training import describe_assumed_seq_len
from perfscope.commands.plan.calculation import Plan
from perfscope.commands.plan.duration_sections import describe_duration, duration_data, duration_sections
from perfscope.commands.plan.inputs import PlanInputs
from perfscope.commands.plan.memory_sections import (
    checkpoint_data,
    checkpoint_section,
    describe_fit,
    fitting_section,
    memory_data,
    memory_section,
)
from perfscope.commands.plan.options import DEFAULT_MICRO_BATCH
from perfscope.report import Json, Report, Section
from perfscope.units import format_parameters


class RunComparison(NamedTuple):
    """The estimates compared with a run: the value of ``run`` in JSON, and the table."""

    data: Json
    section: Section


def to_report(plan: Plan, comparison: RunComparison | None = None) -> Report:
    """Write the plan, and the comparison with a run where there is one."""
    inputs, choice, peak = plan.inputs, plan.choice, plan.peak
    assumptions = _list_assumptions(plan)
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
        "gpu": _gpu_data(peak),
        "conventions": [convention.data() for convention in plan.conventions],
        "memory": [memory_data(memory, peak) for memory in plan.memory],
        "fits": None if plan.fitting is None else [memory_data(memory, peak) for memory in plan.fitting],
        "checkpoint": checkpoint_data(plan),
        "checkpoint_bytes": plan.checkpoint_bytes,
        "run": comparison.data if comparison else None,
        "assumptions": _assumptions_data(inputs, peak),
        "assumed": list(assumptions),
        "verdict": describe_fit(plan),
        "read": list(inputs.read),
    }
    sections: list[Section] = []
    if comparison:
        sections.append(comparison.section)
    if plan.duration.solved_for or not comparison:
        sections.extend(duration_sections(plan))
    sections.extend((memory_section(plan.memory, peak), fitting_section(plan.fitting, peak), checkpoint_section(plan)))
    if inputs.read:
        sections.append(Section("Read from files", notes=inputs.read))
    if assumptions:
        sections.append(Section("Assumptions", notes=assumptions))
    return Report(_title(plan), data, tuple(sections), (*peak.warnings, *_warn_above_peak(plan)))


def _gpu_data(peak: Peak) -> Json:
    if peak.tflops is None:
        return None
    return {
        "name": peak.gpu.name if peak.gpu else None,
        "dtype": peak.dtype,
        "peak_tflops": peak.tflops,
        "memory_bytes": peak.gpu.memory_bytes if peak.gpu else None,
        "source": peak.source,
    }


def _assumptions_data(inputs: PlanInputs, peak: Peak) -> dict[str, Json]:
    return {
        "checkpointing": str(inputs.checkpointing),
        "seq_len": inputs.seq_len,
        "micro_batch": inputs.layout.micro_batch_size,
        "dtype": peak.dtype,
        "attention": str(inputs.memory.attention),
        "optimizer": str(inputs.memory.optimizer),
        "gradient_bytes": inputs.precision(peak.dtype).gradients,
        "sequence_parallel": inputs.layout.sequence_parallel,
    }


def _list_assumptions(plan: Plan) -> tuple[str, ...]:
    inputs = plan.inputs
    lines = []
    if inputs.training.checkpointing is None:
        lines.append(f"activation checkpointing {inputs.checkpointing} for the duration (--checkpointing)")
    if inputs.training.seq_len is None:
        lines.append(describe_assumed_seq_len(inputs.seq_len, inputs.model_seq_len))
    if inputs.layout.micro_batch is None:
        lines.append(f"micro-batch {DEFAULT_MICRO_BATCH} (--micro-batch)")
    lines.append(f"{inputs.memory.attention} attention (--attention), {inputs.memory.optimizer} (--optimizer)")
    if plan.shape_note:
        lines.append(plan.shape_note)
    return (*lines, *plan.peak.assumptions, *plan.choice.notes)


def _title(plan: Plan) -> str:
    choice, duration = plan.choice, plan.duration
    model = choice.transformer.name if choice.transformer else format_parameters(choice.active_parameters)
    gpus = f"{plan.inputs.gpus} {plan.peak.gpu.name if plan.peak.gpu else 'GPUs'}"
    question = f"{describe_fit(plan)}: {model} on {gpus}, sequences of {plan.inputs.seq_len} tokens"
    if duration.seconds is None or duration.tokens is None:
        return question
    return (
        f"{question}; {describe_duration(duration.seconds)} at {duration.tflops_per_gpu:.1f} TFLOPs per GPU "
        f"for {format_parameters(duration.tokens)} tokens"
    )


def _warn_above_peak(plan: Plan) -> Sequence[str]:
    if plan.utilisation is not None or plan.share_of_peak is None:
        return ()
    return (
        f"{plan.duration.tflops_per_gpu:.1f} TFLOPs per GPU is above the dense {plan.peak.dtype} peak "
        f"({plan.peak.tflops:g}): no run reaches it",
    )
