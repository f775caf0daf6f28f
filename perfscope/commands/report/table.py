"""``report table`` in a block of a report: raw tables with what follows from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption
from perfscope.commands.options.groups import expand_groups
from perfscope.commands.report.options import ConstantOptions
from perfscope.errors import UsageError
from perfscope.outcome import Outcome
from perfscope.regenerate.table_report import ADDED_COLUMNS, report_differences, report_tables
from perfscope.renderers import Format


@expand_groups
def table(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV or markdown files with raw tables.")],
    constants: ConstantOptions,
    add: Annotated[
        list[str] | None,
        typer.Option(help="A column to compute: tflops, speed-up, efficiency, save-speed or memory-share."),
    ] = None,
    differences: Annotated[
        bool,
        typer.Option("--differences", help="Print only the cells that differ and the rows that contradict themselves."),
    ] = False,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print raw tables with their recomputed cells, added columns and a verdict on each row."""
    unknown = [name for name in add or () if name not in ADDED_COLUMNS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} cannot be added", hint=f"the columns are: {', '.join(ADDED_COLUMNS)}")
    peak_tflops = constants.peak_tflops()
    if differences:
        return Outcome(report_differences(files, constants.constants(), peak_tflops), format)
    return Outcome(report_tables(files, constants.constants(), peak_tflops, add or ()), format)
