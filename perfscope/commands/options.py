"""What commands share: the options of printing, options in groups, checks, and the end of a command.

Options that belong together are a named tuple or a dataclass, whose fields are the options. A command takes it as one
parameter, under ``expand_groups``. No two options of a command may have fields of the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, TypeVar, get_type_hints

import typer

from perfscope.errors import ExitCode, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report, Section
from perfscope.sources.runs.folder import find_newest
from perfscope.wire import RUNS_FOLDER

_T = TypeVar("_T")
_N = TypeVar("_N", int, int | None)
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print the result.")]


def require_positive(name: str, value: _N) -> _N:
    """Return a count, or None where none was typed; raises ``UsageError`` where it is below 1."""
    if value is not None and value < 1:
        raise UsageError(f"{name} must be at least 1, not {value}")
    return value


def parse_option(option: str, parse: Callable[[str], _T], text: str | None) -> _T | None:
    """What was typed for an option, if it was; ``UsageError`` where ``parse`` raises ``ValueError``."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def or_newest(paths: Sequence[str] | None, count: int = 1) -> tuple[list[str], tuple[str, ...]]:
    """The runs that were typed, or the newest ones of ``runs`` and a note; ``UsageError`` where it holds too few."""
    if paths:
        return list(paths), ()
    newest = find_newest(count)
    if len(newest) < count:
        missing = f"no run is named, and {RUNS_FOLDER}/ holds {'none' if count == 1 else f'fewer than {count}'}"
        raise UsageError(missing, hint="perfscope profile -- python train.py")
    named = "the newest run" if count == 1 else f"the newest {count} runs"
    return newest, (f"note: {named} of {RUNS_FOLDER}/: {' and '.join(newest)}",)


def require_svg(path: Path) -> Path:
    """Return a path; raises ``UsageError`` where it does not end in .svg."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path} does not end in .svg", hint="the drawing is written as SVG")
    return path


def outcome_of(
    report: Report,
    format: Format | None,
    *,
    in_full: bool = False,
    warnings: Sequence[str] | None = None,
    notes: tuple[str, ...] = (),
    exit_code: ExitCode | None = None,
) -> Outcome:
    """The end of a command with a report: its warnings are notes, and damage unless an exit code is given."""
    lines = report.warnings if warnings is None else warnings
    if exit_code is None:
        exit_code = ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK
    return Outcome(
        report,
        format,
        in_full=in_full,
        notes=(*(f"warning: {line}" for line in lines), *notes),
        exit_code=exit_code,
    )


def expand_groups(command: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Let typer see a parameter for each option of a command's groups, and call the command with the groups."""
    types = get_type_hints(command, include_extras=True)
    returned = types.pop("return")
    groups = {name: get_type_hints(kind, include_extras=True) for name, kind in types.items() if _is_group(kind)}
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=groups.get(parameter.name, types)[field.name],
        )
        for parameter in inspect.signature(command).parameters.values()
        for field in (
            inspect.signature(types[parameter.name]).parameters.values() if parameter.name in groups else (parameter,)
        )
    ]
    signature = inspect.Signature(options, return_annotation=returned)

    @wraps(command)
    def command_of_options(**typed: object) -> Outcome:
        values = signature.bind(**typed)
        values.apply_defaults()
        given = values.arguments
        filled = {name: types[name](**{field: given.pop(field) for field in fields}) for name, fields in groups.items()}
        return command(**given, **filled)

    command_of_options.__signature__ = signature  # type: ignore[attr-defined]  # what inspect reads first
    command_of_options.__annotations__ = {option.name: option.annotation for option in options}
    return command_of_options


def _is_group(kind: object) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")))


def spell_option(name: str) -> str:
    """The option of a field: ``--kv-heads`` of ``kv_heads``."""
    return f"--{name.replace('_', '-')}"


_SECTIONS = "Print only the sections whose heading begins so. May be repeated."
Sections = Annotated[list[str] | None, typer.Option("--section", metavar="NAME", help=_SECTIONS, show_default="all")]
ScreenFormat = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="How to print the result.", show_default="one screen on a terminal, else md"),
]


def require_readable(sections: Sequence[str] | None, chosen: Format | None) -> None:
    """Raise ``UsageError`` where sections are chosen of JSON, which has none."""
    if sections and chosen is Format.JSON:
        raise UsageError("--section chooses what people read; JSON is whole", hint="--only chooses analyzers")


def choose_sections(report: Report, names: Iterable[str] | None) -> Report:
    """The report with the named sections alone, all where none is; ``UsageError`` where it has none of a name."""
    if not names:
        return report
    sections = list(report.sections)
    if report.warnings:
        sections.append(Section("Warnings", notes=report.warnings))
    chosen: list[Section] = []
    for name in names:
        matches = [section for section in sections if section.title.lower().startswith(name.strip().lower())]
        if not matches or not name.strip():
            titles = ", ".join(section.title for section in sections)
            raise UsageError(f"the report has no section {name!r}", hint=f"its sections: {titles}")
        exact = [section for section in matches if section.title.lower() == name.strip().lower()]
        chosen += [section for section in exact or matches if section not in chosen]
    return replace(report, sections=tuple(chosen), warnings=())
