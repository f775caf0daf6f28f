"""``perfscope analyze``: everything that a run or its traces can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options import FormatOption
from perfscope.engine import Analysis
from perfscope.engine import analyze as run_analyzers
from perfscope.outcome import Outcome
from perfscope.renderers import Format, render
from perfscope.report import Json, Report, Section

DAMAGED_INPUT = 4


def analyze(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN_DIR | TRACE...", help="A run's folder, or traces.")],
    format: FormatOption = Format.MARKDOWN,  # noqa: A002 - the option's name
) -> Outcome:
    """Say where the time of a run went, from its folder or from traces."""
    analysis = run_analyzers(paths)
    report = to_report(analysis)
    return Outcome(
        render(report, format),
        notes=tuple(f"warning: {line}" for line in analysis.damage),
        exit_code=DAMAGED_INPUT if analysis.damage else 0,
    )


def to_report(analysis: Analysis) -> Report:
    """Write an analysis as the neutral document."""
    data: dict[str, Json] = {
        "schema": "perfscope/analysis/1",
        "inputs": list(analysis.inputs),
        "skipped": [{"analyzer": skip.analyzer, "reason": skip.reason} for skip in analysis.skipped],
        "results": {name: result.data() for name, result in analysis.results.items()},
    }
    sections: list[Section] = [section for result in analysis.results.values() for section in result.sections()]
    if analysis.skipped:
        sections.append(
            Section("Not computed", notes=tuple(f"{skip.analyzer}: {skip.reason}" for skip in analysis.skipped))
        )
    title = "Where the time went"
    if analysis.run and analysis.run.command:
        title = f"{title}: {' '.join(analysis.run.command)}"
    return Report(title, data, tuple(sections), analysis.damage)
