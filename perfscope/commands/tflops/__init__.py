"""``perfscope tflops``: the figure that people compute from a log with a one-liner, and what it assumes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.tflops.comparison import Step
from perfscope.commands.model import (
    DEFAULT_CHECKPOINTING,
    ModelOptions,
    PeakOptions,
    SequenceOptions,
    StepInputs,
    StepOptions,
    choose_model,
    resolve_peak,
)
from perfscope.commands.options import FormatOption, expand_groups, outcome_of, require_positive
from perfscope.commands.tflops.lengths import parse_lengths
from perfscope.commands.tflops.report import TflopsAnswer, to_report
from perfscope.errors import ExitCode, UsageError
from perfscope.models.conventions import DEFAULT_GPUS, DEFAULT_SEQ_LEN
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.units import parse_duration_ns


@expand_groups
def tflops(
    model: ModelOptions,
    step: StepOptions,
    training: SequenceOptions,
    peak: PeakOptions,
    log: Annotated[
        Path | None,
        typer.Option(
            help="A training log: supplies missing values; its logged TFLOPs are compared with the conventions.",
            show_default="none",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="LIST|FILE|MEANS",
            help="Lengths of the sequences that attention stays within, where they are packed into --seq-len tokens or "
            "vary: 512,1500,2084, a file of them, or mean=380,mean_square=210000.",
            show_default="--seq-len",
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
        gpu=peak.gpu,
    )
    usual_seq_len = DEFAULT_SEQ_LEN
    if model.model is not None:
        usual_seq_len = choose_model(model, DEFAULT_SEQ_LEN).seq_len or DEFAULT_SEQ_LEN
    step_log = None
    if log:
        # The readers of logs import NumPy, which takes longer than the whole command without them.
        from perfscope.commands.tflops.log import read_step_log

        step_log = read_step_log(log)
        inputs = step_log.supply(inputs, usual_seq_len)
    if step_log and step_log.choice and model == ModelOptions():
        choice = step_log.choice
    else:
        choice = choose_model(model, inputs.seq_len or usual_seq_len)
    for option, value in (("--gbs", inputs.samples), ("--time", inputs.step_ns)):
        if value is None:
            raise UsageError(f"{option} is missing", hint="perfscope tflops --size 52B --gbs 1024 --time 127")
    samples = require_positive("--gbs", inputs.samples or 0)
    known = None if lengths is None else parse_lengths(lengths)
    if known and inputs.seq_len is None:
        inputs = inputs._replace(seq_len=round(known.mean))
    seq_len = require_positive("--seq-len", usual_seq_len if inputs.seq_len is None else inputs.seq_len)
    if known and known.mean > seq_len + 0.5:
        raise UsageError(f"sequences of {known.mean:.6g} tokens (--lengths) do not fit into {seq_len} (--seq-len)")
    found = resolve_peak(peak._replace(dtype=inputs.dtype, gpu=inputs.gpu))
    step_of_choice = Step(
        parameters=choice.active_parameters,
        model=choice.transformer,
        tokens=samples * seq_len,
        seq_len=seq_len,
        checkpointing=inputs.checkpointing or DEFAULT_CHECKPOINTING,
        step_ns=inputs.step_ns or 0,
        gpus=require_positive("--gpus", DEFAULT_GPUS if inputs.gpus is None else inputs.gpus),
        peak_tflops=found.tflops,
        attended_len=known.attended_len if known else None,
    )
    answer = TflopsAnswer(step_of_choice, samples, choice, inputs, found, step_log, known)
    return outcome_of(to_report(answer), format, exit_code=ExitCode.OK)
