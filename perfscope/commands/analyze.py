"""``perfscope analyze``: run every analyzer on a run's folder or on traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perfscope.aggregation.writing import RowFormat, write_rows
from perfscope.api.opening import open_each
from perfscope.commands.options.common import require_positive
from perfscope.commands.options.execution import PANEL, ExecutionOptions
from perfscope.commands.options.groups import expand_groups
from perfscope.commands.options.kernels import Kernels, read_kernels
from perfscope.commands.options.peaks import Dtype
from perfscope.commands.options.sections import (
    ScreenFormat,
    Sections,
    choose_sections,
    require_readable,
)  # fmt: skip
from perfscope.engine.analysis_report import to_report, to_reports
from perfscope.engine.registry import DEFAULT_DEPTH
from perfscope.engine.run import Plan
from perfscope.errors import ExitCode, UsageError
from perfscope.models.hardware import check_dense
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import shorten_warnings
from perfscope.sources.ceilings import read_ceiling
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.files import MOST_FILES
from perfscope.sources.traces.reading_choices import RANK_IN_FILE_NAME, RankRule
from perfscope.tables.stated import Stated

_TRACES, _PEAK = "Traces", "Peak"

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


class StatedPeak(NamedTuple):
    """The peak of MFU, where the run does not show it."""

    precision: Annotated[
        Dtype | None,
        typer.Option(
            "--precision",
            "--dtype",
            help="Data type of the matrix products, for the peak of MFU.",
            show_default="as traces and records show it",
            rich_help_panel=_PEAK,
        ),
    ] = None
    peak: Annotated[
        float | None,
        typer.Option(
            "--peak", help="Dense peak of one GPU in TFLOP/s.", show_default="of the run's GPU", rich_help_panel=_PEAK
        ),
    ] = None


_NOTHING_STATED = StatedPeak()


class ReadingOptions(NamedTuple):
    """What is read.

    Attributes:
        most_files: How many files at most.
        fresh: Whether traces are read even where partials stand beside them.
    """

    most_files: Annotated[
        int,
        typer.Option(
            "--max-files",
            help="Number of files to read at most; where a folder holds more, nothing is read.",
            rich_help_panel=PANEL,
        ),
    ] = MOST_FILES
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Read the traces, even where what was measured of them stands beside them.",
            rich_help_panel=PANEL,
        ),
    ] = False


_ALL_THAT_IS_THERE = ReadingOptions()


class TableOptions(NamedTuple):
    """What tables show.

    Attributes:
        rows: Folder for all rows of tables of ranks; they are not written where it is None.
        rows_format: The format of its files.
        operators: Whether kernels are broken down by operator, too.
        ceiling: File with what was measured on the machine; the datasheet's peaks where it is None.
        depth: Levels that tables of modules show; the default ones where it is None.
    """

    operators: Operators = False
    ceiling: Annotated[
        Path | None,
        typer.Option(
            help="File of `perfscope ceiling -o FILE`, with which operators are compared.",
            show_default="the peaks of the GPU's datasheet",
            rich_help_panel=_PEAK,
        ),
    ] = None
    depth: Annotated[
        int | None,
        typer.Option(
            help="Number of levels that tables of modules show.",
            show_default=str(DEFAULT_DEPTH),
            rich_help_panel=_TRACES,
        ),
    ] = None
    rows: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write all rows of the tables of ranks into this folder; above 512 ranks, tables show quantiles, "
            "groups and outliers.",
            show_default="none",
        ),
    ] = None
    rows_format: Annotated[RowFormat, typer.Option("--rows-format", help="Format of the files of --rows.")] = (
        RowFormat.CSV
    )


@expand_groups
def analyze(
    context: typer.Context,
    paths: Paths,
    tables: TableOptions,
    where: ExecutionOptions,
    format: ScreenFormat = None,
    section: Sections = None,
    only: Only = None,
    rank: Rank = None,
    kernels: Kernels = None,
    stated: StatedPeak = _NOTHING_STATED,
    reading: ReadingOptions = _ALL_THAT_IS_THERE,
) -> Outcome:
    """Break down the time of a training run, from its folder or from traces."""
    require_positive("--max-files", reading.most_files)
    if tables.depth is not None:
        require_positive("--depth", tables.depth)
    require_readable(section, format)
    is_quiet = bool(context.find_root().params.get("quiet"))
    plan = Plan(
        execution=where.execution(shows_progress=not is_quiet),
        only=frozenset(only.split(",")) if only else frozenset(),
        with_operators=tables.operators,
        depth=tables.depth,
        ceiling=None if tables.ceiling is None else read_ceiling(tables.ceiling),
        rank_rule=_rank_rule(rank),
        stated=_stated(stated),
        most_files=reading.most_files,
        is_fresh=reading.fresh,
        kernels=read_kernels(kernels),
    )
    # The workers of a cluster have a working folder of their own.
    locations = [path if where.dask is None or is_url(path) else str(Path(path).absolute()) for path in paths]
    runs = open_each(locations, plan)
    if tables.rows is not None and len(runs) > 1:
        raise UsageError(f"--rows takes one run, or the traces of one job; these are {len(runs)} runs")
    is_data = format is Format.JSON and tables.rows is None
    analyses = [run.analysis for run in runs]
    report = to_report(analyses[0], has_sections=not is_data) if len(runs) == 1 else to_reports(analyses)
    if tables.rows is not None:
        report = write_rows(report, tables.rows, tables.rows_format)
    return Outcome(
        choose_sections(report, section),
        format,
        in_full=bool(section or only),
        notes=(
            *(f"warning: {line}" for line in shorten_warnings(report.warnings)),
            *(f"note: {line}" for analysis in analyses for line in analysis.notes),
        ),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def _stated(stated: StatedPeak) -> Stated:
    if stated.peak is not None:
        check_dense(stated.peak, stated.precision or Dtype.BF16, None)
    return Stated(None if stated.precision is None else str(stated.precision), stated.peak)


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
