"""``perfscope bubble``: what a pipeline schedule will cost before it runs, and what would make it cheaper."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options import FormatOption, require_positive
from perfscope.errors import SourceError, UsageError
from perfscope.outcome import Outcome
from perfscope.pipeline.answer import Answer
from perfscope.pipeline.lanes import Chart, chart_of
from perfscope.pipeline.prediction import MOST_OPERATIONS, Setup, Times, alternatives, formula, simulated, target
from perfscope.pipeline.schedules import Schedule, check
from perfscope.pipeline.text import draw
from perfscope.renderers import Format, render
from perfscope.report import Report
from perfscope.units import parse_duration_ns

_DEFAULT_CHUNKS = 2
_DEFAULT_FORWARD_NS = 10**6
_TIMES_HELP = "one time, or one for each stage: 10ms or 9ms,10ms,10ms,12ms"


def bubble(
    pp: Annotated[int, typer.Option(help="Pipeline stages.")],
    microbatches: Annotated[int, typer.Option("--microbatches", "-m", help="Micro-batches of one pipeline in a step.")],
    schedule: Annotated[Schedule, typer.Option(help="The order of work.")] = Schedule.ONE_F_ONE_B,
    virtual_stages: Annotated[
        int | None, typer.Option(help="Chunks of the model on a stage, for interleaved.  [default: 2]")
    ] = None,
    forward: Annotated[str | None, typer.Option(help=f"Forward pass of a micro-batch: {_TIMES_HELP}.")] = None,
    backward: Annotated[
        str | None,
        typer.Option(help="Its backward pass; with --weight only the gradient of the input.  [default: 2 x forward]"),
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="Its gradient of the weights.  [default: half of the backward pass]")
    ] = None,
    transfer: Annotated[
        str | None, typer.Option(help="Sending to the next stage: one time, or one a sending stage.  [default: 0]")
    ] = None,
    tflops: Annotated[str | None, typer.Option(help="TFLOPs per GPU measured at --microbatches.")] = None,
    target_tflops: Annotated[str | None, typer.Option(help="How many micro-batches until this many?")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Draw the schedule to this SVG file.")] = None,
    width: Annotated[int, typer.Option(help="Columns of the drawing.", min=10, max=1000)] = 100,
    format: FormatOption = Format.MARKDOWN,  # noqa: A002 - the option's name
) -> Outcome:
    """Predict the bubble of a pipeline schedule: formula, simulation, drawing, and what would change it."""
    chunks = _chunks(schedule, virtual_stages)
    require_positive("--pp", pp)
    require_positive("--microbatches", microbatches)
    check(schedule, pp, microbatches, chunks)
    times = _times(pp, forward, backward, weight, transfer)
    setup = Setup(schedule, pp, microbatches, chunks, times)
    wanted = _wanted(tflops, target_tflops)
    _require_answerable(setup)
    result = simulated(setup) if setup.operations <= MOST_OPERATIONS else None
    title = f"{schedule}, {pp} stages, {microbatches} micro-batches"
    chart = chart_of(title, result.timeline) if result else None
    notes = _write(chart, output) if output else ()
    answer = Answer(
        setup=setup,
        form=formula(setup),
        simulated=result,
        alternatives=alternatives(setup),
        target=target(setup, *wanted) if wanted else None,
        times_are_given=any(given is not None for given in (forward, backward, weight, transfer)),
        drawing=draw(chart, width) if chart else "",
    )
    report = Report(_headline(answer, title), {"schema": "perfscope/bubble/1", **answer.data()}, answer.sections())
    return Outcome(render(report, format), notes=notes)


def _chunks(schedule: Schedule, virtual_stages: int | None) -> int:
    if virtual_stages is not None:
        return require_positive("--virtual-stages", virtual_stages)
    return _DEFAULT_CHUNKS if schedule is Schedule.INTERLEAVED else 1


def _times(pp: int, forward: str | None, backward: str | None, weight: str | None, transfer: str | None) -> Times:
    forwards = _each(pp, "--forward", forward) if forward else (_DEFAULT_FORWARD_NS,) * pp
    if forward is None and (backward or weight or transfer):
        raise UsageError("--forward is missing", hint="give it with the other times: a default would have no unit")
    backwards = _each(pp, "--backward", backward) if backward else None
    if weight and backwards is None:
        raise UsageError("--weight is given without --backward", hint="--backward is then the gradient of the input")
    whole = backwards or tuple(2 * time for time in forwards)
    weights = _each(pp, "--weight", weight) if weight else tuple(time // 2 for time in whole)
    if weight:
        whole = tuple(inputs + own for inputs, own in zip(whole, weights, strict=True))
    transfers = _each(pp, "--transfer", transfer) if transfer else (0,) * pp
    return Times(forwards, whole, weights, transfers)


def _each(pp: int, option: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    times = tuple(0 if part.strip() in {"0", "0s", "0ms"} else parse_duration_ns(part) for part in parts)
    if option in {"--forward", "--backward"} and not all(times):
        raise UsageError(f"{option} must be longer than 0")
    if len(times) not in {1, pp}:
        raise UsageError(f"{option} has {len(times)} times for {pp} stages", hint=_TIMES_HELP)
    return times * pp if len(times) == 1 else times


def _wanted(tflops: str | None, target_tflops: str | None) -> tuple[Fraction, Fraction] | None:
    if tflops is None and target_tflops is None:
        return None
    if tflops is None or target_tflops is None:
        raise UsageError(
            "--tflops and --target-tflops go together",
            hint="--tflops is what was measured at --microbatches, --target-tflops what it should become",
        )
    return _tflops("--tflops", tflops), _tflops("--target-tflops", target_tflops)


def _tflops(option: str, text: str) -> Fraction:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{option} must be a number, not {text!r}") from None
    if not value.is_finite() or value <= 0:
        raise UsageError(f"{option} must be a positive number, not {text}")
    return Fraction(value)


def _require_answerable(setup: Setup) -> None:
    form = formula(setup)
    if setup.operations > MOST_OPERATIONS and not (setup.times.equal and form.bubble is not None):
        raise UsageError(
            f"{setup.devices} stages and {setup.microbatches} micro-batches are too much to simulate",
            hint="with equal stages and no transfer time the closed form answers; or ask for fewer micro-batches",
        )


def _write(chart: Chart | None, path: Path) -> tuple[str, ...]:
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path} does not end in .svg", hint="the drawing is written as SVG")
    if chart is None:
        raise UsageError("there is too much to simulate, so nothing to draw", hint="ask for fewer micro-batches")
    from perfscope.pipeline.svg import to_svg

    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(to_svg([chart]), "utf-8")
        partial.replace(path)
    except OSError as error:
        raise SourceError(path, f"cannot be written: {error.strerror}") from None
    return (f"wrote {path}",)


def _headline(answer: Answer, title: str) -> str:
    share = answer.fraction_of_total
    return title if share is None else f"{float(100 * share):.2f} % of the time is bubble: {title}"
