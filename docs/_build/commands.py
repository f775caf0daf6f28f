"""The reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, get_args

import typer

from perfscope.cli import COMMANDS, app

# typer keeps its classes of commands and parameters private.
Command: TypeAlias = Any
Parameter: TypeAlias = Any

_KINDS: dict[object, str] = {int: "NUMBER", float: "NUMBER", str: "TEXT", Path: "PATH"}
_HEAD = """# Commands

Every command takes `--format`, or `-f`: `md`, `json` or `csv`; exit codes are 0, 1 where something failed, 2 where what was
typed cannot be right, 3 where a limit is exceeded, 4 where an input is damaged, and for `profile` those of the command.
`perfscope --install-completion` completes commands and options in the shell.
"""


def write_commands() -> str:
    """The page: each command with its arguments and options."""
    group: Command = typer.main.get_command(app)
    context = typer.Context(group)
    blocks = [_HEAD]
    for name in COMMANDS:
        command = group.get_command(context, name)
        blocks.extend(_describe(command, f"perfscope {name}", level=2))
    return "\n".join(blocks)


def _describe(command: Command, words: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {words}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _describe(inner, f"{words} {name}", level + 1)
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([words, "[OPTIONS]", *(_takes(argument) for argument in arguments)])
    yield f"```text\n{usage}\n```\n"
    described = [(_code(_takes(argument)), _cell(argument.help)) for argument in arguments]
    yield from _table(("Argument", "Meaning"), described)
    rows = [(_spelling(option), _code(_takes(option)), _cell(option.help), _default(option)) for option in options]
    yield from _table(("Option", "Takes", "Meaning", "Default"), rows)


def _spelling(option: Parameter) -> str:
    return ", ".join(f"`{spelled}`" for spelled in (*option.opts, *option.secondary_opts))


def _takes(parameter: Parameter) -> str:
    """What is typed: a metavar, the choices, or the kind of value."""
    if parameter.metavar:
        return str(parameter.metavar)
    kind = parameter.type_descriptor.annotation
    if kind is bool:
        return ""
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    inner = (get_args(kind) or (kind,))[0]
    if isinstance(inner, type) and issubclass(inner, Enum):
        return "|".join(str(member.value) for member in inner)
    return _KINDS.get(inner, "TEXT")


def _default(option: Parameter) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return _cell(option.show_default)
    if not option.show_default or option.default is None or isinstance(option.default, bool):
        return ""
    return _code(str(getattr(option.default, "value", option.default)))


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    lines = [headings, tuple(":--" for _ in headings), *rows]
    yield "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def _cell(text: str | None) -> str:
    return " ".join((text or "").replace("|", "\\|").replace("<", "&lt;").split())
