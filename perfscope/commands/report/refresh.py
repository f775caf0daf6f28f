"""``perfscope report refresh``: the derived cells of a markdown file, recomputed in place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options.common import FormatOption
from perfscope.commands.options.groups import expand_groups
from perfscope.commands.report.options import ConstantOptions
from perfscope.errors import ExitCode
from perfscope.outcome import Outcome
from perfscope.regenerate.refresh import check_file, write_cells
from perfscope.regenerate.refresh_report import to_report
from perfscope.renderers import Format


@expand_groups
def refresh(
    file: Annotated[Path, typer.Argument(metavar="FILE.md", help="A markdown file with tables.")],
    constants: ConstantOptions,
    check: Annotated[
        bool, typer.Option("--check", help="Dry run: list the differences, and exit with status 3 if there are any.")
    ] = False,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Recompute the TFLOPs, speed-up, efficiency and percentage cells of a file's tables, in place."""
    checked = check_file(file, constants.constants(), constants.peak_tflops())
    if not check:
        write_cells(file, checked)
    report = to_report(checked, written=not check)
    return Outcome(
        report,
        format,
        notes=tuple(f"warning: {warning}" for warning in report.warnings),
        exit_code=ExitCode.DIFFERENCE if check and checked.differs else ExitCode.OK,
    )
