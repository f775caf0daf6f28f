"""``perfscope analyze``: everything that a run or its traces can tell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from perfscope.analyzers.cost import Cost
from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.engine.measuring import Measured
from perfscope.engine.run import Analysis, Plan
from perfscope.engine.run import analyze as run_analyzers
from perfscope.engine.workers import Engine, available_workers, in_processes, in_this_process, on_dask
from perfscope.errors import ExitCode, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report, Section
from perfscope.sources.traces.files import is_url

_SHARES = ("breakdown", "host", "idle")  # what a profiler that slows the host changes


def analyze(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(metavar="RUN_DIR | TRACE...", help="A run's folder, or traces: files, folders, URLs.")
    ],
    format: FormatOption = Format.MARKDOWN,
    only: Annotated[str | None, typer.Option(help="Analyzers to run, such as breakdown,idle.  [default: all]")] = None,
    operators: Annotated[bool, typer.Option("--operators", help="Tell kernels by operator, too.")] = False,
    rank: Annotated[
        str | None, typer.Option(help="Rank of a trace that does not tell it: a number, or a regex with one group.")
    ] = None,
    engine: Annotated[Engine | None, typer.Option(help="Who reads the traces.  [default: process]")] = None,
    workers: Annotated[int | None, typer.Option(help="How many read at once.  [default: processors]")] = None,
    scheduler: Annotated[str | None, typer.Option(help="A Dask scheduler, such as tcp://HOST:8786.")] = None,
) -> Outcome:
    """Say where the time of a run went, from its folder or from traces."""
    plan = Plan(
        map_traces=_engine(engine, workers, scheduler, quiet=bool(context.find_root().params.get("quiet"))),
        only=frozenset(only.split(",")) if only else frozenset(),
        with_operators=operators,
        ranks=_rank_names(rank),
    )
    # Workers that run already have a working folder of their own.
    locations = [path if scheduler is None or is_url(path) else os.path.abspath(path) for path in paths]  # noqa: PTH100 - a pattern is no path
    analysis = run_analyzers(locations, plan)
    report = to_report(analysis)
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in analysis.damage),
        exit_code=ExitCode.DAMAGED_INPUT if analysis.damage else ExitCode.OK,
    )


def _engine(
    engine: Engine | None, workers: int | None, scheduler: str | None, *, quiet: bool
) -> Callable[[Callable[[str], Measured], Sequence[str]], Iterator[Measured]]:
    if workers is not None:
        require_positive("--workers", workers)
    if scheduler is not None and engine not in (None, Engine.DASK):
        raise UsageError(f"--scheduler needs --engine dask, not {engine}")
    chosen = Engine.DASK if scheduler is not None else engine or Engine.PROCESS
    return partial(_map_traces, chosen, workers or available_workers(), scheduler, quiet)


def _map_traces(
    engine: Engine,
    workers: int,
    scheduler: str | None,
    quiet: bool,
    measure: Callable[[str], Measured],
    paths: Sequence[str],
) -> Iterator[Measured]:
    if engine is Engine.DASK:
        answers = on_dask(measure, paths, workers, scheduler)
    elif engine is Engine.SERIAL or min(workers, len(paths)) == 1:
        answers = in_this_process(measure, paths)
    else:
        answers = in_processes(measure, paths, workers)
    if quiet:
        return answers
    from perfscope.engine.progress import shown

    return shown(answers, len(paths))


def _rank_names(rank: str | None) -> int | re.Pattern[str] | None:
    if rank is None or rank.isdigit():
        return None if rank is None else int(rank)
    try:
        pattern = re.compile(rank)
    except re.error as error:
        raise UsageError(f"--rank {rank!r} is neither a number nor a regular expression: {error}") from None
    if pattern.groups != 1:
        raise UsageError(f"--rank {rank!r} needs one group, such as 'worker(\\d+)'")
    return pattern


def _slowed(analysis: Analysis, name: str) -> tuple[str, ...]:
    """The label of shares that are those of slowed steps."""
    cost = analysis.results.get("cost")
    if name not in _SHARES or not isinstance(cost, Cost):
        return ()
    slower = [window.slower for window in cost.windows if window.is_distorted and window.slower is not None]
    return (f"Of steps that the profiler made up to {max(slower):.0%} slower.",) if slower else ()


def to_report(analysis: Analysis) -> Report:
    """Write an analysis as the neutral document."""
    data: dict[str, Json] = {
        "schema": "perfscope/analysis/1",
        "inputs": list(analysis.inputs),
        "skipped": [{"analyzer": skip.analyzer, "reason": skip.reason} for skip in analysis.skipped],
        "results": {name: result.data() for name, result in analysis.results.items()},
    }
    sections: list[Section] = []
    for name, result in analysis.results.items():
        first, *more = result.sections()
        sections += [replace(first, notes=(*first.notes, *_slowed(analysis, name))), *more]
    if analysis.skipped:
        by_reason: dict[str, list[str]] = {}
        for skip in analysis.skipped:
            by_reason.setdefault(skip.reason, []).append(skip.analyzer)
        notes = tuple(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
        sections.append(Section("Not computed", notes=notes))
    title = "Where the time went"
    if analysis.run and analysis.run.command:
        title = f"{title}: {' '.join(analysis.run.command)}"
    return Report(title, data, tuple(sections), analysis.damage)
