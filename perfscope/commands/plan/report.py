"""The answer of ``perfscope plan`` as the neutral document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from perfscope.analyzers.flops.comparison import Convention, Step, compare
from perfscope.analyzers.planning.duration import Training, solve
from perfscope.analyzers.planning.memory import Attention, Layout, Memory, estimate
from perfscope.commands.options.model_choice import Choice
from perfscope.commands.options.peaks import Peak
from perfscope.commands.plan.inputs import DEFAULT_MICRO_BATCH, Question, asked_layouts, check_layout, possible_layouts
from perfscope.commands.plan.shape import shape_of
from perfscope.commands.plan.tables import (
    checkpoint_data,
    checkpoint_section,
    fits_section,
    memory_data,
    memory_section,
)
from perfscope.constants import GB, NS_PER_S
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import Transformer
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.units import format_parameters

if TYPE_CHECKING:
    from perfscope.commands.plan.run import PlannedRun


def to_report(question: Question, choice: Choice, peak: Peak, planned: PlannedRun | None = None) -> Report:
    """Write the plan, beside a run where there is one.

    Raises:
        UsageError: The degrees do not divide, or too much or too little is known to solve for anything.
    """
    if question.tokens and question.tflops_per_gpu and question.seconds:
        raise UsageError("--tokens, --tflops and --days determine each other", hint="leave one of them out")
    model, shape = (choice.model, "") if choice.model else shape_of(choice.parameters)
    check_layout(question, model)
    counted = _counted(question, choice)
    training = _solve(question, counted)
    conventions = _by_convention(question, choice, training, peak)
    memory = _estimates(question, choice, model, peak)
    fits = _fitting(question, choice, model, peak)
    beside = _beside_run(question, choice, planned, memory, training, peak) if planned else None
    assumed = (*_assumed(question), *((shape,) if shape else ()), *peak.assumed, *choice.notes)
    warnings = (*peak.warnings, *_too_fast(training, peak))
    data: dict[str, Json] = {
        "schema": "perfscope/plan/1",
        **_time_data(training, question, peak, recomputes=counted.recomputes),
        "model": {
            "name": choice.model.name if choice.model else None,
            "origin": choice.origin,
            "parameters": choice.stored_parameters,
            "active_parameters": choice.parameters,
            "shape": {"layers": model.layers, "hidden": model.hidden, "heads": model.heads, "assumed": bool(shape)},
        },
        "gpus": question.gpus,
        "gpu": _gpu_data(peak),
        "conventions": [each.data() for each in conventions],
        "memory": [memory_data(each, peak) for each in memory],
        "fits": None if fits is None else [memory_data(each, peak) for each in fits],
        "checkpoint": checkpoint_data(question, choice, peak),
        "checkpoint_bytes": choice.stored_parameters * question.precision(peak.dtype).checkpoint,
        "run": beside.data if beside else None,
        "assumptions": _assumptions_data(question, peak),
        "assumed": list(assumed),
        "read": list(question.read),
    }
    sections = [
        *((beside.section,) if beside else ()),
        *(() if beside and not training.solved else _time_sections(training, question, peak, conventions)),
        memory_section(memory, peak),
        fits_section(fits, peak),
        checkpoint_section(question, choice, peak),
    ]
    if question.read:
        sections.append(Section("Read", notes=question.read))
    if assumed:
        sections.append(Section("Assumed, because not given", notes=assumed))
    return Report(_title(training, question, choice, peak), data, tuple(sections), warnings)


class _Beside(NamedTuple):
    """The estimates beside a run: the value of ``run`` in JSON, and the table."""

    data: Json
    section: Section


def _beside_run(
    question: Question,
    choice: Choice,
    planned: PlannedRun,
    memory: Sequence[Memory],
    training: Training,
    peak: Peak,
) -> _Beside:
    from perfscope.commands.plan.run import hold_against_run, run_data, run_section, speed_of

    found = planned.measured
    conventions: Sequence[Convention] = ()
    if found.step_s and found.global_batch and found.seq_len:
        step = _step(question, choice, found.global_batch * found.seq_len, found.step_s, peak.tflops)
        conventions = compare(step._replace(seq_len=found.seq_len, gpus=found.gpus))
    speed = speed_of(question, training.tflops_per_gpu, peak)
    checkpoint_bytes = choice.stored_parameters * question.precision(peak.dtype).checkpoint
    with_matrix = None
    if question.attention is Attention.FLASH and choice.model:
        keeping = replace(question, attention=Attention.EAGER)
        with_matrix = _estimate(keeping, choice, choice.model, peak, memory[0].layout)
    quantities = hold_against_run(
        planned,
        memory[0],
        with_matrix=with_matrix,
        parameters=choice.stored_parameters,
        checkpoint_bytes=checkpoint_bytes,
        speed=speed,
        conventions=conventions,
    )
    return _Beside(run_data(planned, quantities), run_section(planned, quantities))


def _solve(question: Question, counted: Convention) -> Training:
    if counted.flops_per_token is None:
        raise UsageError(
            f"the convention {question.convention} needs the dimensions of the model",
            hint="give --model llama3-8b, a config.json, or --layers, --hidden, --heads and --vocab",
        )
    return solve(counted.flops_per_token, question.tokens, question.gpus, question.tflops_per_gpu, question.seconds)


def _counted(question: Question, choice: Choice) -> Convention:
    """The convention that the TFLOPs are of."""
    found = {each.name: each for each in compare(_step(question, choice, 1, 1.0, None))}
    return found[question.convention]


def _step(question: Question, choice: Choice, tokens: int, seconds: float, peak_tflops: float | None) -> Step:
    return Step(
        parameters=choice.parameters,
        model=choice.model,
        tokens=tokens,
        seq_len=question.sequence,
        checkpointing=question.recomputed,
        step_ns=max(1, round(seconds * NS_PER_S)),
        gpus=question.gpus,
        peak_tflops=peak_tflops,
    )


def _by_convention(question: Question, choice: Choice, training: Training, peak: Peak) -> tuple[Convention, ...]:
    """The speed of the plan by every convention; nothing where there is no speed."""
    if training.tokens is None or training.seconds is None:
        return ()
    return compare(_step(question, choice, training.tokens, training.seconds, peak.tflops))


def _estimates(question: Question, choice: Choice, model: Transformer, peak: Peak) -> tuple[Memory, ...]:
    return tuple(_estimate(question, choice, model, peak, layout) for layout in asked_layouts(question))


def _estimate(question: Question, choice: Choice, model: Transformer, peak: Peak, layout: Layout) -> Memory:
    return estimate(
        model,
        layout,
        parameters=choice.stored_parameters,
        seq_len=question.sequence,
        precision=question.precision(peak.dtype),
        attention=question.attention,
    )


def _fitting(question: Question, choice: Choice, model: Transformer, peak: Peak) -> tuple[Memory, ...] | None:
    """The least model-parallel layout that fits for each checkpointing and ZeRO stage; absent without a known GPU."""
    if peak.gpu is None:
        return None
    first: dict[tuple[Checkpointing, int], Memory] = {}
    for layout in possible_layouts(question, model):
        key = (layout.checkpointing, layout.zero)
        if key in first:
            continue
        memory = _estimate(question, choice, model, peak, layout)
        if memory.total <= peak.gpu.memory_bytes:
            first[key] = memory
    order = (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL)
    return tuple(first[key] for key in sorted(first, key=lambda key: (order.index(key[0]), key[1])))


def _time_data(training: Training, question: Question, peak: Peak, *, recomputes: bool) -> dict[str, Json]:
    return {
        "tokens": training.tokens,
        "tflops_per_gpu": training.tflops_per_gpu,
        "convention": str(question.convention),
        "flops_per_token": training.flops_per_token,
        "total_flops": None if training.tokens is None else training.flops_per_token * training.tokens,
        "seconds": training.seconds,
        "hours": training.hours,
        "days": training.days,
        "gpu_hours": training.gpu_hours,
        "solved_for": training.solved or None,
        "mfu": None if recomputes else _of_peak(training, peak),
        "hfu": _of_peak(training, peak) if recomputes else None,
    }


def _of_peak(training: Training, peak: Peak) -> float | None:
    if training.tflops_per_gpu is None or peak.tflops is None:
        return None
    return training.tflops_per_gpu / peak.tflops


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


def _assumptions_data(question: Question, peak: Peak) -> dict[str, Json]:
    return {
        "checkpointing": str(question.recomputed),
        "seq_len": question.sequence,
        "micro_batch": question.micro_batch or DEFAULT_MICRO_BATCH,
        "dtype": peak.dtype,
        "attention": str(question.attention),
        "optimizer": str(question.optimizer),
        "gradient_bytes": question.precision(peak.dtype).gradients,
        "sequence_parallel": question.sequence_parallel,
    }


def _title(training: Training, question: Question, choice: Choice, peak: Peak) -> str:
    gpu = f" {peak.gpu.name}" if peak.gpu else " GPUs"
    what = choice.model.name if choice.model else format_parameters(choice.parameters)
    if training.days is None or training.tokens is None:
        return f"{what} on {question.gpus}{gpu}"
    return (
        f"{_long(training.seconds or 0)} on {question.gpus}{gpu} at {training.tflops_per_gpu:.1f} TFLOPs per GPU: "
        f"{what}, {format_parameters(training.tokens)} tokens"
    )


def _long(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


def _time_sections(
    training: Training, question: Question, peak: Peak, conventions: Sequence[Convention]
) -> tuple[Section, ...]:
    if not training.solved:
        known = "give --tokens with --tflops, --days or --hours, or --tflops with --days"
        return (Section("Time", notes=(f"Too little is known to solve for time, TFLOPs or tokens: {known}.",)),)
    columns = (
        Column("Tokens"),
        Column("GPUs"),
        Column("TFLOPs per GPU"),
        Column("Of the peak (%)"),
        Column("Days"),
        Column("Hours"),
        Column("GPU-hours", 0),
    )
    share = _of_peak(training, peak)
    row: tuple[Cell, ...] = (
        format_parameters(training.tokens or 0),
        question.gpus,
        training.tflops_per_gpu,
        None if share is None else 100 * share,
        training.days,
        training.hours,
        training.gpu_hours,
    )
    notes = (
        f"Solved for {training.solved}: tokens x operations per token = time x GPUs x TFLOPs.",
        f"The TFLOPs are of the convention `{question.convention}` with checkpointing `{question.recomputed}`: "
        f"{training.flops_per_token / GB:.4g} GFLOP a token. Stalls, restarts and evaluation are not counted.",
    )
    table = Section("Time", columns, (row,), notes)
    rows = tuple(
        (each.name, each.tflops_per_gpu, _percent(each.mfu), _percent(each.hfu))
        for each in conventions
        if each.tflops_per_gpu is not None
    )
    figures = (Column("Convention"), Column("TFLOPs per GPU"), Column("MFU (%)", 2), Column("HFU (%)", 2))
    return (table, Section("The same speed by every convention", figures, rows))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _assumed(question: Question) -> tuple[str, ...]:
    lines = []
    if question.checkpointing is None:
        lines.append(f"activation checkpointing {question.recomputed} for the time (--checkpointing)")
    if question.seq_len is None:
        lines.append(f"sequence length {question.sequence} (--seq-len)")
    if question.micro_batch is None:
        lines.append(f"micro-batch {DEFAULT_MICRO_BATCH} (--micro-batch)")
    lines.append(f"{question.attention} attention (--attention), {question.optimizer} (--optimizer)")
    return tuple(lines)


def _too_fast(training: Training, peak: Peak) -> tuple[str, ...]:
    share = _of_peak(training, peak)
    if share is None or share <= 1:
        return ()
    return (
        f"{training.tflops_per_gpu:.1f} TFLOPs per GPU is above the dense {peak.dtype} peak ({peak.tflops:g}): "
        "no run reaches it",
    )
