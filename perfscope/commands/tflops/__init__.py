"""``perfscope tflops``: the figure that people compute from a log with a one-liner, and what it assumes."""

from __future__ import annotations

from perfscope.analyzers.flops.throughput import Throughput
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
    FileOptions,
    StepInputs,
    StepOptions,
    supply_from_deepspeed_config,
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
    files: FileOptions,
    peak: PeakOptions,
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
    log = trace = None
    if files.log or files.trace:
        # The readers of logs and traces import NumPy, which takes longer than the whole command without them.
        from perfscope.commands.tflops.files import read_log_and_trace

        log, trace = read_log_and_trace(files.log, files.trace)
    if log:
        inputs = log.supply(inputs)
    if files.deepspeed_config:
        inputs = supply_from_deepspeed_config(inputs, files.deepspeed_config)
    if trace:
        inputs = trace.supply(inputs)
    if log and log.choice and model == ModelOptions():
        choice = log.choice
    else:
        choice = choose_model(model, inputs.seq_len or DEFAULT_SEQ_LEN, log.model if log else None)
    answer = Answer(
        throughput=_compute_throughput(inputs, choice),
        choice=choice,
        inputs=inputs,
        peak=resolve_peak(peak._replace(dtype=inputs.dtype)),
        log=log,
        trace=trace,
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
