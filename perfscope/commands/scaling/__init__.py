"""``perfscope scaling``: throughput, speed-up and efficiency over nodes and GPUs, from folders of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.scaling import dlperf
from perfscope.analyzers.scaling.study import Scaling, study_scaling
from perfscope.charts.svg import draw_file
from perfscope.commands.options import FormatOption, require_svg
from perfscope.commands.scaling.runs import list_protocol_runs, read_runs
from perfscope.errors import ExitCode, MissingInput, PerfscopeError, UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.result import to_object
from perfscope.sources.scaling.dlperf import Protocol, read_protocol
from perfscope.tables.scaling import ProtocolRun


def write_plot(study: Scaling, path: Path | None) -> tuple[str, ...]:
    """Draw a study to an SVG file; returns the notes of the command."""
    if path is None:
        return ()
    if not study.series:
        return (f"note: {path} is not written, because no set-up was run on two different numbers of GPUs",)
    replace_file(path, draw_file([study.chart()]).encode())
    return (f"wrote {path}",)


_RULES: dict[Protocol, Callable[[Sequence[ProtocolRun]], dlperf.ProtocolResult]] = {
    Protocol.MXNET_BERT: dlperf.mxnet_bert,
    Protocol.DEEPSPEED: dlperf.deepspeed,
}
#: Problems that are listed where no run can be read.
_MOST_PROBLEMS = 3


def scaling(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Folders of runs: logs, or runs of perfscope profile.")
    ],
    protocol: Annotated[
        Protocol | None, typer.Option(help="Apply the rules of a published benchmark.", show_default="none")
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(help="Iterations to exclude at the start of each log.", show_default="the first record"),
    ] = None,
    predict: Annotated[
        str | None,
        typer.Option(help="Numbers of GPUs to predict: 64,128.", show_default="twice the largest number"),
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the series.")] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Report how throughput scales with GPUs, and fit scaling laws."""
    if warmup is not None and warmup < 0:
        raise UsageError(f"--warmup must be at least 0, not {warmup}")
    if svg is not None:
        require_svg(svg)
    predicted_gpus = _parse_counts(predict)
    if protocol is None:
        return _report_study(paths, warmup, predicted_gpus, svg, format)
    if warmup is not None:
        raise UsageError("a protocol has its own warm-up", hint="omit --warmup")
    return _report_protocol(paths, protocol, predicted_gpus, svg, format)


def _parse_counts(text: str | None) -> tuple[int, ...]:
    words = [] if text is None else text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"{text!r} is not a list of numbers of GPUs", hint="write --predict 64,128")
    return tuple(int(word) for word in words)


def _report_protocol(
    paths: list[Path], protocol: Protocol, predicted_gpus: tuple[int, ...], plot: Path | None, output_format: Format
) -> Outcome:
    runs, notes = read_protocol(paths, protocol)
    try:
        result = _RULES[protocol](runs)
    except MissingInput as error:
        raise PerfscopeError(str(error)) from None
    study = study_scaling(
        list(list_protocol_runs(result)), predicted_gpus, problems=notes, protocol=str(protocol), published=result
    )
    report = Report(f"Scaling by {protocol}", to_object(study), study.sections(), study.notes)
    return Outcome(report, output_format, notes=(*(f"note: {line}" for line in study.notes), *write_plot(study, plot)))


def _report_study(
    paths: list[Path], warmup: int | None, predicted_gpus: tuple[int, ...], plot: Path | None, output_format: Format
) -> Outcome:
    runs, problems = read_runs(paths, warmup)
    if not runs:
        raise PerfscopeError(
            "; ".join(problems[:_MOST_PROBLEMS]) or "there is no run in " + ", ".join(map(str, paths)),
            hint="name folders of logs; nodes and GPUs come from names such as 2n8g/, or from the logs",
        )
    study = study_scaling(runs, predicted_gpus, problems=problems)
    notes = (*(f"note: {line}" for line in study.notes), *write_plot(study, plot))
    exit_code = ExitCode.DAMAGED_INPUT if problems else ExitCode.OK
    report = Report("Scaling", to_object(study), study.sections(), study.notes)
    return Outcome(report, output_format, notes=notes, exit_code=exit_code)
