"""``perfscope report refresh``: the derived cells of a markdown file, recomputed in place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from perfscope.commands.options import FormatOption, expand_groups, require_positive
from perfscope.errors import ExitCode, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import find_gpu
from perfscope.outcome import Outcome
from perfscope.regenerate.refresh import check_file, to_report, write_cells
from perfscope.regenerate.table_report import ADDED_COLUMNS, report_tables
from perfscope.renderers import Format
from perfscope.tables.published import Constant, Quantity

_PANEL = "Constants of the tables"
_PASSES = {Checkpointing.FULL: 4}
_PASSES_WITHOUT_RECOMPUTATION = 3


@dataclass(frozen=True, slots=True)
class ConstantOptions:
    """The values that hold for whole tables, as typed."""

    seq_len: Annotated[
        int | None,
        typer.Option(help="Tokens per sequence.", rich_help_panel=_PANEL, show_default="from the text, else 1024"),
    ] = None
    checkpointing: Annotated[
        Checkpointing | None,
        typer.Option(
            help="Activation checkpointing: what is recomputed.",
            rich_help_panel=_PANEL,
            show_default="from the text, else full",
        ),
    ] = None
    tp: Annotated[
        int | None,
        typer.Option(help="Tensor-parallel size, in GPUs.", rich_help_panel=_PANEL, show_default="from the text"),
    ] = None
    gpu: Annotated[
        str | None, typer.Option(help="Model of the GPU, for columns with a share of its peak.", rich_help_panel=_PANEL)
    ] = None

    def constants(self) -> dict[Quantity, Constant]:
        """The constants that the options set.

        Raises:
            UsageError: A value cannot be right.
        """
        counts = {
            Quantity.SEQ_LEN: ("--seq-len", self.seq_len),
            Quantity.TENSOR_PARALLEL: ("--tp", self.tp),
        }
        constants = {
            quantity: Constant(require_positive(option, value), option)
            for quantity, (option, value) in counts.items()
            if value is not None
        }
        if self.checkpointing is not None:
            passes = _PASSES.get(self.checkpointing, _PASSES_WITHOUT_RECOMPUTATION)
            constants[Quantity.PASSES] = Constant(passes, f"--checkpointing {self.checkpointing}")
        return constants

    def peak_tflops(self) -> float | None:
        """The dense 16-bit peak of the GPU; None where no GPU is named.

        Raises:
            UsageError: The GPU is not in the table of hardware.
        """
        return find_gpu(self.gpu).dense_16bit_tflops if self.gpu else None


@expand_groups
def table(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV or markdown files with raw tables.")],
    constants: ConstantOptions,
    add: Annotated[
        list[str] | None,
        typer.Option(help="A column to compute: tflops, speed-up, efficiency, save-speed or memory-share."),
    ] = None,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Print raw tables with their recomputed cells, added columns and a verdict on each row."""
    unknown = [name for name in add or () if name not in ADDED_COLUMNS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} cannot be added", hint=f"the columns are: {', '.join(ADDED_COLUMNS)}")
    return Outcome(report_tables(files, constants.constants(), constants.peak_tflops(), add or ()), format)


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
