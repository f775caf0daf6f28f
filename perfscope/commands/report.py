"""``perfscope report``: published tables are checked and recomputed, and reports are built from raw files."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from perfscope.commands.options import FormatOption, expand_groups, outcome_of, require_positive
from perfscope.errors import ExitCode, PerfscopeError, UsageError
from perfscope.models.conventions import Checkpointing, bigscience_passes
from perfscope.models.hardware import Gpu, find_gpu
from perfscope.outcome import Outcome
from perfscope.regenerate.build import Answer, build_pages, report_pages, write_pages
from perfscope.regenerate.refresh import (
    ADDED_COLUMNS,
    check_file,
    report_file,
    report_folder,
    report_tables,
    write_cells,
)
from perfscope.renderers import Format
from perfscope.report import Report
from perfscope.tables.published import Constant, Quantity

_constant = partial(typer.Option, rich_help_panel="Constants of the tables")


@dataclass(frozen=True, slots=True)
class ConstantOptions:
    """The values that hold for whole tables, as typed."""

    seq_len: Annotated[int | None, _constant(help="Tokens per sequence.", show_default="from the text, else 1024")] = (
        None
    )
    checkpointing: Annotated[
        Checkpointing | None,
        _constant(help="Activation checkpointing: what is recomputed.", show_default="from the text, else full"),
    ] = None
    tp: Annotated[int | None, _constant(help="Tensor-parallel size, in GPUs.", show_default="from the text")] = None
    gpu: Annotated[str | None, _constant(help="GPU of the rows that name none, for a share of its peak.")] = None

    def constants(self) -> dict[Quantity, Constant]:
        """The constants that the options set; fails where a value cannot be right."""
        counts = {Quantity.SEQ_LEN: ("--seq-len", self.seq_len), Quantity.TENSOR_PARALLEL: ("--tp", self.tp)}
        constants = {
            quantity: Constant(require_positive(option, value), option)
            for quantity, (option, value) in counts.items()
            if value is not None
        }
        if self.checkpointing is not None:
            passes = bigscience_passes(self.checkpointing)
            constants[Quantity.PASSES] = Constant(passes, f"--checkpointing {self.checkpointing}")
        return constants

    def find_gpu(self) -> Gpu | None:
        """The GPU of rows that name none; None where the option is not set."""
        return find_gpu(self.gpu) if self.gpu else None


@expand_groups
def table(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE... | FOLDER", help="CSV or markdown files with tables; of a folder, a summary."),
    ],
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
    if len(files) == 1 and files[0].is_dir():
        return Outcome(report_folder(files[0], constants.constants(), constants.find_gpu()), format)
    return Outcome(report_tables(files, constants.constants(), constants.find_gpu(), add or ()), format)


@expand_groups
def refresh(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.md", help="A markdown file with tables; with --check, CSV too.")
    ],
    constants: ConstantOptions,
    check: Annotated[
        bool, typer.Option("--check", help="Dry run: list the differences, and exit with status 3 if there are any.")
    ] = False,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Recompute the TFLOPs, MFU, speed-up, efficiency and percentage cells of a file's tables, in place."""
    published, checked = check_file(file, constants.constants(), constants.find_gpu())
    if not check:
        write_cells(file, published.document, checked)
    report = report_file(published, checked, written=not check)
    exit_code = ExitCode.OK
    if check and (checked.unfounded or checked.contradictions):
        exit_code = ExitCode.DIFFERENCE
    elif check and checked.is_empty:
        exit_code = ExitCode.FAILED
    return outcome_of(report, format, exit_code=exit_code)


#: Commands that only read; any other command in a marker is refused.
READING = ("analyze", "bench", "compare", "whatif", "tflops", "plan", "checkpoint", "scaling", "logs")
#: A table of raw files, which only blocks hold.
_TABLE = ("report", "table")
_WRITING_OPTIONS = ("-o", "--output", "--svg", "--rows", "--save")
_ANSWERED = (ExitCode.OK, ExitCode.DIFFERENCE, ExitCode.DAMAGED_INPUT)
#: The error that typer raises for invalid options: typer exports its subclass BadParameter only.
_TYPER_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


def build(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="FILE.md | FOLDER", help="A report, or a folder of reports.")],
    check: Annotated[
        bool, typer.Option("--check", help="Dry run: list the stale cells, and exit with status 3 if there are any.")
    ] = False,
    format: FormatOption = Format.MARKDOWN,
) -> Outcome:
    """Write the blocks between <!-- perfscope: COMMAND --> and <!-- /perfscope --> again from their raw files."""
    group = context.find_root().command
    assert isinstance(group, TyperGroup)
    pages = build_pages(path, answer_with(group))
    if not check:
        write_pages(pages)
    is_stale = any(page.stale for page in pages)
    report = report_pages(pages, written=not check)
    return Outcome(report, format, exit_code=ExitCode.DIFFERENCE if check and is_stale else ExitCode.OK)


def answer_with(group: TyperGroup) -> Answer:
    """A function that runs a command of a group in this process, and returns its report."""

    def answer(words: Sequence[str], folder: Path) -> Report:
        _refuse_writing(words)
        name, *arguments = words
        command = group.get_command(typer.Context(group), name)
        assert command is not None, f"perfscope {name} does not exist"
        with contextlib.chdir(folder):
            try:
                outcome = command.main(arguments, prog_name=f"perfscope {name}", standalone_mode=False)
            except _TYPER_USAGE_ERROR as error:
                raise PerfscopeError(str(error)) from None
        if not isinstance(outcome, Outcome) or outcome.report is None:
            raise PerfscopeError("the command gives no report")
        if outcome.format not in (None, Format.MARKDOWN):
            raise PerfscopeError("a block holds markdown", hint="leave out --format")
        if outcome.exit_code not in _ANSWERED:
            raise PerfscopeError(f"the command exits with status {outcome.exit_code}")
        return outcome.report

    return answer


def _refuse_writing(words: Sequence[str]) -> None:
    only_reads = tuple(words[:2]) == _TABLE or words[0] in READING
    if words[0] == "bench":  # without a folder it trains
        only_reads = len(words) > 1 and not words[1].startswith("-")
    if not only_reads:
        raise PerfscopeError(
            f"{' '.join(words[:2])!r} is not a read-only command",
            hint=f"allowed: {', '.join((*READING, ' '.join(_TABLE)))}",
        )
    writing = [word for word in words if word.split("=")[0] in _WRITING_OPTIONS]
    if writing:
        raise PerfscopeError(f"{writing[0]} writes a file", hint="a block holds what a command prints")


app = typer.Typer(help="Check published tables and regenerate reports from raw files.")
app.command()(refresh)
app.command()(build)
app.command(hidden=True)(table)
