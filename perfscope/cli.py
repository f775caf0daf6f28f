"""The command line: the one place that prints and the one place that catches a PerfscopeError.

A command is a module of ``perfscope.commands`` with a function of the same name that returns an Outcome, or with a
typer ``app`` of such functions. It is imported when it is called (or when ``--help`` lists it), so that
``perfscope tflops`` costs little more than starting Python.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

import perfscope
from perfscope.errors import ExitCode, PerfscopeError, SourceError, UsageError
from perfscope.hooks.guard import call_safely
from perfscope.hooks.messages import write_line
from perfscope.outcome import Outcome
from perfscope.renderers import Format, Terminal
from perfscope.report import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# typer keeps its classes of contexts and errors private.
Context: TypeAlias = Any
TyperError: TypeAlias = Any

#: The commands in the order of a first use, by the group of the help that lists them.
GROUPS = {
    "Runs": (
        "profile", "watch", "trigger", "collect", "analyze", "compare", "whatif", "postmortem", "export",
    ),
    "Logs and files": ("logs", "scaling", "checkpoint", "report"),
    "Calculators": ("tflops", "plan", "bench", "doctor"),
}  # fmt: skip
COMMANDS = {name: group for group, names in GROUPS.items() for name in names}
#: What the commands of earlier versions are now.
_NOW = {
    "stragglers": "analyze RUN --only late_ranks",
    "goodput": "analyze RUN --only goodput",
    "memory": "analyze RUN --only memory",
    "bubble": "plan --pp 4 --microbatches 8, or perfscope analyze RUN --only bubble",
    "page": "export RUN -o page.html",
    "merge": "export RUN -o trace.json.gz",
    "demo": "doctor --demo",
    "ceiling": "doctor --ceiling",
}


#: How commands are used that need a word and have no default for it; others name theirs in their errors.
_EXAMPLES = {
    "perfscope watch": "perfscope watch runs/train",
    "perfscope trigger": "perfscope trigger runs/train --steps 3",
    "perfscope collect": "perfscope collect node0:RUN node1:RUN -o WHOLE",
    "perfscope postmortem": "perfscope postmortem runs/train",
    "perfscope logs": "perfscope logs train.log",
    "perfscope scaling": "perfscope scaling RUN8 RUN16 RUN32",
    "perfscope report": "perfscope report refresh README.md --check",
    "perfscope report table": "perfscope report table runs.csv --add tflops",
    "perfscope report refresh": "perfscope report refresh README.md --check",
    "perfscope report build": "perfscope report build reports",
}
#: A line on standard error is lost where nobody reads for so many seconds.
_PATIENCE_S = 5.0
#: A smaller terminal is written to as one of this size.
_NARROWEST, _FEWEST_LINES = 20, 6
#: The error that typer raises for what was typed: typer exports its subclass BadParameter only.
_TYPER_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]


class CommandGroup(TyperGroup):
    """Commands that load lazily."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Context, list[str]]:
        """Find the command that was typed; ``UsageError`` where there is none of that name, or none any more."""
        if args[0] in _NOW:
            raise UsageError(f"`perfscope {args[0]}` is now `perfscope {_NOW[args[0]]}`")
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            suggestion = _suggest(args[0], COMMANDS)
            raise UsageError(
                f"there is no command {args[0]!r}{suggestion}", hint=None if suggestion else "perfscope --help"
            )
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Context) -> list[str]:
        """Name the commands in the order of a first use."""
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Import one command's module and wrap its function."""
        if cmd_name not in COMMANDS:
            return None
        try:
            module = import_module(f"perfscope.commands.{cmd_name}")
        except EOFError:  # of a file that a full disk cut off; click would end without a word
            raise PerfscopeError("a compiled module is cut off", hint="remove the folders __pycache__") from None
        if hasattr(module, "app"):  # a command with commands of its own
            group = typer.main.get_group(module.app)
            group.name, group.rich_help_panel = cmd_name, COMMANDS[cmd_name]
            return group
        single = typer.Typer(add_completion=False)
        settings = getattr(module, "SETTINGS", {})
        single.command(name=cmd_name, rich_help_panel=COMMANDS[cmd_name], **settings)(getattr(module, cmd_name))
        command = typer.main.get_command(single)
        assert isinstance(command, TyperCommand)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Context) -> object:
        """Run the command and end the process as its outcome says."""
        outcome = super().invoke(ctx)
        if isinstance(outcome, Outcome):
            end(outcome, quiet=bool(ctx.params.get("quiet")))
        return outcome


def _in_one_line(error: TyperError) -> PerfscopeError:
    """A usage error of typer in our form; of the bare program it is the help text."""
    message: str = error.message.rstrip(".")
    context = error.ctx
    if context is None or (context.parent is None and (not message or "\n" in message)):
        sys.stdout.write(message)  # rich has printed it, or it has no rich
        raise SystemExit(ExitCode.USAGE)
    typed = getattr(error, "option_name", None)
    if typed is not None and context is not None:
        options = [option for parameter in context.command.params for option in parameter.opts]
        message += ": did you mean --format json?" if typed == "--json" else _suggest(typed, options)
    elif context is not None:
        message = error.format_message().rstrip(".").replace("Value error, ", "")
    path: str = context.command_path
    example = _EXAMPLES.get(path) if error.message.startswith("Missing") or not error.message else None
    hint = None if "did you mean" in message.lower() else example or f"{path} --help"
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _suggest(typed: str, names: Iterable[str]) -> str:
    import difflib  # few names are mistyped

    matches = difflib.get_close_matches(typed, list(names))
    return f": did you mean {' or '.join(matches)}?" if matches else ""


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"perfscope {perfscope.__version__}")
        raise typer.Exit


@app.callback()
def perfscope_command(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no notes on standard error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Where did the time of a training run go, and can the number be trusted?"""


def end(outcome: Outcome, *, quiet: bool) -> NoReturn:
    """Print an outcome and leave with its exit code, or by its signal."""
    notes = () if quiet else _notes_apart(outcome)
    terminal = _find_terminal(notes)
    if not outcome.summary:
        _print_output(outcome.output(terminal))
    elif not quiet and (terminal is None or outcome.report is None):
        notes += outcome.summary
    elif not quiet:
        call_safely(lambda: _print_output(outcome.output(terminal)))  # the end is the profiled command's own
    if not quiet:
        for line in notes:
            write_line(f"perfscope: {escape_control_characters(line)}" if line else "", _PATIENCE_S)
    if outcome.signal is not None:
        _die_by(outcome.signal)
    if sys.flags.inspect or os.environ.get("PYTHONINSPECT"):
        os._exit(outcome.exit_code)  # Python would read commands from standard input now
    raise SystemExit(outcome.exit_code)


def _find_terminal(notes: Sequence[str]) -> Terminal | None:
    """The terminal that standard output is, without the lines of the notes and a prompt."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    width, height = shutil.get_terminal_size()
    width = max(width, _NARROWEST)
    lines = height - 1 - sum(-(-(len(line) + len("perfscope: ")) // width) for line in notes)
    has_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return Terminal(width, max(lines, _FEWEST_LINES), has_colour)


def _notes_apart(outcome: Outcome) -> tuple[str, ...]:
    """The notes without the warnings that a person reads in the report already, on the same terminal."""
    report = outcome.report
    if report is None or outcome.format is Format.CSV or sys.stdout is None or not sys.stdout.isatty():
        return outcome.notes
    return tuple(line for line in outcome.notes if line.removeprefix("warning: ") not in report.warnings)


def _print_output(text: str) -> None:
    if text and sys.stdout is None:
        raise PerfscopeError("nothing can be printed: standard output is closed")
    try:
        sys.stdout.writelines(text.splitlines(keepends=True))  # in parts: a reader that goes away is noticed
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise PerfscopeError(f"standard output cannot be written: {error.strerror}") from None


def _drop_output() -> None:
    """Send the rest of the output nowhere: Python would complain once more when it writes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _die_by(number: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core file of this process beside the command's own
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def main() -> None:
    """Run the command line; a PerfscopeError becomes one line and its hint."""
    try:
        code = _run()
    except PerfscopeError as error:
        write_line(f"perfscope: {escape_control_characters(error.problem)}", _PATIENCE_S)
        if isinstance(error, UsageError) and (usage := _find_usage()):
            write_line(f"  usage: {usage}", _PATIENCE_S)
        if hint := _find_hint(error):
            write_line(f"  hint: {hint}", _PATIENCE_S)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        _drop_output()  # the reader of a pipe went away
        raise SystemExit(1) from None
    raise SystemExit(code)


def _find_usage() -> str | None:
    """How the command is used that was typed without a word behind it."""
    command: Context = typer.main.get_command(app)
    context: Context = command.make_context("perfscope", [], resilient_parsing=True)
    for word in sys.argv[1:]:
        command = command.get_command(context, word) if hasattr(command, "get_command") else None
        if command is None:
            return None
        context = type(context)(command, context, word)
    return " ".join([context.command_path, *command.collect_usage_pieces(context)]) if context.parent else None


def _find_hint(error: PerfscopeError) -> str | None:
    """What to do: of a run that is not there, or a file that is no run, what was probably meant."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if not isinstance(error, SourceError) or COMMANDS.get(words[0] if words else "") != "Runs":
        return error.hint
    from perfscope.sources.runs.folder import find_newest, is_run  # after an error, which most commands have not

    path = Path(error.path)
    if not path.exists():
        newest = find_newest(1)
        return f"the newest run is {newest[0]}" if newest else error.hint
    if path.suffix == ".py":
        return f"perfscope profile -- python {path}"
    if path.suffix == ".html":
        return f"perfscope analyze {path.parent if is_run(path.parent) else 'RUN'}"
    return error.hint


def _run() -> int:
    """Run the command line without typer's frames around its errors; returns the exit code."""
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        return ExitCode.FAILED
    except _TYPER_USAGE_ERROR as error:
        raise _in_one_line(error) from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UsageError("an argument is longer than the name of a file can be") from None
    return code if isinstance(code, int) else ExitCode.OK
