"""``perfscope plan``: how long a training run takes, what fits on the GPUs, and how large a checkpoint is."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from perfscope.commands.model import ModelOptions, PeakOptions, SequenceOptions, choose_model, resolve_peak
from perfscope.commands.options import FormatOption, expand_groups, require_positive
from perfscope.commands.plan.bubble import BubbleOptions, predict_bubble
from perfscope.commands.plan.calculation import check_batches, make_plan
from perfscope.commands.plan.options import (
    DurationOptions,
    LayoutOptions,
    MemoryOptions,
    PlanInputs,
    StepTimeOptions,
    parse_target,
)
from perfscope.commands.plan.report import to_report
from perfscope.errors import UsageError
from perfscope.models.hardware import lookup_gpu, suggest_gpus
from perfscope.outcome import Outcome
from perfscope.renderers import Format


@expand_groups
def plan(
    *,
    model: ModelOptions,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.", show_default="required")] = None,
    training: SequenceOptions,
    duration: DurationOptions,
    peak: PeakOptions,
    layout: LayoutOptions,
    memory: MemoryOptions,
    bubble: BubbleOptions,
    steps: StepTimeOptions,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Plan a training run: its duration or the TFLOPs it needs, memory per GPU, what fits, and the checkpoint size.

    With --pp and --microbatches alone it predicts the bubble of a pipeline schedule. With --calibrate and a table alone
    it says how far predicted steps are from the table's.
    """
    if bubble.microbatches is not None:
        of_training = (gpus, duration.tokens, duration.days, *layout._replace(pp=None, virtual_stages=None))
        if any(of_training) or model != ModelOptions() or memory != MemoryOptions() or peak != PeakOptions():
            raise UsageError("--microbatches predicts a bubble, without a model", hint="--gbs plans a training")
        return predict_bubble(bubble, layout.pp, layout.virtual_stages, duration.tflops, format)
    if bubble != BubbleOptions():
        raise UsageError(
            "--schedule, --svg, --target-tflops and the times of passes are of a bubble", hint="add --microbatches"
        )
    if steps.calibrate and gpus is None and model == ModelOptions():
        # SciPy takes half a second to import, which plans of memory and bubbles do not need.
        from perfscope.commands.plan.judging import report_judgement
        from perfscope.commands.plan.measured import read_tables

        return Outcome(report_judgement(read_tables(steps.calibrate)), format)
    if gpus is None:
        raise UsageError("--gpus is missing", hint="perfscope plan --model 13B --tokens 260B --gpus 16 --tflops 45")
    inputs = PlanInputs(
        require_positive("--gpus", gpus), parse_target(duration), training, layout, memory, peak, steps=steps
    )
    check_batches(inputs)
    if layout.gbs is not None and peak.gpu is not None and lookup_gpu(peak.gpu) is None:
        raise UsageError(
            f"no step on the GPU {peak.gpu!r} can be predicted: its memory and rates are not known",
            hint=f"without --gbs, --tokens and --tflops plan the days on any GPU; {suggest_gpus(peak.gpu)}",
        )
    choice = choose_model(model, inputs.seq_len)
    inputs = replace(inputs, model_seq_len=choice.seq_len)
    training_plan = make_plan(inputs, choice, resolve_peak(inputs.peak))
    report = to_report(training_plan)
    if training_plan.has_configurations:
        from perfscope.commands.plan.configurations import add_configurations  # imports SciPy, too

        report = add_configurations(report, training_plan)
    elif steps != StepTimeOptions():
        raise UsageError("configurations need --gpu and --gbs", hint="add both, or leave out the options of step times")
    return Outcome(report, format, notes=tuple(f"warning: {line}" for line in report.warnings))
