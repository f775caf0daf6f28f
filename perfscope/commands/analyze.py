"""``perfscope analyze``: run every analyzer on a run's folder or on traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perfscope.aggregation.tables import write_rows
from perfscope.api.opened_run import open_each
from perfscope.commands.model import Dtype
from perfscope.commands.options import (
    ScreenFormat,
    Sections,
    choose_sections,
    expand_groups,
    or_newest,
    outcome_of,
    require_positive,
    require_readable,
)
from perfscope.engine.analysis_report import to_report, to_reports
from perfscope.engine.execution import Execution, available_processors
from perfscope.engine.places import FilePlaces, at_hand
from perfscope.engine.run import Analysis, Plan
from perfscope.errors import SourceError, UsageError
from perfscope.models.hardware import check_dense
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import DEFAULT_DEPTH, shorten_warnings
from perfscope.sources.ceilings import read_ceiling
from perfscope.sources.runs.folder import is_folder_at
from perfscope.sources.stores.location import is_url
from perfscope.sources.traces.files import RANK_IN_FILE_NAME, RankRule
from perfscope.tables.stated import Stated

_of_traces, _of_peak, _of_tables, _of_execution = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Traces", "Peak", "Tables", "Execution")
)
_JOB, _MEMORY = frozenset({"goodput"}), frozenset({"memory"})
#: Short names of views, next to the names of analyzers.
_VIEWS = {"bubble": ("pipeline_bubble", "pipeline_steps")}


class StatedPeaks(NamedTuple):
    """The peaks of MFU and roofline, where the run does not show them."""

    dtype: Annotated[
        Dtype | None,
        _of_peak(
            "--dtype",
            "--precision",
            help="Data type of the matrix products, for the peak of MFU.",
            show_default="as traces and records show it",
        ),
    ] = None
    peak: Annotated[
        float | None, _of_peak(help="Dense peak of one GPU in TFLOP/s.", show_default="of the run's GPU")
    ] = None
    ceiling: Annotated[
        Path | None,
        _of_peak(
            help="File of `perfscope doctor --ceiling -o FILE`, with which operators are compared.",
            show_default="the peaks of the GPU's datasheet",
        ),
    ] = None


class TableOptions(NamedTuple):
    """How much tables show."""

    operators: Annotated[bool, _of_tables("--operators", help="Break kernels down by operator.")] = False
    depth: Annotated[
        int | None, _of_tables(help="Number of levels that tables of modules show.", show_default=str(DEFAULT_DEPTH))
    ] = None
    rows: Annotated[
        Path | None,
        _of_tables(
            metavar="FOLDER",
            help="Write all rows of the tables of ranks into this folder; above 512 ranks, tables show quantiles, "
            "groups and outliers.",
            show_default="none",
        ),
    ] = None


class ExecutionOptions(NamedTuple):
    """Where traces are read."""

    workers: Annotated[
        int | None, _of_execution(help="Number of processes that read traces.", show_default="number of processors")
    ] = None
    dask: Annotated[
        str | None, _of_execution(help="Address of a Dask cluster that reads traces instead: tcp://HOST:8786.")
    ] = None


@expand_groups
def analyze(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_DIR... | TRACE...",
            help="Folders of runs, or traces: files, folders, patterns, URLs. For `--only goodput` all runs or logs of "
            "one job, for `--only memory` snapshots, too.",
            show_default="the newest run of runs/",
        ),
    ] = None,
    *,
    where: ExecutionOptions,
    only: Annotated[
        str | None,
        typer.Option(help="Analyzers to run, such as breakdown,idle, goodput or memory.", show_default="all"),
    ] = None,
    section: Sections = None,
    tables: TableOptions,
    rank: Annotated[
        str | None,
        _of_traces(
            help="Rank of a trace that does not state it: a number, or a regex with one group, searched for in the "
            "path.",
            show_default="from the file name",
        ),
    ] = None,
    stated: StatedPeaks,
    format: ScreenFormat = None,
) -> Outcome:
    """Break down the time of a training run, from its folder or from traces.

    `--only` shows a part: `late_ranks` which rank is late and why, `goodput` a job over its restarts, `memory` what
    filled the memory, `bubble` the idle time of a pipeline.
    """
    require_positive("--depth", tables.depth)
    require_positive("--workers", where.workers)
    if where.workers is not None and where.dask is not None:
        raise UsageError("--workers are processes of this machine; the cluster of --dask has its own")
    shows_progress = not context.find_root().params.get("quiet")
    if stated.peak is not None:
        check_dense(stated.peak, stated.dtype or Dtype.BF16, None)
    require_readable(section, format)
    plan = Plan(
        execution=Execution(where.workers or available_processors(), where.dask, shows_progress),
        only=_parse_names(only),
        with_operators=tables.operators,
        depth=tables.depth,
        ceiling=None if stated.ceiling is None else read_ceiling(stated.ceiling),
        rank_rule=_rank_rule(rank),
        stated=Stated(None if stated.dtype is None else str(stated.dtype), stated.peak),
    )
    chosen, notes = or_newest(paths)
    # The workers of a cluster have a working folder of their own.
    locations = [path if where.dask is None or is_url(path) else str(Path(path).absolute()) for path in chosen]
    with _analyze(locations, plan) as (analyses, places):
        if tables.rows is not None and len(analyses) > 1:
            raise UsageError(f"--rows takes one run, or the traces of one job; these are {len(analyses)} runs")
        has_sections = format is not Format.JSON or tables.rows is not None
        one = to_report(analyses[0], has_sections=has_sections) if len(analyses) == 1 else None
        report = places.report(one or to_reports(analyses))
    if tables.rows is not None:
        report = write_rows(report, tables.rows)
    return outcome_of(
        choose_sections(report, section),
        format,
        in_full=bool(section or only),
        warnings=shorten_warnings(report.warnings),
        notes=(*notes, *(f"note: {line}" for analysis in analyses for line in analysis.notes)),
    )


@contextmanager
def _analyze(locations: Sequence[str], plan: Plan) -> Iterator[tuple[list[Analysis], FilePlaces]]:
    """The analysis of each run, and where files that are no run's lie now."""
    if plan.only == _JOB:
        from perfscope.commands.goodput import account_for  # it reads logs, whose formats no other view needs

        with account_for(locations) as (goodput, damage, places):
            yield [Analysis(locations, {"goodput": goodput}, (), damage, None)], places
    elif plan.only == _MEMORY and not any(map(is_folder_at, locations)):
        from perfscope.analyzers.memory import describe_memory  # these read snapshots, which no other view needs
        from perfscope.sources.memory import read_histories

        with at_hand(locations) as places:
            use = describe_memory([history for path in places.paths for history in read_histories(path)])
            yield [Analysis(locations, {"memory": use}, (), use.damage, None)], places
    else:
        analyses = [run.analysis for run in open_each(locations, plan)]
        for analysis in analyses:
            if not analysis.results and len(plan.only) == 1 == len(analysis.skipped):
                raise SourceError(
                    analysis.inputs[0], f"has no {analysis.skipped[0].analyzer}: {analysis.skipped[0].reason}"
                )
        yield analyses, FilePlaces()


def _parse_names(only: str | None) -> frozenset[str]:
    names = [] if only is None else only.split(",")
    return frozenset(analyzer for name in names for analyzer in _VIEWS.get(name, (name,)))


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
