"""``perfscope plan --microbatches``: the bubble of a pipeline that has not run."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from msgspec.structs import asdict

from perfscope.charts.svg import draw_file
from perfscope.commands.options import require_positive, require_svg
from perfscope.constants import NS_PER_MS, NS_PER_S, NS_PER_US
from perfscope.errors import UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Row, Section, in_unit, percent, to_float
from perfscope.schedules.catalog import ClosedForm, Schedule, require_possible
from perfscope.schedules.drawing import COLUMNS, draw_timeline, to_charts, to_text
from perfscope.schedules.prediction import (
    SIMULATION_LIMIT,
    PassTimes,
    PipelineSetup,
    SimulatedStep,
    ThroughputTarget,
    alternatives_section,
    apply_closed_form,
    find_target,
    list_alternatives,
    simulate_setup,
)
from perfscope.schedules.simulator import to_fraction_of_ideal
from perfscope.units import format_seconds, parse_duration_ns

SCHEMA = "perfscope/bubble/1"
_DEFAULT_CHUNKS = 2
_TIMES = "one time, or one for each stage: 10ms or 9ms,10ms,10ms,12ms"
_option = partial(typer.Option, rich_help_panel="Bubble of a pipeline schedule, with --pp and without a model")


class BubbleOptions(NamedTuple):
    """A pipeline schedule, the times of its passes, and a target."""

    microbatches: Annotated[
        int | None,
        _option(
            "--microbatches",
            "-m",
            help="Micro-batches of one pipeline in a step: predicts its bubble.",
            show_default="no bubble is predicted",
        ),
    ] = None
    schedule: Annotated[Schedule, _option(help="Pipeline schedule.")] = Schedule.ONE_F_ONE_B
    forward: Annotated[
        str | None, _option(help=f"Forward-pass time: {_TIMES}.", show_default="equal times without a unit")
    ] = None
    backward: Annotated[
        str | None,
        _option(
            help="Backward-pass time, written as --forward; with --weight the time of the input gradient only.",
            show_default="2 x forward",
        ),
    ] = None
    weight: Annotated[
        str | None,
        _option(help="Weight-gradient (W) time, written as --forward.", show_default="half of the backward pass"),
    ] = None
    transfer: Annotated[
        str | None,
        _option(
            help="Transfer time to the next stage, such as 1ms: one time, or one for each sending stage.",
            show_default="0",
        ),
    ] = None
    target_tflops: Annotated[
        float | None,
        _option(
            help="Target TFLOPs per GPU, where --tflops were measured: computes the micro-batches needed.",
            show_default="none",
        ),
    ] = None
    svg: Annotated[Path | None, _option(metavar="FILE.svg", help="Draw the schedule.")] = None


def predict_bubble(
    bubble: BubbleOptions, pp: int | None, virtual_stages: int | None, tflops: float | None, output_format: Format
) -> Outcome:
    """Predict the bubble of a setup; UsageError where an option is out of range, or it is too large to simulate."""
    if pp is None:
        raise UsageError("--pp is missing", hint="perfscope plan --pp 4 --microbatches 8")
    if bubble.svg is not None:
        require_svg(bubble.svg)
    setup = _to_setup(bubble, pp, virtual_stages)
    goal = _parse_target(tflops, bubble.target_tflops)
    if setup.operations > SIMULATION_LIMIT:
        raise UsageError(
            f"{setup.devices} stages and {setup.microbatches} micro-batches are too large to simulate",
            hint="use fewer micro-batches",
        )
    form, step, has_times = apply_closed_form(setup), simulate_setup(setup), bubble.forward is not None
    title = f"{setup.schedule}, {setup.devices} stages, {setup.microbatches} micro-batches"
    chart = draw_timeline(title, step.timeline)
    if bubble.svg is not None:
        replace_file(bubble.svg, draw_file(to_charts([chart])).encode())
    alternatives = list_alternatives(setup)
    target = None if goal is None else find_target(setup, *goal)
    share = step.timeline.fraction_of_period
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "schedule": str(setup.schedule),
        "p": setup.devices,
        "microbatches": setup.microbatches,
        "virtual_stages": setup.chunks,
        "fraction_of_total": float(share),
        "fraction_of_ideal": float(to_fraction_of_ideal(share)),
        "closed_form": {
            "fraction_of_total": to_float(form.fraction_of_total),
            "fraction_of_ideal": to_float(form.fraction_of_ideal),
            "bubble": form.formula,
            "bubble_us": in_unit(form.bubble, NS_PER_US) if has_times else None,
            "applies": setup.times.are_equal and form.bubble is not None,
            "reason": form.reason,
            "source": form.source,
        },
        "simulated": _simulated_data(step, has_times=has_times),
        "times": {f"{name}_us": [ns / NS_PER_US for ns in part] for name, part in asdict(setup.times).items()}
        if has_times
        else None,
        "alternatives": [
            {
                "change": one.change,
                "fraction_of_total": float(one.fraction_of_total),
                "fraction_of_ideal": float(to_fraction_of_ideal(one.fraction_of_total)),
                "speedup": float(one.speedup),
                "peak_microbatches_in_flight": float(one.peak_in_flight),
            }
            for one in alternatives
        ],
        "target": None
        if target is None
        else {
            "tflops": float(target.tflops),
            "target_tflops": float(target.target_tflops),
            "limit_tflops": float(target.limit),
            "microbatches": target.microbatches,
        },
    }
    notes = (*_notes(setup, form, step, has_times=has_times), *_list_assumptions(bubble, setup.times))
    sections = [
        _summary(form, step, notes, has_times=has_times),
        Section("Schedule", drawing=to_text(chart, COLUMNS)),
        alternatives_section(alternatives),
    ]
    if target:
        sections.append(_target_section(setup, target))
    report = Report(f"{percent(share):.2f} % of the time is bubble: {title}", data, tuple(sections))
    return Outcome(report, output_format, notes=() if bubble.svg is None else (f"wrote {bubble.svg}",))


def _simulated_data(step: SimulatedStep, *, has_times: bool) -> Json:
    timeline = step.timeline

    def us(ticks: int) -> float | None:
        return in_unit(Fraction(ticks, step.ticks_per_ns), NS_PER_US) if has_times else None

    return {
        "fraction_of_total": float(timeline.fraction_of_period),
        "fraction_of_ideal": float(to_fraction_of_ideal(timeline.fraction_of_period)),
        "fraction_of_section": float(timeline.fraction_of_total),
        "section_us": us(timeline.section),
        "period_us": us(timeline.period),
        "stages": [
            {
                "stage": stage,
                "useful_us": us(timeline.busy(stage)),
                "idle_us": us(timeline.period - timeline.busy(stage)),
                "peak_microbatches_in_flight": float(peak),
            }
            for stage, peak in enumerate(step.peak_in_flight)
        ],
    }


def _summary(form: ClosedForm, step: SimulatedStep, notes: tuple[str, ...], *, has_times: bool) -> Section:
    share = step.timeline.fraction_of_period
    total = None if form.bubble is None else form.bubble + form.useful
    rows: list[Row] = [
        ("simulated", percent(share), percent(to_fraction_of_ideal(share)), in_unit(step.period_ns, NS_PER_MS)),
        (
            f"closed form {form.formula}",
            percent(form.fraction_of_total),
            percent(form.fraction_of_ideal),
            in_unit(total, NS_PER_MS),
        ),
    ]
    columns = [Column("Bubble"), Column("Of the total (%)", 2), Column("Of the ideal (%)", 2)]
    if has_times:
        columns.append(Column("Passes of a step (ms)", 3))
    return Section("Pipeline bubble", tuple(columns), tuple(row[: len(columns)] for row in rows), notes)


def _notes(setup: PipelineSetup, form: ClosedForm, step: SimulatedStep, *, has_times: bool) -> Iterator[str]:
    yield (
        "Of the total: idle time over the total time of the passes. Of the ideal: the same idle time over the "
        "compute time."
    )
    yield f"Closed form: equal stages and no transfer time; source: {form.source}."
    if form.reason:
        yield f"The closed form does not apply: {form.reason}."
    elif not setup.times.are_equal:
        yield "The closed form assumes equal stages with the same total work; the simulation does not."
    if not has_times:
        yield (
            "Without times, the forward pass, the input gradient and the weight gradient are assumed to take equally "
            "long."
        )
    if step.timeline.section != step.timeline.period:
        yield (
            "A stage that is done may begin its next step. From the first forward pass to the end of the last "
            f"backward pass on any stage, {percent(step.timeline.fraction_of_total):.2f} % is idle."
        )
    if setup.microbatches < setup.devices:
        yield (
            f"{setup.microbatches} micro-batches cannot fill {setup.devices} stages: some stage is idle all the time."
        )


def _target_section(setup: PipelineSetup, target: ThroughputTarget) -> Section:
    columns = (
        Column("Measured TFLOPs per GPU"),
        Column("Measured micro-batches"),
        Column("Target TFLOPs per GPU"),
        Column("Micro-batches needed"),
        Column("TFLOPs per GPU without a bubble"),
    )
    goal = float(target.target_tflops)
    notes = [
        "Micro-batches are also called PP chunks or gradient accumulation steps. Assumes that a micro-batch keeps its "
        "size and its time, and that a step consists of its passes: no optimizer, no input."
    ]
    if target.microbatches is None:
        notes.append(f"{goal:g} cannot be reached by more micro-batches: make a micro-batch faster.")
    row = (float(target.tflops), setup.microbatches, goal, target.microbatches, float(target.limit))
    return Section("Micro-batches for a target throughput", columns, (row,), notes=tuple(notes))


def _to_setup(bubble: BubbleOptions, pp: int, virtual_stages: int | None) -> PipelineSetup:
    assert bubble.microbatches is not None
    chunks = _DEFAULT_CHUNKS if bubble.schedule is Schedule.INTERLEAVED else 1
    if virtual_stages is not None:
        chunks = require_positive("--virtual-stages", virtual_stages)
    stages, microbatches = require_positive("--pp", pp), require_positive("--microbatches", bubble.microbatches)
    require_possible(bubble.schedule, stages, microbatches, chunks)
    return PipelineSetup(bubble.schedule, stages, microbatches, chunks, _parse_pass_times(bubble, stages))


def _parse_pass_times(bubble: BubbleOptions, stages: int) -> PassTimes:
    if bubble.forward is None and (bubble.backward or bubble.weight or bubble.transfer):
        raise UsageError("--forward is missing", hint="set it with the other times: its default has no unit")
    if bubble.weight and not bubble.backward:
        raise UsageError("--weight needs --backward", hint="--backward is then the gradient of the input")
    forward = _parse_times(stages, "--forward", bubble.forward) if bubble.forward else (NS_PER_MS,) * stages
    backward = tuple(2 * time for time in forward)
    if bubble.backward:
        backward = _parse_times(stages, "--backward", bubble.backward)
    weight = tuple(time // 2 for time in backward)
    if bubble.weight:
        weight = _parse_times(stages, "--weight", bubble.weight)
        backward = tuple(sum(gradients) for gradients in zip(backward, weight, strict=True))
    transfer = _parse_times(stages, "--transfer", bubble.transfer) if bubble.transfer else (0,) * stages
    return PassTimes(forward, backward, weight, transfer)


def _parse_times(stages: int, option: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    times = tuple(0 if part.strip() in {"0", "0s", "0ms"} else parse_duration_ns(part) for part in parts)
    if option in {"--forward", "--backward"} and not all(times):
        raise UsageError(f"{option} must be longer than 0")
    if len(times) not in {1, stages}:
        raise UsageError(f"{option} has {len(times)} times for {stages} stages", hint=_TIMES)
    return times * stages if len(times) == 1 else times


def _list_assumptions(bubble: BubbleOptions, times: PassTimes) -> tuple[str, ...]:
    if bubble.forward is None:
        return ()
    backward = ", ".join(format_seconds(time_ns / NS_PER_S) for time_ns in dict.fromkeys(times.backward))
    assumptions = (
        (bubble.backward, f"The backward pass is assumed to take {backward}: 2 x forward."),
        (bubble.weight, "Half of the backward pass is assumed to be the weight gradient (--weight)."),
        (bubble.transfer, "Transfers between stages are assumed to take no time (--transfer)."),
    )
    return tuple(line for typed, line in assumptions if typed is None)


def _parse_target(tflops: float | None, target: float | None) -> tuple[Fraction, Fraction] | None:
    if tflops is None and target is None:
        return None
    if tflops is None or target is None:
        raise UsageError(
            "--tflops and --target-tflops go together",
            hint="--tflops is the throughput measured at --microbatches, --target-tflops the target",
        )
    for option, value in (("--tflops", tflops), ("--target-tflops", target)):
        if not 0 < value < float("inf"):
            raise UsageError(f"{option} must be positive, not {value:g}")
    return Fraction(repr(tflops)), Fraction(repr(target))
