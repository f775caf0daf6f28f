"""``perfscope checkpoint``: what a checkpoint's files hold, and whether they are as large as they should be."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.checkpoints.plan import (
    BytesPerParameter,
    Optimizer,
    Plan,
    Precision,
    Statement,
    bytes_per_parameter,
)
from perfscope.analyzers.checkpoints.plan import analyze as plan_checkpoint
from perfscope.analyzers.saves import summarize_saves
from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.constants import GB, TB
from perfscope.errors import ExitCode, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report
from perfscope.sources.joblog.saves import read_log_saves
from perfscope.sources.runs.run import is_run
from perfscope.sources.runs.saves import read_run_saves
from perfscope.tables.saves import Saves, SaveTiming
from perfscope.units import format_bytes, format_count, format_parameters, parse_duration_ns, parse_parameters

_PUBLISHED = re.compile(
    r"(?P<of>weights|optimizer|total)(?P<file>-file)?=(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[MGTP])B"
)
_UNITS = {"M": 10**6, "G": GB, "T": TB, "P": 10**15}
_ZERO_STAGES = range(4)


def checkpoint(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A checkpoint, the folder of several, a CSV of path,bytes, or a run."),
    ] = None,
    size: Annotated[str | None, typer.Option(help="Parameters of the model: 181B. Without DIR, plans a size.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs that each write a file; with --size.")] = None,
    optimizer: Annotated[Optimizer | None, typer.Option(help="The optimizer.  [default: adam]")] = None,
    precision: Annotated[Precision | None, typer.Option(help="What is trained in.  [default: mixed]")] = None,
    zero: Annotated[int | None, typer.Option(help="ZeRO stage; 3 saves no 2-byte weights.  [default: 1]")] = None,
    published: Annotated[
        list[str] | None,
        typer.Option(help="A published size to compare the plan with: weights=0.34TB, optimizer-file=8.0GB."),
    ] = None,
    save_time: Annotated[str | None, typer.Option(help="How long the save took: 19.5, 19495ms. Gives GB/s.")] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="A run whose hooks timed the saves. Gives GB/s.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="A training log that tells how long saves took. Gives GB/s.")] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Say what each file of a checkpoint holds and whether its size is right; nothing is ever unpickled."""
    parameters = parse_parameters(size) if size is not None else None
    each = _each(optimizer, precision, zero)
    saves = _saves(save_time, run, log)
    if directory is None:
        if parameters is None:
            raise UsageError(
                "there is nothing to look at", hint="name a checkpoint, or plan one with --size and --gpus"
            )
        files = require_positive("--gpus", 1 if gpus is None else gpus)
        plan = plan_checkpoint(parameters, files, each or bytes_per_parameter(), _statements(published))
        report = _plan_report(plan, saves)
        return Outcome(report, format, notes=tuple(f"warning: {line}" for line in report.warnings))
    if gpus is not None or published:
        raise UsageError("--gpus and --published plan a checkpoint", hint="leave them out, or leave out the folder")
    if is_run(directory):
        if saves is not None:
            raise UsageError(f"{directory} is a run and tells how long its saves took", hint="leave the other one out")
        return _saves_of_run(directory, parameters, each, format)
    return _measure(directory, parameters, each, saves, format)


def _each(optimizer: Optimizer | None, precision: Precision | None, zero: int | None) -> BytesPerParameter | None:
    if zero is not None and zero not in _ZERO_STAGES:
        raise UsageError(f"--zero is 0, 1, 2 or 3, not {zero}")
    if optimizer is None and precision is None and zero is None:
        return None
    return bytes_per_parameter(optimizer or Optimizer.ADAM, precision or Precision.MIXED, 1 if zero is None else zero)


def _statements(published: list[str] | None) -> list[Statement] | None:
    if not published:
        return None
    statements = []
    for text in published:
        match = _PUBLISHED.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is no published size", hint="write weights=0.34TB or optimizer-file=8.0GB")
        number = match["number"]
        statements.append(
            Statement(
                of=match["of"] + (" per file" if match["file"] else ""),
                text=f"{number}{match['unit']}B",
                number=Fraction(number),
                decimals=len(number.partition(".")[2]),
                decimal_unit=_UNITS[match["unit"]],
                source="--published",
            )
        )
    return statements


def _saves(save_time: str | None, run: Path | None, log: Path | None) -> Saves | None:
    """The saves that were timed, by whatever told it."""
    given = [name for name, value in (("--save-time", save_time), ("--run", run), ("--log", log)) if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} both say how long the save took", hint="leave one of them out")
    if save_time is not None:
        saved_ns = parse_duration_ns(save_time)
        timing = SaveTiming(0, None, None, saved_ns, None, None, asynchronous=None, source="--save-time")
        return Saves((timing,), None)
    if run is not None or log is not None:
        return read_run_saves(run) if run is not None else read_log_saves(log or Path())
    return None


def _plan_report(plan: Plan, saves: Saves | None) -> Report:
    size = plan.sizes()["total"]
    title = f"A checkpoint of {format_parameters(plan.parameters)} parameters: {format_bytes(size)}"
    warnings = (plan.verdict(),) if plan.readings and plan.single_unit() is None else ()
    results: dict[str, Json] = {"plan": plan.data()}
    sections = plan.sections()
    if saves is not None:
        timed = summarize_saves(saves, size)
        results["saves"] = timed.data()
        sections = (*sections, *timed.sections())
    data: dict[str, Json] = {"schema": "perfscope/checkpoint/1", "results": results}
    return Report(title, data, sections, warnings)


def _saves_of_run(run: Path, parameters: int | None, each: BytesPerParameter | None, to: Format) -> Outcome:
    """The saves that hooks timed; a given size stands in where no writer told its bytes."""
    planned = None if parameters is None else parameters * (each or bytes_per_parameter()).total
    timed = summarize_saves(read_run_saves(run), planned)
    data: dict[str, Json] = {"schema": "perfscope/checkpoint/1", "results": {"saves": timed.data()}}
    title = f"{run}: {format_count(len(timed.saves), 'checkpoint save')}"
    return Outcome(Report(title, data, timed.sections()), to)


def _measure(
    directory: Path, parameters: int | None, each: BytesPerParameter | None, saves: Saves | None, to: Format
) -> Outcome:
    from perfscope.analyzers.checkpoints.check import analyze
    from perfscope.sources.checkpoints.checkpoint import read_checkpoint

    sizes = analyze(read_checkpoint(directory), parameters, each)
    found = sizes.checkpoint
    name = f"{found.path} ({found.tag})" if found.tag else found.path
    title = f"{name}: {found.layout}, {format_count(len(found.files), 'file')}, {format_bytes(found.size_bytes)}"
    results: dict[str, Json] = {"checkpoint": sizes.data()}
    sections = sizes.sections()
    if saves is not None:
        timed = summarize_saves(saves, found.size_bytes)
        results["saves"] = timed.data()
        sections = (sections[0], *timed.sections(), *sections[1:])
    data: dict[str, Json] = {"schema": "perfscope/checkpoint/1", "results": results}
    warnings = tuple(finding.text for finding in sizes.findings if finding.kind != "weights_only")
    return Outcome(
        Report(title, data, sections),
        to,
        notes=tuple(f"warning: {line}" for line in warnings),
        exit_code=ExitCode.DAMAGED_INPUT if found.damage else ExitCode.OK,
    )
