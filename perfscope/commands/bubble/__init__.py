"""``perfscope bubble``: the bubble of a pipeline, predicted from its schedule or measured from traces."""

from __future__ import annotations

from typing import Annotated

import typer

from perfscope.commands.bubble.options import DrawingOptions, PipelineOptions, RankOptions, TargetOptions, TimeOptions
from perfscope.commands.bubble.prediction import predict_bubble
from perfscope.commands.options.common import FormatOption
from perfscope.commands.options.groups import expand_groups
from perfscope.errors import UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format


@expand_groups
def bubble(
    pipeline: PipelineOptions,
    times: TimeOptions,
    target: TargetOptions,
    ranks: RankOptions,
    drawing: DrawingOptions,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_DIR | TRACE...]",
            help="A run's folder, or traces, by paths or URLs: measure their bubble instead of predicting it.",
        ),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Predict the bubble of a pipeline schedule or measure that of a run, and compare alternatives."""
    if paths:
        if pipeline.describes_schedule or times.are_given or target.is_given:
            raise UsageError(
                "times, schedule and micro-batches are for a prediction, not for a measured run", hint="see --help"
            )
        # Prediction starts without NumPy, which measurement needs.
        from perfscope.commands.bubble.measurement import measure_bubble

        return measure_bubble(paths, (ranks.tp, pipeline.pp, ranks.dp), drawing.output, format)
    if pipeline.pp is None or pipeline.microbatches is None:
        raise UsageError(
            "--pp and --microbatches are missing",
            hint="or name a run's folder or traces to measure: perfscope bubble RUN_DIR",
        )
    if ranks.tp is not None or ranks.dp is not None:
        raise UsageError(
            "--tp and --dp describe which ranks of a run form a pipeline", hint="a prediction needs neither"
        )
    return predict_bubble(pipeline.to_setup(times), target.parse(), drawing, format, times)
