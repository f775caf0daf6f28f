"""The part of a plan's report about its duration: tokens, speed and time."""

from __future__ import annotations

from perfscope.commands.plan.calculation import Plan
from perfscope.constants import GIGA, S_PER_DAY, S_PER_HOUR, S_PER_MINUTE
from perfscope.report import Cell, Column, Json, Section, percent
from perfscope.units import format_parameters

_TITLE = "Duration"
_UNITS = ((S_PER_DAY, "days"), (S_PER_HOUR, "hours"), (S_PER_MINUTE, "minutes"))


def duration_data(plan: Plan) -> dict[str, Json]:
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


def duration_sections(plan: Plan) -> tuple[Section, ...]:
    """The tables of the duration, and of the same speed by every convention."""
    duration, inputs = plan.duration, plan.inputs
    if not duration.solved_for:
        advice = "give --tokens with --tflops, --days or --hours, or --tflops with --days"
        return (Section(_TITLE, notes=(f"Not computed: {advice}.",)),)
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
    table = Section(_TITLE, columns, (row,), notes)
    rows = tuple(
        (convention.name, convention.tflops_per_gpu, percent(convention.mfu), percent(convention.hfu))
        for convention in plan.conventions
        if convention.tflops_per_gpu is not None
    )
    figures = (Column("Convention"), Column("TFLOPs per GPU"), Column("MFU (%)", 2), Column("HFU (%)", 2))
    return (table, Section("The same speed by every convention", figures, rows))


def describe_duration(seconds: float) -> str:
    """A duration in the largest unit of which it has at least two."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
