"""The answer of ``perfscope tflops`` as the neutral document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from perfscope.analyzers.tflops.comparison import (
    Convention,
    Step,
    compare,
    describe_doubts,
    describe_kinds,
    explain_spread,
    variants,
)
from perfscope.commands.model import UNNAMED, ModelChoice, Peak, StepInputs, describe_assumed_seq_len
from perfscope.commands.tflops.lengths import Lengths
from perfscope.constants import GIGA, NS_PER_S
from perfscope.models.conventions import Checkpointing, bigscience, bigscience_passes
from perfscope.models.hardware import describe_above_peak
from perfscope.models.parameter_counts import bigscience_parameters
from perfscope.models.transformer import GATED_MATRICES
from perfscope.report import Cell, Column, Json, Report, Section, percent
from perfscope.result import to_object
from perfscope.units import format_count, format_parameters, format_seconds

if TYPE_CHECKING:  # the readers of logs import NumPy
    from perfscope.commands.tflops.log import StepLog


#: Trainings on GPUs reach a larger share of the peak.
_LEAST_MFU = 0.02


class TflopsAnswer(NamedTuple):
    """What the report is made of; ``samples`` is the global batch in sequences."""

    step: Step
    samples: int
    choice: ModelChoice
    inputs: StepInputs
    peak: Peak
    log: StepLog | None
    lengths: Lengths | None = None


def to_report(answer: TflopsAnswer) -> Report:
    """Write the answer: the figure, the table of conventions, why they differ, and what was assumed."""
    step = answer.step
    tflops_per_gpu = step.tflops_per_gpu(bigscience(step.parameters, step.checkpointing) - step.without_gradients)
    conventions, other_forms = compare(step), variants(step)
    log: dict[str, Json] | None = None
    sentences: tuple[str, ...] = ()
    if answer.log:
        gpu = answer.peak.gpu.name if answer.peak.gpu else None
        log, sentences = answer.log.compare(step, (*conventions, *other_forms), gpu)
    kinds = tuple(describe_kinds(step.model)) if step.model else ()
    explanation = (
        *describe_doubts(conventions, step),
        *explain_spread(step, conventions),
        *kinds,
        *answer.choice.published,
    )
    assumptions = (*_list_assumptions(answer), *answer.peak.assumptions, *answer.choice.notes)
    doubts = tuple(_find_doubts(answer, tflops_per_gpu))
    warnings = (*answer.peak.warnings, *doubts)
    log_convention = log["convention"] if log else None
    data: dict[str, Json] = {
        "schema": "perfscope/tflops/1",
        "tflops_per_gpu": tflops_per_gpu,
        "convention": "bigscience",
        "formula": f"parameters * {_passes(step)} * 2 * seq_len * gbs / (time_s * gpus)",
        "inputs": {
            "parameters": step.parameters,
            "gbs": answer.samples,
            "time_s": step.step_ns / NS_PER_S,
            "passes": bigscience_passes(step.checkpointing),
        },
        "assumptions": {"gpus": step.gpus, "seq_len": step.seq_len, "checkpointing": str(step.checkpointing)},
        "model": _model_data(answer.choice, step.seq_len),
        "gpu": answer.peak.data(),
        "conventions": [_convention_data(convention, log_convention) for convention in conventions],
        "variants": [_convention_data(convention, log_convention) for convention in other_forms],
        "explanation": list(explanation),
        "doubts": list(doubts),
        "log": log,
        "assumed": list(assumptions),
        "read": list(answer.inputs.read),
    }
    title = (
        f"{'Doubtful: ' if doubts else ''}{tflops_per_gpu:.1f} TFLOPs per GPU: {_title(answer.choice)}, "
        f"batch {answer.samples}, {format_seconds(step.step_ns / NS_PER_S)} per step on {_describe_setting(answer)}"
    )
    sections = [
        _figure_section(answer, tflops_per_gpu, doubts),
        *_convention_sections(conventions, other_forms, log_convention, explanation),
    ]
    if log:
        sections.append(Section("The log's own figure", notes=sentences))
    if answer.inputs.read:
        sections.append(Section("Read from files", notes=answer.inputs.read))
    if assumptions:
        sections.append(Section("Assumptions", notes=assumptions))
    return Report(title, data, tuple(sections), warnings)


_RECOMPUTATION = {
    Checkpointing.FULL: "all activations recomputed: 4 passes of 2 operations per parameter and token",
    Checkpointing.SELECTIVE: "selective recomputation is not counted: 3 passes",
    Checkpointing.NONE: "nothing recomputed: 3 passes of 2 operations per parameter and token",
}


def _figure_section(answer: TflopsAnswer, tflops_per_gpu: float, warnings: Sequence[str]) -> Section:
    step = answer.step
    columns: dict[Column, Cell] = {
        Column("Parameters"): step.parameters,
        Column("GPUs"): step.gpus,
        Column("Global batch"): answer.samples,
        Column("Seq length"): step.seq_len,
        Column("Checkpointing"): str(step.checkpointing),
        Column("Step time (s)", 3): step.step_ns / NS_PER_S,
        Column("TFLOPs per GPU"): tflops_per_gpu,
    }
    notes = (
        *warnings,
        f"Convention `bigscience`: parameters x {_passes(step)} x 2 x seq length x global batch / (time x GPUs); "
        "attention's quadratic term is not counted.",
        f"Checkpointing `{step.checkpointing}`: {_RECOMPUTATION[step.checkpointing]}.",
    )
    return Section("TFLOPs per GPU", tuple(columns), (tuple(columns.values()),), notes)


def _passes(step: Step) -> str:
    """The passes in letters: frozen weights have no gradients, which one of them computes."""
    return "(passes - 1)" if step.without_gradients else "passes"


def _describe_setting(answer: TflopsAnswer) -> str:
    """The GPUs and the length of a sequence, and which of them are assumed."""
    gpus = format_count(answer.step.gpus, "GPU") + (" (assumed)" if answer.inputs.gpus is None else "")
    return f"{gpus}, sequences of {answer.step.seq_len}{' (assumed)' if answer.inputs.seq_len is None else ''}"


def _title(choice: ModelChoice) -> str:
    size = format_parameters(choice.total_parameters)
    if choice.transformer is None or choice.transformer.name == UNNAMED:
        return size
    if choice.active_parameters != choice.total_parameters:
        size = f"{size}, {format_parameters(choice.active_parameters)} active"
    return f"{choice.transformer.name} ({size})"


_DIMENSIONS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocabulary", "padded_vocabulary", "tied", "mtp_layers",
)  # fmt: skip


def _model_data(choice: ModelChoice, seq_len: int) -> dict[str, Json]:
    model = choice.transformer
    if model is None:
        parameters = choice.total_parameters
        return {"name": None, "origin": choice.origin, "parameters": parameters, "active_parameters": None}
    experts = model.experts
    has_gpt2_formula = model.is_plain_gpt and model.tied
    return {
        "name": model.name,
        "origin": choice.origin,
        "parameters": choice.total_parameters,
        "active_parameters": choice.active_parameters,
        "seed_formula_parameters": bigscience_parameters(model.layers, model.hidden, model.vocabulary, seq_len)
        if has_gpt2_formula
        else None,
        **{name: getattr(model, name) for name in _DIMENSIONS},
        "gated": model.mlp_matrices == GATED_MATRICES,
        "experts": experts.routed if experts else None,
        "top_k": experts.active if experts else None,
        "latent_attention": model.latent is not None,
        "sliding_window": model.window,
    }


def _convention_data(convention: Convention, log_convention: Json) -> dict[str, Json]:
    return {**to_object(convention), "used_by_log": convention.name == log_convention}


_FIGURES = (
    Column("Convention"),
    Column("GFLOP per token", 3),
    Column("TFLOPs per GPU"),
    Column("MFU (%)", 2),
    Column("HFU (%)", 2),
)


def _convention_sections(
    conventions: Sequence[Convention],
    other_forms: Sequence[Convention],
    log_convention: Json,
    explanation: Sequence[str],
) -> tuple[Section, ...]:
    uncounted = [convention for convention in conventions if convention.flops_per_token is None]
    notes = list(explanation)
    if uncounted:
        names = ", ".join(convention.name for convention in uncounted)
        notes.append(f"Not computed: {names}. Each {uncounted[0].reason}.")
    columns = (*_FIGURES, Column("Formula per token"), Column("Source"))
    rows = tuple(
        (*_figures(convention, log_convention), convention.formula, convention.source)
        for convention in conventions
        if convention.flops_per_token is not None
    )
    table = Section("Conventions", columns, rows, tuple(notes))
    if not other_forms or uncounted == list(conventions[2:]):
        return (table,)
    forms = tuple((*_figures(variant, log_convention), variant.printed_by) for variant in other_forms)
    return (table, Section("Other forms", (*_FIGURES, Column("Printed by")), forms))


def _figures(convention: Convention, log_convention: Json) -> tuple[Cell, ...]:
    name, flops = convention.name, convention.flops_per_token
    return (
        f"{name} (the log's)" if name == log_convention else name,
        None if flops is None else flops / GIGA,
        convention.tflops_per_gpu,
        percent(convention.mfu),
        percent(convention.hfu),
    )


def _list_assumptions(answer: TflopsAnswer) -> tuple[str, ...]:
    step, inputs = answer.step, answer.inputs
    values = (
        (inputs.gpus, f"{step.gpus} GPUs (--gpus)"),
        (inputs.seq_len, describe_assumed_seq_len(step.seq_len, answer.choice.seq_len)),
        (inputs.checkpointing, f"activation checkpointing {step.checkpointing} (--checkpointing)"),
    )
    lines = [line for value, line in values if value is None]
    model = answer.choice.transformer
    if answer.lengths:
        lines.append(answer.lengths.sentence(step.attention_len))
    if model and model.context and model.context < step.seq_len:
        lines.append(f"{model.name} accepts sequences of {step.seq_len} tokens; its authors state {model.context}")
    return tuple(lines)


def _find_doubts(answer: TflopsAnswer, value: float) -> Iterator[str]:
    """Why the figure cannot be right, or probably is not."""
    inputs = "(size, batch, sequence length, time, number of GPUs"
    peak = answer.peak.tflops
    if peak is None:
        if doubt := describe_above_peak(value, None):
            yield f"{doubt} {inputs}, GPU or data type)"
    elif value > peak:
        name = answer.peak.gpu.name if answer.peak.gpu else "the GPU"
        place = f"the dense {answer.peak.dtype} peak of {name} ({peak:g})"
        reason = f"there is a bug in the calculation, or an input is wrong {inputs}, GPU or data type)"
        yield f"{value:.1f} TFLOPs per GPU is above {place}: {reason}"
    elif value < _LEAST_MFU * peak:
        share = percent(value / peak)
        yield f"{value:.3g} TFLOPs per GPU is {share:.2g} % of the peak: an input is probably wrong {inputs})"
