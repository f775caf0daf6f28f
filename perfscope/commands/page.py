"""``perfscope page``: one HTML file that shows a run, traces, a comparison or a scaling study, without a network."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.comparison.comparison import compare_sides
from perfscope.analyzers.scaling.study import study_scaling
from perfscope.commands.options.common import FormatOption, require_positive
from perfscope.commands.options.kernels import Kernels, read_kernels
from perfscope.commands.scaling.runs import read_runs
from perfscope.constants import MB
from perfscope.engine.analysis_report import to_report as describe_analyzed
from perfscope.engine.execution import Execution, available_processors
from perfscope.engine.inputs import split_into_runs
from perfscope.engine.run import Analysis, Plan
from perfscope.engine.sides import is_saved, read_side
from perfscope.errors import ExitCode, SourceError, UsageError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.page import describe_analysis, describe_comparison, describe_scaling, read_for_page, render
from perfscope.page.part import Document
from perfscope.renderers import Format
from perfscope.report import Cell, Column, Json, Report, Section

SCHEMA = "perfscope/page/1"
_ENDINGS = (".html", ".htm")
_PAIR = 2


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a page shows, and the analysis behind it where it is of one run."""

    document: Document
    analysis: Analysis | None = None


def page(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_DIR | TRACE... | A B", help="A run, traces of a job, two runs to compare, or more."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="The file to write.")] = Path(
        "page.html"
    ),
    against: Annotated[
        str | None,
        typer.Option(
            metavar="SIDE",
            help="Compare with this run, trace, log or saved result: the page shows what the difference is made of.",
            show_default="none",
        ),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of parallel workers.", show_default="number of processors")
    ] = None,
    kernels: Kernels = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Write one page with charts and a timeline of all ranks, which needs no network.

    Findings come first, then step times, device time, the timeline, communication, GPUs, the pipeline, the critical
    path, memory and checkpoints. Two runs are compared; three or more are a scaling study.
    """
    if output.suffix.lower() not in _ENDINGS:
        raise UsageError(f"{output} does not end in .html", hint="-o page.html")
    if not output.resolve().parent.is_dir():
        raise SourceError(output.parent, "is no folder", hint="create it, or name another file with -o")
    count = require_positive("--workers", workers) if workers is not None else available_processors()
    subject = _describe(paths, against, Plan(execution=Execution(count), kernels=read_kernels(kernels)))
    content = render(subject.document).encode()
    replace_file(output, content)
    if opens:
        webbrowser.open(output.resolve().as_uri())
    report = to_report(subject, output, len(content))
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def _describe(paths: Sequence[str], against: str | None, plan: Plan) -> _Subject:
    if against is not None:
        if len(paths) != 1:
            raise UsageError("--against compares two sides", hint="perfscope page A --against B")
        return _compare(against, paths[0], plan)
    saved = [path for path in paths if Path(path).is_file() and is_saved(Path(path))]
    if len(saved) == len(paths) == _PAIR:
        return _compare(saved[0], saved[1], plan)
    if saved:
        problem = f"{saved[0]} is a saved result, which has no timeline and no charts of its own"
        raise UsageError(problem, hint="name the run, or two sides: perfscope page A B, perfscope page A --against B")
    groups = split_into_runs(paths)
    if len(groups) == 1:
        analysis = read_for_page(groups[0], plan)
        return _Subject(describe_analysis(analysis), analysis)
    if len(groups) == _PAIR:
        first, second = (group[0] for group in groups)
        return _compare(first, second, plan)
    runs, problems = read_runs([Path(group[0]) for group in groups], None)
    return _Subject(describe_scaling(study_scaling(runs, ()), tuple(problems)))


def _compare(first: str, second: str, plan: Plan) -> _Subject:
    sides = Plan(kernels=plan.kernels)
    return _Subject(describe_comparison(compare_sides(read_side(first, sides), read_side(second, sides))))


def _to_data(report: Report) -> dict[str, Json]:
    """What `perfscope analyze --format json` prints."""
    return {**report.data, "warnings": list(report.warnings)}


def to_report(subject: _Subject, path: Path, size: int) -> Report:
    """What was written, what the page has nothing to show of, and the analysis behind it."""
    document, analysis = subject.document, subject.analysis
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "path": str(path),
        "bytes": size,
        "parts": [{"part": part.identity, "absent": part.absent or None} for part in document.parts],
        "analysis": None if analysis is None else _to_data(describe_analyzed(analysis)),
    }
    rows: list[tuple[Cell, ...]] = [(part.title, part.absent or "shown") for part in document.parts]
    note = f"{path}: {size / MB:.2f} MB, one file, no network. Open it in a browser."
    section = Section("Parts of the page", (Column("Part"), Column("Shown")), tuple(rows), (note,))
    return Report(f"A page of {document.title}", data, (section,), document.damage)
