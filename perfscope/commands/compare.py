"""``perfscope compare``: is a training slower or faster than another one, by how much, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.compare.comparison import Comparison, parse_limit
from perfscope.analyzers.compare.report import describe_verdict, shorten
from perfscope.analyzers.compare.side import to_baseline
from perfscope.api.comparing import compare_sides, to_report
from perfscope.commands.options import ScreenFormat, Sections, choose_sections, or_newest, require_readable
from perfscope.engine.run import Plan
from perfscope.engine.sides import read_side
from perfscope.errors import ExitCode, UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome


def compare(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="A B...",
            help="Runs, traces, logs or saved results. Several runs of one side: a folder of runs, or A1,A2,A3.",
            show_default="the two newest runs of runs/",
        ),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with status 3 where a change is beyond a limit, with its whole interval: 'loop_time>+3%', "
            "step_time, 'tflops<-3%', 'memory>+5%', throughput, energy. May be repeated.",
            show_default="none",
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare another model, batch or GPU count, too: per token.")
    ] = False,
    between_runs: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="Standard deviation of the median step between runs of the same code, in percent, for sides of one "
            "run.",
            show_default="0.4",
        ),
    ] = None,
    operators: Annotated[bool, typer.Option("--operators", help="Break compute down by operator, too.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the last one as a baseline, which is compared like a run."),
    ] = None,
    format: ScreenFormat = None,
    section: Sections = None,
) -> Outcome:
    """Say whether B is slower or faster than A, by how much, and what the change is made of."""
    require_readable(section, format)
    for text in fail_on or ():
        parse_limit(text)  # said before anything is read
    sides, newest = or_newest(sides, 2)
    if len(sides) == 1 and save is None:
        raise UsageError("nothing to compare it with: name at least two", hint="perfscope compare A B")
    plan = Plan(with_operators=operators)
    first, *others = (read_side(location, plan) for location in sides)
    if save is not None:
        replace_file(save, (json.dumps(to_baseline(others[-1] if others else first), indent=1) + "\n").encode())
    if not others:
        return Outcome(text=f"saved {save}\n", notes=tuple(f"warning: {line}" for line in first.damage))
    between = None if between_runs is None else between_runs / 100
    compared = compare_sides([first, *others], anyway=anyway, limits=fail_on or (), between_runs=between)
    report = to_report(compared)
    comparisons = [runs.comparison for runs in compared]
    return Outcome(
        choose_sections(report, section),
        format,
        in_full=bool(section),
        notes=(*newest, *_notes(comparisons)),
        exit_code=_exit_code(comparisons),
    )


def _exit_code(comparisons: Sequence[Comparison]) -> ExitCode:
    """A limit that is exceeded counts most, then a comparison that is refused, then damage."""
    if any(verdict.exceeded for comparison in comparisons for verdict in comparison.limits):
        return ExitCode.DIFFERENCE
    if any(comparison.is_refused for comparison in comparisons):
        return ExitCode.FAILED
    return ExitCode.DAMAGED_INPUT if any(comparison.damage for comparison in comparisons) else ExitCode.OK


def _notes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Lines for standard error: what was damaged or refused, and every limit that was exceeded or not checked."""
    for comparison in comparisons:
        yield from (f"warning: {line}" for line in comparison.damage)
        if comparison.is_refused:
            yield f"{describe_verdict(comparison)} (--anyway compares them per token)"
        name = shorten(comparison.b.name)
        for verdict in comparison.limits:
            if verdict.exceeded is not False:
                yield f"{name}: {verdict.limit}: {verdict.reason}"
