"""``perfscope scaling``: throughput, speed-up and efficiency over nodes and GPUs, from folders of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from perfscope.analyzers import steps
from perfscope.analyzers.logs import summary as logs
from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.scaling import dlperf, zero_stages
from perfscope.analyzers.scaling import tables as scaling_tables
from perfscope.analyzers.scaling.study import Scaling, Series
from perfscope.analyzers.scaling.study import analyze as study
from perfscope.commands.options.common import FormatOption
from perfscope.errors import ExitCode, MissingInput, PerfscopeError, SourceError, UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.renderers.chart import Curve, to_chart
from perfscope.report import Report
from perfscope.sources.joblog import find_logs, read_log
from perfscope.sources.runs.run import is_run, read_run
from perfscope.sources.scaling.dlperf import Protocol, read_protocol
from perfscope.sources.scaling.study import case_of, device_beside, device_of_run, model_of
from perfscope.tables.scaling import ProtocolRun, ScalingRun

_GREY = 6
_CURVE_POINTS = 60
_RULES: dict[Protocol, Callable[[Sequence[ProtocolRun]], dlperf.ProtocolResult]] = {
    Protocol.MXNET_BERT: dlperf.mxnet_bert,
    Protocol.DEEPSPEED: dlperf.deepspeed,
}


def scaling(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Folders of runs: logs, or runs of profile.")],
    protocol: Annotated[Protocol | None, typer.Option(help="Rules of a published benchmark.")] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Iterations left out at each start.  [default: the first record]")
    ] = None,
    predict: Annotated[str | None, typer.Option(help="GPUs to predict: 64,128.  [default: twice the most]")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the series to this SVG file.")] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Tell how throughput grows with GPUs, and what a law of scaling makes of it."""
    if warmup is not None and warmup < 0:
        raise UsageError(f"--warmup must be at least 0, not {warmup}")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(f"{plot} does not end in .svg", hint="the drawing is written as SVG")
    asked = _counts(predict)
    if protocol is not None:
        if warmup is not None:
            raise UsageError("a protocol has its own warm-up", hint="leave out --warmup")
        return _by_protocol(paths, protocol, asked, plot, format)
    return _by_study(paths, warmup, asked, plot, format)


def _counts(text: str | None) -> tuple[int, ...]:
    words = [] if text is None else text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"{text!r} is no list of numbers of GPUs", hint="write --predict 64,128")
    return tuple(int(word) for word in words)


def _by_protocol(
    paths: list[Path], protocol: Protocol, asked: tuple[int, ...], plot: Path | None, to: Format
) -> Outcome:
    runs, notes = read_protocol(paths, protocol)
    try:
        result = _RULES[protocol](runs)
    except MissingInput as error:
        raise PerfscopeError(str(error)) from None
    found = study(list(_protocol_runs(result)), asked)
    warnings = (*notes, *result.notes)
    report = Report(
        f"Scaling by {protocol}",
        {
            "schema": "perfscope/scaling/1",
            "protocol": str(protocol),
            "results": result.data(),
            "runs": {
                model: {str(speed.case): {str(run): value for run, value in speed.runs.items()} for speed in speeds}
                for model, speeds in result.speeds.items()
            },
            "series": [series.data() for series in found.series],
            "notes": list(warnings),
        },
        (scaling_tables.protocol(result), *scaling_tables.laws(found)),
        warnings,
    )
    return Outcome(report, to, notes=(*(f"note: {line}" for line in warnings), *_draw(found, plot)))


def _protocol_runs(result: dlperf.ProtocolResult) -> Iterator[ScalingRun]:
    for model, speeds in result.speeds.items():
        for speed in speeds:
            for run, value in speed.runs.items():
                yield ScalingRun(
                    path=f"{speed.case}, run {run}",
                    case=speed.case,
                    model=model,
                    batch=speed.batch_per_gpu * speed.case.gpus,
                    precision=None,
                    seq_len=None,
                    zero_stage=None,
                    dp=speed.case.gpus,
                    mp=1,
                    samples_per_s=value,
                    device=None,
                    out_of_memory=False,
                )


def _by_study(paths: list[Path], warmup: int | None, asked: tuple[int, ...], plot: Path | None, to: Format) -> Outcome:
    runs, unread = _read(paths, warmup)
    if not runs:
        raise PerfscopeError(
            "; ".join(unread[:3]) or "there is no run in " + ", ".join(map(str, paths)),
            hint="name folders of logs; nodes and GPUs come from names such as 2n8g/, or from the logs",
        )
    found = study(runs, asked)
    stages = zero_stages.compare(runs)
    warnings = (*unread, *found.notes)
    report = Report(
        "Scaling",
        {
            "schema": "perfscope/scaling/1",
            "protocol": None,
            "results": found.results(),
            "weak": [series.data() for series in found.series if series.kind == "weak"],
            "strong": [series.data() for series in found.series if series.kind == "strong"],
            "runs": [scaling_tables.run_data(run) for run in runs],
            "zero": [stage.data() for stage in stages],
            "notes": list(warnings),
        },
        (
            *scaling_tables.series(found),
            *scaling_tables.laws(found),
            *scaling_tables.stages(stages),
            *scaling_tables.memory(runs),
        ),
        warnings,
    )
    notes = (*(f"note: {line}" for line in warnings), *_draw(found, plot))
    return Outcome(report, to, notes=notes, exit_code=ExitCode.DAMAGED_INPUT if unread else ExitCode.OK)


def _read(paths: list[Path], warmup: int | None) -> tuple[list[ScalingRun], list[str]]:
    runs: list[ScalingRun] = []
    unread: list[str] = []
    folders = [folder for path in paths if path.is_dir() for folder in _profiled(path)]
    runs.extend(run for run in map(_profiled_run, folders) if run is not None)
    for path in find_logs(paths):
        if any(folder in path.parents for folder in folders):
            continue
        try:
            run = _logged_run(path, warmup)
        except SourceError as error:
            unread.append(str(error))
            continue
        if run is None:
            unread.append(f"{path}: nothing tells how many nodes and GPUs it ran on, or it is no log")
        else:
            runs.append(run)
    return runs, unread


def _profiled(path: Path) -> list[Path]:
    if is_run(path):
        return [path]
    return [folder for folder in sorted(path.iterdir()) if folder.is_dir() and is_run(folder)]


def _logged_run(path: Path, warmup: int | None) -> ScalingRun | None:
    log = read_log(path)
    summary = logs.analyze(log, Overrides(warmup=warmup))
    case = case_of(path, log, summary.setup.gpus)
    if case is None or summary.status == "unrecognised":
        return None
    precision = log.fact("precision")
    doubts = tuple(flag for flag in summary.flags if flag.startswith(("throughput-disagrees", "name-disagrees")))
    batch = summary.setup.samples
    layout = summary.setup.layout
    micro, replicas = layout.get("mbs"), layout.get("dp")
    if batch is None and micro is not None:
        batch = micro * (replicas or case.gpus) * (log.number("gas") or 1)
    return ScalingRun(
        path=str(path),
        case=case,
        model=model_of(path, log),
        batch=batch,
        precision=None if precision is None else str(precision.value),
        seq_len=log.number("seq_len"),
        zero_stage=log.number("zero_stage"),
        dp=replicas,
        mp=layout.get("tp"),
        samples_per_s=summary.samples_per_s,
        device=device_beside(path),
        out_of_memory=log.out_of_memory is not None,
        notes=doubts,
    )


def _profiled_run(path: Path) -> ScalingRun | None:
    run = read_run(path)
    world = max((rank.world_size for rank in run.ranks), default=0)
    hosts = len({rank.host for rank in run.ranks})
    case = case_of(path, None, world or None, hosts or None)
    if case is None:
        return None
    try:
        result = steps.analyze(run)
    except MissingInput:
        speed, batch = None, None
    else:
        speed = result.samples_per_s
        batch = round(speed * result.median_s) if speed is not None and result.median_s else None
    return ScalingRun(
        path=str(path),
        case=case,
        model=model_of(path, None),
        batch=batch,
        precision=None,
        seq_len=None,
        zero_stage=None,
        dp=None,
        mp=None,
        samples_per_s=speed,
        device=device_of_run(path),
        out_of_memory=False,
    )


def _draw(found: Scaling, plot: Path | None) -> tuple[str, ...]:
    if plot is None:
        return ()
    if not found.series:
        return (f"note: {plot} is not written, because no set-up was run on two numbers of GPUs",)
    replace_file(plot, to_chart("Throughput over GPUs", "GPUs", "samples/s", list(_curves(found))).encode())
    return (f"wrote {plot}",)


def _label(series: Series, found: Scaling) -> str:
    """The model, and whatever else tells the series from the others."""
    parts = {
        "model": series.setup.model,
        "precision": series.setup.precision or "",
        "sequence": f"sequence {series.setup.seq_len}" if series.setup.seq_len else "",
        "zero": f"ZeRO {series.setup.zero_stage}" if series.setup.zero_stage is not None else "",
        "kind": str(series.kind),
        "batch": f"batch {series.constant:g}" if series.constant is not None else "",
    }
    if series is found.series[0] and len(found.series) == 1:
        return parts["model"]
    others = [other for other in found.series if other is not series]
    differing = {
        "precision": any(other.setup.precision != series.setup.precision for other in others),
        "sequence": any(other.setup.seq_len != series.setup.seq_len for other in others),
        "zero": any(other.setup.zero_stage != series.setup.zero_stage for other in others),
        "kind": any(other.kind is not series.kind for other in others),
        "batch": any((other.setup, other.kind) == (series.setup, series.kind) for other in others),
    }
    return ", ".join(part for name, part in parts.items() if part and differing.get(name, True))


def _curves(found: Scaling) -> Iterator[Curve]:
    """Measured medians, the ideal line from the baseline, and every law up to the farthest prediction."""
    for place, series in enumerate(found.series):
        first, last = series.points[0], series.points[-1]
        label = _label(series, found)
        measured = tuple((float(point.case.gpus), point.median) for point in series.points)
        yield Curve(label, measured, marked=True, colour=place)
        far = float(max([last.case.gpus, *(one.gpus for fit in series.fits for one in fit.predictions)]))
        ideal = ((float(first.case.gpus), first.median), (far, first.median * far / first.case.gpus))
        yield Curve("ideal", ideal, dashed=True, colour=_GREY)
        reached = np.geomspace(first.case.gpus, far, _CURVE_POINTS)
        for shade, fit in enumerate(series.fits, 1):
            if fit.reason is None:
                points = zip(reached.tolist(), fit.at(reached).tolist(), strict=True)
                yield Curve(fit.law, tuple(points), dashed=True, colour=place + shade)
