"""``perfscope bubble``: what a pipeline schedule costs, predicted from its shape or measured from a run."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.errors import ExitCode, SourceError, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report
from perfscope.schedules.answer import Answer, alternatives_data, alternatives_section
from perfscope.schedules.lanes import Chart, chart_of
from perfscope.schedules.orders import Schedule, check
from perfscope.schedules.prediction import MOST_OPERATIONS, Setup, Times, alternatives, formula, simulated, target
from perfscope.schedules.text import draw
from perfscope.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.tables.run import Run

SCHEMA = "perfscope/bubble/1"
_DEFAULT_CHUNKS = 2
_DEFAULT_FORWARD_NS = 10**6
_TIMES_HELP = "one time, or one for each stage: 10ms or 9ms,10ms,10ms,12ms"


def bubble(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN_DIR | TRACE...]", help="A run's folder, or traces: measure instead of predict."),
    ] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages.")] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", "-m", help="Micro-batches of one pipeline in a step.")
    ] = None,
    schedule: Annotated[Schedule | None, typer.Option(help="The order of work.  [default: 1f1b]")] = None,
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
    tp: Annotated[int | None, typer.Option(help="Of measured ranks: tensor-parallel size, with --pp and --dp.")] = None,
    dp: Annotated[int | None, typer.Option(help="Of measured ranks: data-parallel size, with --pp and --tp.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Draw the schedule to this SVG file.")] = None,
    width: Annotated[int, typer.Option(help="Columns of the drawing.", min=10, max=1000)] = 100,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Predict the bubble of a pipeline schedule, or measure the one of a run, and say what would change it."""
    if paths:
        predicting = (
            microbatches,
            schedule,
            virtual_stages,
            forward,
            backward,
            weight,
            transfer,
            tflops,
            target_tflops,
        )
        if any(option is not None for option in predicting):
            raise UsageError("a run is measured, so it takes no times, schedule or micro-batches", hint="see --help")
        return _measured(paths, (tp, pp, dp), output, format)
    if pp is None or microbatches is None:
        raise UsageError(
            "--pp and --microbatches are missing",
            hint="or name a run's folder or traces to measure: perfscope bubble RUN_DIR",
        )
    if tp is not None or dp is not None:
        raise UsageError("--tp and --dp say which ranks of a run make a pipeline", hint="a prediction needs neither")
    named = schedule or Schedule.ONE_F_ONE_B
    chunks = _chunks(named, virtual_stages)
    check(named, require_positive("--pp", pp), require_positive("--microbatches", microbatches), chunks)
    setup = Setup(named, pp, microbatches, chunks, _times(pp, forward, backward, weight, transfer))
    given = any(time is not None for time in (forward, backward, weight, transfer))
    return _predicted(setup, _wanted(tflops, target_tflops), (given, width), output, format)


def _predicted(
    setup: Setup, wanted: tuple[Fraction, Fraction] | None, shown: tuple[bool, int], output: Path | None, to: Format
) -> Outcome:
    _require_answerable(setup)
    times_are_given, width = shown
    result = simulated(setup) if setup.operations <= MOST_OPERATIONS else None
    title = f"{setup.schedule}, {setup.devices} stages, {setup.microbatches} micro-batches"
    charts = [chart_of(title, result.timeline)] if result else []
    notes = _write(charts, output) if output else ()
    answer = Answer(
        setup=setup,
        form=formula(setup),
        simulated=result,
        alternatives=alternatives(setup),
        target=target(setup, *wanted) if wanted else None,
        times_are_given=times_are_given,
        drawing=draw(charts[0], width) if charts else "",
    )
    report = Report(_headline(answer.fraction_of_total, title), {"schema": SCHEMA, **answer.data()}, answer.sections())
    return Outcome(report, to, notes=notes)


def _measured(
    paths: Sequence[Path], sizes: tuple[int | None, int | None, int | None], output: Path | None, to: Format
) -> Outcome:
    from perfscope.analyzers.pipeline_bubble import analyze_pipelines
    from perfscope.analyzers.pipelines.outlook import ASSUMPTION, outlook
    from perfscope.engine.run import measure_one

    run, partials, damage = measure_one("pipeline_bubble", paths)
    given = _pipelines(sizes, [one.world_size for one in partials]) or _pipelines_of(run)
    result = analyze_pipelines(partials, given)
    step = result.steps[0]
    title = (
        f"{step.schedule or 'unknown schedule'}, {result.stages} stages, {step.microbatches} micro-batches, measured"
    )
    notes = _write(result.charts, output) if output else ()
    others = outlook(result)
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "inputs": [str(path) for path in paths],
        "pipeline_bubble": result.data(),
        "alternatives": alternatives_data(others),
    }
    sections = (*result.sections(), *((alternatives_section(others, ASSUMPTION),) if others else ()))
    report = Report(_headline(result.fraction_of_total, title), data, sections, tuple(damage))
    warnings = tuple(f"warning: {line}" for line in damage)
    return Outcome(report, to, notes=(*notes, *warnings), exit_code=ExitCode.DAMAGED_INPUT if damage else ExitCode.OK)


def _pipelines(
    sizes: tuple[int | None, int | None, int | None], worlds: Sequence[int | None]
) -> Sequence[Sequence[int]]:
    from perfscope.analyzers.pipelines.layout import Layout

    if all(size is None for size in sizes):
        return ()
    tensor, pipeline, data = (require_positive("a size", 1 if size is None else size) for size in sizes)
    world_size = next((world for world in worlds if world is not None), tensor * pipeline * data)
    return Layout(tensor, pipeline, data).pipelines(world_size)


def _pipelines_of(run: Run | None) -> Sequence[Sequence[int]]:
    """The pipelines of a run, where its framework told the ranks' places."""
    members: dict[tuple[tuple[str, int], ...], list[tuple[int, int]]] = {}
    for rank in run.ranks if run else ():
        if "pp" not in rank.parallel:
            return ()
        others = tuple(sorted((axis, place) for axis, place in rank.parallel.items() if axis != "pp"))
        members.setdefault(others, []).append((rank.parallel["pp"], rank.rank))
    pipelines = [[rank for _, rank in sorted(set(ranks))] for _, ranks in sorted(members.items())]
    return pipelines if all(len(ranks) > 1 for ranks in pipelines) else ()


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


def _write(charts: Sequence[Chart], path: Path) -> tuple[str, ...]:
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path} does not end in .svg", hint="the drawing is written as SVG")
    if not charts:
        raise UsageError("there is too much to simulate, so nothing to draw", hint="ask for fewer micro-batches")
    from perfscope.schedules.svg import to_svg

    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(to_svg(charts), "utf-8")
        partial.replace(path)
    except OSError as error:
        raise SourceError(path, f"cannot be written: {error.strerror}") from None
    return (f"wrote {path}",)


def _headline(share: Fraction | None, title: str) -> str:
    return title if share is None else f"{float(100 * share):.2f} % of the time is bubble: {title}"
