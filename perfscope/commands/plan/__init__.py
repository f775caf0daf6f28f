"""``perfscope plan``: how long a training run takes, what fits on the GPUs, and how large a checkpoint is."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.commands.options.dimensions import Dimensions
from perfscope.commands.options.groups import expand_groups
from perfscope.commands.options.model import ModelOptions, choose_model
from perfscope.commands.options.peaks import PeakOptions, resolve_peak
from perfscope.commands.options.training import TrainingOptions
from perfscope.commands.plan.calculation import check_batches, make_plan
from perfscope.commands.plan.inputs import PlanInputs, parse_target, supply_from_deepspeed_config
from perfscope.commands.plan.options import DurationOptions, FileOptions, LayoutOptions, MemoryOptions
from perfscope.commands.plan.report import to_report
from perfscope.errors import UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format


@expand_groups
def plan(
    *,
    model: ModelOptions,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.", show_default="those of --run or --log")] = None,
    training: TrainingOptions,
    duration: DurationOptions,
    peak: PeakOptions,
    layout: LayoutOptions,
    memory: MemoryOptions,
    files: FileOptions,
    dimensions: Dimensions,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Plan a training run: its duration or the TFLOPs it needs, memory per GPU, what fits, and the checkpoint size."""
    run = log = None
    if files.run or files.log:
        # Reading a run or a log imports NumPy, which a plan without one does not need.
        from perfscope.commands.plan.files import read_run_or_log

        run, log = read_run_or_log(files.run, files.log)
    if gpus is None:
        gpus = run.measured.gpus if run else log.setup.gpus if log else None
    if gpus is None:
        stated_by = f"{files.log} does not state the number of GPUs" if files.log else None
        example = "perfscope plan --model 13B --tokens 260B --gpus 16 --tflops 45"
        raise UsageError("--gpus is missing", hint=stated_by or example)
    inputs = PlanInputs(require_positive("--gpus", gpus), parse_target(duration), training, layout, memory, peak)
    if files.deepspeed_config:
        inputs = supply_from_deepspeed_config(inputs, files.deepspeed_config)
    check_batches(inputs)
    for source in (run, log):
        inputs = source.supply(inputs) if source else inputs
    source = run or log
    if source and model == ModelOptions() and not dimensions.typed:
        choice = source.choose_model()
    else:
        choice = choose_model(model, dimensions, inputs.seq_len)
    inputs = replace(inputs, model_seq_len=choice.seq_len)
    training_plan = make_plan(inputs, choice, resolve_peak(inputs.peak))
    report = to_report(training_plan, run.compare(training_plan) if run else None)
    return Outcome(report, format, notes=tuple(f"warning: {line}" for line in report.warnings))
