"""``perfscope bubble`` of a pipeline that has not run."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from perfscope.charts.svg import draw_file
from perfscope.commands.bubble.options import DrawingOptions, TimeOptions
from perfscope.commands.options.common import require_svg
from perfscope.errors import UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report, percent
from perfscope.schedules.closed_forms import ClosedForm
from perfscope.schedules.drawing import GanttChart, draw_timeline, to_charts, to_text
from perfscope.schedules.prediction import (
    SIMULATION_LIMIT,
    Setup,
    apply_closed_form,
    find_target,
    list_alternatives,
    simulate_setup,
)
from perfscope.schedules.prediction_report import PredictionReport


def headline(share: Fraction | None, title: str) -> str:
    """The title of a report, with the bubble where it is known."""
    return title if share is None else f"{percent(share):.2f} % of the time is bubble: {title}"


def write_charts(charts: Sequence[GanttChart], path: Path) -> tuple[str, ...]:
    """Draw charts to an SVG file; returns the notes of the command.

    Raises:
        UsageError: The file is no SVG, or there is no chart.
        SourceError: The file cannot be written.
    """
    require_svg(path)
    if not charts:
        raise UsageError("the step is too large to simulate, so there is no drawing", hint="use fewer micro-batches")
    replace_file(path, draw_file(to_charts(charts)).encode())
    return (f"wrote {path}",)


SCHEMA = "perfscope/bubble/1"


def predict_bubble(
    setup: Setup,
    target: tuple[Fraction, Fraction] | None,
    drawing: DrawingOptions,
    output_format: Format,
    times: TimeOptions,
) -> Outcome:
    """Predict the bubble of a setup.

    Args:
        setup: The pipeline.
        target: The measured and the target throughput.
        drawing: Where the schedule is drawn.
        output_format: Format of the report.
        times: The times of passes, as typed.

    Raises:
        UsageError: The setup is too large to simulate, and its closed form does not apply.
    """
    form = apply_closed_form(setup)
    _require_answerable(setup, form)
    simulated = simulate_setup(setup) if setup.operations <= SIMULATION_LIMIT else None
    title = f"{setup.schedule}, {setup.devices} stages, {setup.microbatches} micro-batches"
    charts = [draw_timeline(title, simulated.timeline)] if simulated else []
    notes = write_charts(charts, drawing.output) if drawing.output else ()
    prediction = PredictionReport(
        setup=setup,
        form=form,
        simulated=simulated,
        alternatives=list_alternatives(setup),
        target=find_target(setup, *target) if target else None,
        has_times=times.are_given,
        assumed=times.list_assumptions(setup.times),
        drawing=to_text(charts[0], drawing.width) if charts else "",
    )
    report = Report(
        headline(prediction.fraction_of_total, title), {"schema": SCHEMA, **prediction.data()}, prediction.sections()
    )
    return Outcome(report, output_format, notes=notes)


def _require_answerable(setup: Setup, form: ClosedForm) -> None:
    if setup.operations > SIMULATION_LIMIT and not (setup.times.are_equal and form.bubble is not None):
        raise UsageError(
            f"{setup.devices} stages and {setup.microbatches} micro-batches are too large to simulate",
            hint="with equal stages and no transfer time the closed form answers; or use fewer micro-batches",
        )
