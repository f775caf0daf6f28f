"""The answer of ``perfscope tflops`` as the neutral document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from perfscope.analyzers.flops.comparison import Convention, Step, compare, variants
from perfscope.analyzers.flops.spread import explain_spread
from perfscope.analyzers.flops.throughput import Throughput
from perfscope.commands.options.model_choice import Choice
from perfscope.commands.options.peaks import Peak
from perfscope.commands.tflops.inputs import Asked
from perfscope.models.hardware import fastest_gpu
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.units import format_parameters, format_seconds

if TYPE_CHECKING:
    from perfscope.commands.tflops.trace import TracedStep
    from perfscope.sources.joblog.megatron_log import TrainingLog


class Answer(NamedTuple):
    """Everything that the answer is made of.

    Attributes:
        result: The figure by the convention ``bigscience``.
        choice: The model.
        asked: What was typed or read.
        peak: The denominator of MFU and HFU.
        log: The log; absent where none was given.
        trace: A trace of the step; absent likewise.
    """

    result: Throughput
    choice: Choice
    asked: Asked
    peak: Peak
    log: TrainingLog | None
    trace: TracedStep | None


def to_report(answer: Answer) -> Report:
    """Write the answer: the figure, the table of conventions, why they differ, and what was assumed."""
    result = answer.result
    step = Step(
        parameters=result.parameters,
        model=answer.choice.model,
        tokens=result.samples * result.seq_len,
        seq_len=result.seq_len,
        checkpointing=result.checkpointing,
        step_ns=result.step_ns,
        gpus=result.gpus,
        peak_tflops=answer.peak.tflops,
    )
    conventions, others = compare(step), variants(step)
    logged = None
    if answer.log:
        from perfscope.commands.tflops.log import hold_against

        known = answer.choice.known
        logged = hold_against(answer.log, answer.asked, result.seq_len, result.gpus, known, (*conventions, *others))
    counted = None
    if answer.trace:
        from perfscope.commands.tflops.trace import check_trace

        counted = check_trace(answer.trace, step)
    explanation = explain_spread(step, conventions)
    assumed = (*_assumed(answer), *answer.peak.assumed, *answer.choice.notes)
    warnings = (*answer.peak.warnings, *_above_peak(answer))
    used = logged.convention if logged else None
    data: dict[str, Json] = {
        "schema": "perfscope/tflops/1",
        **result.data(),
        "model": _model_data(answer.choice, result.seq_len),
        "gpu": answer.peak.data(),
        "conventions": [{**each.data(), "used_by_log": each.name == used} for each in conventions],
        "variants": [{**each.data(), "used_by_log": each.name == used} for each in others],
        "explanation": list(explanation),
        "log": logged.data if logged else None,
        "trace": counted.data if counted else None,
        "assumed": list(assumed),
        "read": list(answer.asked.read),
    }
    title = (
        f"{result.tflops_per_gpu:.1f} TFLOPs per GPU: {_title(answer.choice)}, "
        f"batch {result.samples}, {format_seconds(result.step_ns / 1e9)} a step"
    )
    sections = [result.section(), *_tables(conventions, others, used, explanation)]
    if logged:
        sections.append(Section("The log's own figure", notes=logged.notes))
    if counted:
        sections.append(Section("Counted in the trace", notes=counted.notes))
    if answer.asked.read:
        sections.append(Section("Read", notes=answer.asked.read))
    if assumed:
        sections.append(Section("Assumed, because not given", notes=assumed))
    return Report(title, data, tuple(sections), warnings)


def _title(choice: Choice) -> str:
    size = format_parameters(choice.stored_parameters)
    if choice.model is None or choice.model.name == "the model":
        return size
    active = "" if choice.stored_parameters == choice.parameters else f", {format_parameters(choice.parameters)} active"
    return f"{choice.model.name} ({size}{active})"


def _model_data(choice: Choice, seq_len: int) -> dict[str, Json]:
    model = choice.model
    if model is None:
        return {"name": None, "origin": choice.origin, "parameters": choice.parameters, "active_parameters": None}
    from perfscope.models.parameter_counts import bigscience_parameters, total_parameters

    experts, latent = model.experts, model.latent
    return {
        "name": model.name,
        "origin": choice.origin,
        "parameters": total_parameters(model),
        "active_parameters": choice.parameters,
        "seed_formula_parameters": bigscience_parameters(model.layers, model.hidden, model.vocabulary, seq_len)
        if model.is_plain_gpt and model.tied
        else None,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn,
        "vocabulary": model.vocabulary,
        "padded_vocabulary": model.padded_vocabulary,
        "tied": model.tied,
        "gated": model.mlp_matrices > 2,  # noqa: PLR2004 - up and down, or a gate too
        "experts": experts.routed if experts else None,
        "top_k": experts.active if experts else None,
        "latent_attention": latent is not None,
        "mtp_layers": model.mtp_layers,
        "sliding_window": model.window,
    }


def _tables(
    conventions: Sequence[Convention], others: Sequence[Convention], used: str | None, explanation: Sequence[str]
) -> tuple[Section, ...]:
    """The table of conventions; the other forms only where the dimensions make them differ."""
    absent = [each for each in conventions if each.flops_per_token is None]
    notes = list(explanation)
    if absent:
        notes.append(f"Not computed, because it {absent[0].reason}: {', '.join(each.name for each in absent)}.")
    counted = [each for each in conventions if each.flops_per_token is not None]
    columns = (*_FIGURES, Column("Formula per token"), Column("Source"))
    rows = tuple((*_figures(each, used), each.formula.text, each.formula.source) for each in counted)
    table = Section("Conventions", columns, rows, tuple(notes))
    if absent:
        return (table,)
    forms = tuple((*_figures(each, used), each.formula.printed_by) for each in others)
    return (table, Section("Other forms", (*_FIGURES, Column("Printed by")), forms))


_FIGURES = (
    Column("Convention"),
    Column("GFLOP per token", 3),
    Column("TFLOPs per GPU"),
    Column("MFU (%)", 2),
    Column("HFU (%)", 2),
)


def _figures(each: Convention, used: str | None) -> tuple[Cell, ...]:
    return (
        f"{each.name} (the log's)" if each.name == used else each.name,
        None if each.flops_per_token is None else each.flops_per_token / 1e9,
        each.tflops_per_gpu,
        None if each.mfu is None else 100 * each.mfu,
        None if each.hfu is None else 100 * each.hfu,
    )


def _assumed(answer: Answer) -> tuple[str, ...]:
    result, asked = answer.result, answer.asked
    values = (
        (asked.gpus, f"{result.gpus} GPUs (--gpus)"),
        (asked.seq_len, f"sequence length {result.seq_len} (--seq-len)"),
        (asked.checkpointing, f"activation checkpointing {result.checkpointing} (--checkpointing)"),
    )
    lines = [line for value, line in values if value is None]
    model = answer.choice.model
    if model and model.window and model.window < result.seq_len:
        lines.append(f"attention over the whole sequence; the sliding window of {model.window} tokens is not counted")
    if model and model.context and model.context < result.seq_len:
        lines.append(f"{model.name} takes sequences of {result.seq_len}; its makers state {model.context}")
    return tuple(lines)


def _above_peak(answer: Answer) -> tuple[str, ...]:
    """The seed's warning: more than the GPU can do means that the calculation has a bug."""
    value = answer.result.tflops_per_gpu
    if answer.peak.tflops is not None:
        peak, name = answer.peak.tflops, answer.peak.gpu.name if answer.peak.gpu else "the GPU"
        kind = f"{answer.peak.dtype}"
    else:
        fastest = fastest_gpu()
        peak, name, kind = fastest.dense_16bit_tflops, fastest.name, "16-bit"
    if value <= peak:
        return ()
    return (
        f"{value:.1f} TFLOPs per GPU is above the dense {kind} peak of {name} ({peak:g}): "
        "there is a bug in the calculation, or an input is wrong",
    )
