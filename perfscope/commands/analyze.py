"""``perfscope analyze``: run every analyzer on a run's folder or on traces."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.commands.options.peaks import Dtype
from perfscope.engine.execution import Backend, Execution, available_processors
from perfscope.engine.inputs import split_into_runs
from perfscope.engine.registry import Reads, StatesSlowdown, analyzers
from perfscope.engine.run import Analysis, Plan
from perfscope.engine.run import analyze as run_analyzers
from perfscope.errors import ExitCode, UsageError
from perfscope.models.hardware import check_dense
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report, Section
from perfscope.sources.traces.files import MOST_FILES, is_url
from perfscope.sources.traces.reader import RANK_IN_FILE_NAME, RankRule
from perfscope.tables.stated import Stated

_SLOWED_WITH_THE_HOST = ("breakdown", "host", "idle")  # whose shares change where the profiler slows the host
_TRACES, _EXECUTION, _PEAK = "Traces", "Execution", "Peak"

Paths = Annotated[
    list[str],
    typer.Argument(metavar="RUN_DIR... | TRACE...", help="Folders of runs, or traces: files, folders, patterns, URLs."),
]
Only = Annotated[
    str | None, typer.Option(help="Analyzers to run, separated by commas: breakdown,idle.", show_default="all")
]
Operators = Annotated[
    bool, typer.Option("--operators", help="Break kernels down by operator.", rich_help_panel=_TRACES)
]
Rank = Annotated[
    str | None,
    typer.Option(
        help="Rank of a trace that does not state it: a number, or a regex with one group, searched for in the path.",
        show_default="from the file name",
        rich_help_panel=_TRACES,
    ),
]
EngineOption = Annotated[
    Backend | None,
    typer.Option("--engine", help="Execution backend.", show_default="process", rich_help_panel=_EXECUTION),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Number of parallel workers.", show_default="number of processors", rich_help_panel=_EXECUTION),
]
Precision = Annotated[
    Dtype | None,
    typer.Option(
        "--precision",
        "--dtype",
        help="Data type of the matrix products, for the peak of MFU.",
        show_default="as traces and records show it",
        rich_help_panel=_PEAK,
    ),
]
PeakOption = Annotated[
    float | None,
    typer.Option(
        "--peak", help="Dense peak of one GPU in TFLOP/s.", show_default="of the run's GPU", rich_help_panel=_PEAK
    ),
]
MostFiles = Annotated[
    int,
    typer.Option(
        "--max-files",
        help="Number of files to read at most; where a folder holds more, nothing is read.",
        rich_help_panel=_EXECUTION,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Address of a Dask scheduler: tcp://HOST:8786.",
        show_default="none: a cluster on this machine",
        rich_help_panel=_EXECUTION,
    ),
]


def analyze(
    context: typer.Context,
    paths: Paths,
    format: FormatOption = Format.MARKDOWN,
    only: Only = None,
    operators: Operators = False,
    rank: Rank = None,
    engine: EngineOption = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    precision: Precision = None,
    peak: PeakOption = None,
    most_files: MostFiles = MOST_FILES,
) -> Outcome:
    """Break down the time of a training run, from its folder or from traces."""
    require_positive("--max-files", most_files)
    is_quiet = bool(context.find_root().params.get("quiet"))
    plan = Plan(
        execution=_execution(engine, workers, scheduler, shows_progress=not is_quiet),
        only=frozenset(only.split(",")) if only else frozenset(),
        with_operators=operators,
        rank_rule=_rank_rule(rank),
        stated=_stated(precision, peak),
        most_files=most_files,
    )
    # The workers of a running scheduler have a working folder of their own.
    locations = [path if scheduler is None or is_url(path) else str(Path(path).absolute()) for path in paths]
    analyses = [run_analyzers(group, plan) for group in split_into_runs(locations)]
    report = to_report(analyses[0]) if len(analyses) == 1 else to_reports(analyses)
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def _execution(
    backend: Backend | None, workers: int | None, scheduler: str | None, *, shows_progress: bool
) -> Execution:
    if workers is not None:
        require_positive("--workers", workers)
    if scheduler is not None and backend not in (None, Backend.DASK):
        raise UsageError(f"--scheduler needs --engine dask, not {backend}")
    return Execution(
        backend=Backend.DASK if scheduler is not None else backend or Backend.PROCESS,
        workers=workers or available_processors(),
        scheduler=scheduler,
        shows_progress=shows_progress,
    )


def _stated(precision: Dtype | None, peak: float | None) -> Stated:
    if peak is not None:
        check_dense(peak, precision or Dtype.BF16, None)
    return Stated(None if precision is None else str(precision), peak)


def _rank_rule(rank: str | None) -> RankRule:
    if rank is None:
        return RANK_IN_FILE_NAME
    if rank.isdigit():
        return int(rank)
    try:
        pattern = re.compile(rank)
    except re.error as error:
        raise UsageError(f"--rank {rank!r} is neither a number nor a regular expression: {error}") from None
    if pattern.groups != 1:
        raise UsageError(f"--rank {rank!r} needs one group, such as 'worker(\\d+)'")
    return pattern


def to_report(analysis: Analysis) -> Report:
    """Write an analysis as the neutral document."""
    data: dict[str, Json] = {
        "schema": "perfscope/analysis/1",
        "inputs": list(analysis.inputs),
        "skipped": [{"analyzer": skip.analyzer, "reason": skip.reason} for skip in analysis.skipped],
        "windows": analysis.windows.data(),
        "results": {name: _add_window(analysis, name, result.data()) for name, result in analysis.results.items()},
    }
    sections: list[Section] = []
    for name, result in analysis.results.items():
        first, *following = result.sections()
        notes = (*first.notes, *_window_notes(analysis, name), *_slowdown_notes(analysis, name))
        sections += [replace(first, notes=notes), *following]
    if analysis.skipped:
        sections.append(_skipped_section(analysis))
    title = "Where the time went"
    if analysis.run and analysis.run.command:
        title = f"{title}: {shlex.join(analysis.run.command)}"
    return Report(title, data, tuple(sections), analysis.damage)


def to_reports(analyses: Sequence[Analysis]) -> Report:
    """Write the analyses of several runs as one document, each apart: nothing is compared or added up."""
    reports = [to_report(analysis) for analysis in analyses]
    names = [_name_of(analysis) for analysis in analyses]
    sections = tuple(
        replace(section, title=f"{name}: {section.title}")
        for name, report in zip(names, reports, strict=True)
        for section in report.sections
    )
    data: dict[str, Json] = {"schema": "perfscope/analyses/1", "analyses": [report.data for report in reports]}
    warnings = tuple(f"{name}: {line}" for name, report in zip(names, reports, strict=True) for line in report.warnings)
    return Report(f"Where the time went: {len(reports)} runs, each apart", data, sections, warnings)


def _name_of(analysis: Analysis) -> str:
    return analysis.inputs[0] if analysis.run else "traces"


def _reads_traces(name: str) -> bool:
    return any(analyzer.name == name and analyzer.reads is not Reads.RUN for analyzer in analyzers())


def _add_window(analysis: Analysis, name: str, data: Json) -> Json:
    """A result's data, with the window that its times are of."""
    if not isinstance(data, dict) or not analysis.windows.times or not _reads_traces(name):
        return data
    return {**data, "window": analysis.windows.times}


def _window_notes(analysis: Analysis, name: str) -> tuple[str, ...]:
    """What window a result is of, where a run has two kinds; why windows are left out stands below device time."""
    if not _reads_traces(name):
        return ()
    reasons = analysis.windows.notes if name == "breakdown" else ()
    return (*analysis.windows.describe(), *reasons)


def _slowdown_notes(analysis: Analysis, name: str) -> tuple[str, ...]:
    """A note below shares that were measured in slowed steps."""
    cost = analysis.results.get("cost")
    if name not in _SLOWED_WITH_THE_HOST or not isinstance(cost, StatesSlowdown):
        return ()
    slowdown = cost.largest_distortion(analysis.windows.times)
    if slowdown is None:
        return ()
    return (f"Not representative: measured in profiled steps, up to {slowdown:.0%} slower than steady-state steps.",)


def _skipped_section(analysis: Analysis) -> Section:
    by_reason: dict[str, list[str]] = {}
    for skipped in analysis.skipped:
        by_reason.setdefault(skipped.reason, []).append(skipped.analyzer)
    notes = tuple(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    return Section("Not computed", notes=notes)
