"""``perfscope report runs``: the statistics of configurations that were run several times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.analyzers.published.repeated_runs import summarize_runs
from perfscope.commands.options.common import FormatOption
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Json, Report
from perfscope.sources.published.tables import read_runs


def runs(
    file: Annotated[
        Path, typer.Argument(metavar="RUNS.csv", help="CSV file with one row per run: GPUs (or 4n8g) and samples/s.")
    ],
    published: Annotated[
        Path | None, typer.Option(help="A CSV file with the published GPUs, mean, median and speed-up.")
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print the mean, median and speed-up of configurations that were run several times."""
    result = summarize_runs(read_runs(file), read_runs(published) if published else None)
    data: dict[str, Json] = {"schema": "perfscope/runs/1", "results": {"runs": result.data()}}
    return Outcome(Report(f"Repeated runs of {file}", data, result.sections()), format)
