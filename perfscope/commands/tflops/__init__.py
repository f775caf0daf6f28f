"""``perfscope tflops``: the figure that people compute from a log with a one-liner, and what it assumes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.tflops.throughput import Throughput
from perfscope.commands.model import (
    DEFAULT_CHECKPOINTING,
    DEFAULT_SEQ_LEN,
    ModelChoice,
    ModelOptions,
    PeakOptions,
    TrainingOptions,
    choose_model,
    resolve_peak,
)
from perfscope.commands.options import FormatOption, expand_groups, require_positive
from perfscope.commands.tflops.inputs import (
    DEFAULT_GPUS,
    StepInputs,
    StepOptions,
)
from perfscope.commands.tflops.report import Answer, to_report
from perfscope.errors import UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.units import parse_duration_ns


@expand_groups
def tflops(
    model: ModelOptions,
    step: StepOptions,
    training: TrainingOptions,
    peak: PeakOptions,
    log: Annotated[
        Path | None,
        typer.Option(
            help="A training log: supplies missing values; its logged TFLOPs are compared with the conventions.",
            show_default="none",
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Compute TFLOPs per GPU, MFU and HFU from a model, a global batch size and a step time, by every convention."""
    inputs = StepInputs(
        samples=step.gbs,
        step_ns=parse_duration_ns(step.time) if step.time else None,
        gpus=step.gpus,
        seq_len=training.seq_len,
        checkpointing=training.checkpointing,
        dtype=peak.dtype,
    )
    step_log = None
    if log:
        # The readers of logs import NumPy, which takes longer than the whole command without them.
        from perfscope.commands.tflops.log import read_step_log

        step_log = read_step_log(log)
        inputs = step_log.supply(inputs)
    if step_log and step_log.choice and model == ModelOptions():
        choice = step_log.choice
    else:
        choice = choose_model(model, inputs.seq_len or DEFAULT_SEQ_LEN, step_log.model if step_log else None)
    answer = Answer(
        throughput=_compute_throughput(inputs, choice),
        choice=choice,
        inputs=inputs,
        peak=resolve_peak(peak._replace(dtype=inputs.dtype)),
        log=step_log,
    )
    report = to_report(answer)
    return Outcome(report, format, notes=tuple(f"warning: {line}" for line in report.warnings))


def _compute_throughput(inputs: StepInputs, choice: ModelChoice) -> Throughput:
    for option, value in (("--gbs", inputs.samples), ("--time", inputs.step_ns)):
        if value is None:
            raise UsageError(f"{option} is missing", hint="perfscope tflops --size 52B --gbs 1024 --time 127")
    assert inputs.samples is not None
    assert inputs.step_ns is not None
    return Throughput(
        parameters=choice.active_parameters,
        samples=require_positive("--gbs", inputs.samples),
        step_ns=inputs.step_ns,
        gpus=require_positive("--gpus", DEFAULT_GPUS if inputs.gpus is None else inputs.gpus),
        seq_len=require_positive("--seq-len", DEFAULT_SEQ_LEN if inputs.seq_len is None else inputs.seq_len),
        checkpointing=inputs.checkpointing or DEFAULT_CHECKPOINTING,
    )
