"""``perfscope report build``: reports whose blocks hold what perfscope commands answer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand, TyperGroup

from perfscope.commands.options import FormatOption
from perfscope.commands.report.refresh import table
from perfscope.errors import ExitCode, PerfscopeError
from perfscope.outcome import Outcome
from perfscope.regenerate.build import Answer, build_pages, to_report, write_pages
from perfscope.renderers import Format
from perfscope.report import Report

#: Commands that only read; any other command in a marker is refused.
READING = (
    "analyze",
    "bench",
    "compare",
    "whatif",
    "tflops",
    "plan",
    "checkpoint",
    "scaling",
    "logs",
)
#: A block can hold tables of raw files, too.
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
    report = to_report(pages, written=not check)
    return Outcome(report, format, exit_code=ExitCode.DIFFERENCE if check and is_stale else ExitCode.OK)


def answer_with(group: TyperGroup) -> Answer:
    """A function that runs a command of a group in this process, and returns its report."""

    def answer(words: Sequence[str], folder: Path) -> Report:
        _refuse_writing(words)
        name, *arguments = words
        command = group.get_command(typer.Context(group), name)
        assert command is not None, f"perfscope {name} does not exist"
        if tuple(words[:2]) == _TABLE:
            command, arguments = table_command(), arguments[1:]
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


def table_command() -> TyperCommand:
    """What answers ``report table`` in a block."""
    app = typer.Typer()
    app.command()(table)
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand)
    return command


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
