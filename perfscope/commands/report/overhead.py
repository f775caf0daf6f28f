"""``perfscope report overhead``: the cost of perfscope itself, as its benchmark measured it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Section
from perfscope.sources.runs.overhead import read_overhead

_COLUMNS = (
    Column("Measurement"),
    Column("With perfscope", 2),
    Column("Baseline", 2),
    Column("Difference"),
    Column("Limit"),
    Column("Within limit"),
)
_BASELINE = "Baseline: the job without perfscope; for windows, a bare torch.profiler with the same options."


def overhead(
    path: Annotated[
        Path, typer.Argument(metavar="FILE.json", help="JSON file written by `python -m benchmarks.overhead --json`.")
    ],
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print the overhead of perfscope that its benchmark measured, beside the limits."""
    machine, lines = read_overhead(path)
    rows = tuple(
        (
            line.measurement,
            line.perfscope,
            line.baseline,
            line.difference or None,
            line.limit or None,
            line.within_limit or None,
        )
        for line in lines
    )
    data: dict[str, Json] = {
        "schema": "perfscope/overhead/1",
        "results": {"machine": machine, "lines": [line.data() for line in lines]},
    }
    notes = (f"On {machine}. Medians; perfscope and the baseline take turns in one run.", _BASELINE)
    section = Section("Overhead", _COLUMNS, rows, notes)
    return Outcome(Report(f"Profiling overhead: {path}", data, (section,)), format)
