"""What commands share: the options of printing, options in groups, checks, and the end of a command.

Options that belong together are declared once, as a named tuple or a dataclass. Each field is an option::

    class Layout(NamedTuple):
        tp: Annotated[int, typer.Option(help="Tensor-parallel size.", rich_help_panel="Layout")] = 1

A command takes the group as one parameter, and its users see ``--tp``::

    @expand_groups
    def plan(layout: Layout, format: FormatOption = Format.MARKDOWN) -> Outcome:
        ranks = layout.tp

The help lists options in the order of the parameters and fields. No two options of a command may have fields of the
same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, TypeGuard, get_type_hints

import typer

from perfscope.errors import ExitCode, UsageError
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Report, Section

FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print the result.")]


def require_positive(name: str, value: int) -> int:
    """Return a count that is at least 1.

    Raises:
        UsageError: It is not.
    """
    if value < 1:
        raise UsageError(f"{name} must be at least 1, not {value}")
    return value


def require_svg(path: Path) -> Path:
    """Return a path that ends in .svg.

    Raises:
        UsageError: It does not.
    """
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
) -> Outcome:
    """The end of a command with a report: its warnings are notes, and what is damaged decides the exit code."""
    lines = report.warnings if warnings is None else warnings
    return Outcome(
        report,
        format,
        in_full=in_full,
        notes=(*(f"warning: {line}" for line in lines), *notes),
        exit_code=ExitCode.DAMAGED_INPUT if report.warnings else ExitCode.OK,
    )


def expand_groups(command: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Let typer see a parameter for each option of a command's groups, and call the command with the groups."""
    types = get_type_hints(command, include_extras=True)
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        options.extend(_list_options(parameter.name, types[parameter.name], parameter.default))

    signature = inspect.Signature(options, return_annotation=types["return"])

    @wraps(command)
    def command_of_options(**typed: object) -> Outcome:
        values = signature.bind(**typed)
        values.apply_defaults()
        groups = {name: _pick_value(name, kind, values.arguments) for name, kind in types.items() if name != "return"}
        return command(**groups)

    command_of_options.__signature__ = signature  # type: ignore[attr-defined]  # what inspect reads first
    command_of_options.__annotations__ = {option.name: option.annotation for option in options}
    return command_of_options


def spell_option(name: str) -> str:
    """The option of a field.

    >>> spell_option("kv_heads")
    '--kv-heads'
    """
    return f"--{name.replace('_', '-')}"


def _list_options(name: str, kind: object, default: object) -> Iterator[inspect.Parameter]:
    """The option of a parameter or field, or the options of its group."""
    if not _is_group(kind):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        return
    types = _field_types(kind)
    for field in inspect.signature(kind).parameters.values():
        yield from _list_options(field.name, types[field.name], field.default)


def _pick_value(name: str, kind: object, values: Mapping[str, object]) -> object:
    """The value of a parameter or field: the typed value of its option, or its group filled with such values."""
    if not _is_group(kind):
        return values[name]
    return kind(**{field: _pick_value(field, field_kind, values) for field, field_kind in _field_types(kind).items()})


def _is_group(kind: object) -> TypeGuard[type]:
    return isinstance(kind, type) and (is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")))


@cache
def _field_types(group: type) -> Mapping[str, object]:
    return get_type_hints(group, include_extras=True)


WARNINGS = "Warnings"
_HELP = "Print only the sections whose heading begins so. May be repeated."

Sections = Annotated[list[str] | None, typer.Option("--section", metavar="NAME", help=_HELP, show_default="all")]
ScreenFormat = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="How to print the result.", show_default="one screen on a terminal, else md"),
]


def require_readable(sections: Sequence[str] | None, chosen: Format | None) -> None:
    """Check that sections are chosen of a format that has them.

    Raises:
        UsageError: JSON has no sections.
    """
    if sections and chosen is Format.JSON:
        raise UsageError("--section chooses what people read; JSON is whole", hint="--only chooses analyzers")


def choose_sections(report: Report, names: Iterable[str] | None) -> Report:
    """The report with the sections that are named alone, in the order of the names; all of it where none is.

    Raises:
        UsageError: The report has no section of a name.
    """
    if not names:
        return report
    sections = list(report.sections)
    if report.warnings:
        sections.append(Section(WARNINGS, notes=report.warnings))
    chosen: list[Section] = []
    for name in names:
        matches = [section for section in sections if section.title.lower().startswith(name.strip().lower())]
        if not matches or not name.strip():
            titles = ", ".join(section.title for section in sections)
            raise UsageError(f"the report has no section {name!r}", hint=f"its sections: {titles}")
        exact = [section for section in matches if section.title.lower() == name.strip().lower()]
        chosen += [section for section in exact or matches if section not in chosen]
    return replace(report, sections=tuple(chosen), warnings=())
