"""``perfscope stragglers``: which rank is late in a run, in which steps, what that costs and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.stragglers.records import analyze
from perfscope.commands.options.common import FormatOption
from perfscope.errors import ExitCode, MissingInput, SourceError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.sources.runs.run import read_run

SCHEMA = "perfscope/stragglers/1"


def stragglers(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run's folder.")],
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Say which rank is late, in which steps, what that costs, and why.

    Every step of the run is compared on all ranks, from what the hooks record always: no profiler window is needed.
    """
    recorded = read_run(run)
    try:
        late = analyze(recorded)
    except MissingInput as error:
        raise SourceError(run, f"says nothing of late ranks: {error}") from None
    data = late.data()
    assert isinstance(data, dict)
    report = Report(late.headline(), {"schema": SCHEMA, **data}, late.sections(), recorded.damage)
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )
