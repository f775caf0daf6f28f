"""``perfscope bubble`` of a pipeline that has not run."""

from __future__ import annotations

from fractions import Fraction

from perfscope.commands.bubble.drawing import headline, write_charts
from perfscope.commands.bubble.options import DrawingOptions, TimeOptions
from perfscope.errors import UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.schedules.closed_forms import ClosedForm
from perfscope.schedules.drawing import draw_timeline, to_text
from perfscope.schedules.prediction import (
    SIMULATION_LIMIT,
    Setup,
    apply_closed_form,
    find_target,
    list_alternatives,
    simulate_setup,
)
from perfscope.schedules.prediction_report import PredictionReport

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
