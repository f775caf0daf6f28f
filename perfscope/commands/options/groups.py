"""Options that belong together, declared once: a frozen dataclass of which each field is an option of a command.

A field carries its type, spellings, help text and default::

    @dataclass(frozen=True, slots=True)
    class Layout:
        tp: Annotated[int, typer.Option(help="Tensor-parallel size.", rich_help_panel="Layout")] = 1
        pp: Annotated[int | None, typer.Option(help="Pipeline-parallel size.", show_default="all GPUs")] = None

A command takes the group as one parameter, and its users see ``--tp`` and ``--pp``::

    @expand_groups
    def bubble(layout: Layout, output_format: FormatOption = Format.MARKDOWN) -> Outcome:
        stages = layout.pp

Several commands can take the same group. The help lists options in the order of the parameters and, within a group, of
its fields; a field of a group can be a group itself. No two options of a command may have fields of the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, wraps
from typing import get_type_hints

from perfscope.outcome import Outcome


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


def _list_options(name: str, kind: object, default: object) -> Iterator[inspect.Parameter]:
    """The option of a parameter or field, or the options of its group."""
    if not isinstance(kind, type) or not is_dataclass(kind):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        return
    types = _field_types(kind)
    for field in fields(kind):
        field_default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield from _list_options(field.name, types[field.name], field_default)


def _pick_value(name: str, kind: object, values: Mapping[str, object]) -> object:
    """The value of a parameter or field: what was typed for its option, or its group of such values."""
    if not isinstance(kind, type) or not is_dataclass(kind):
        return values[name]
    types = _field_types(kind)
    return kind(**{field: _pick_value(field, field_type, values) for field, field_type in types.items()})


@cache
def _field_types(group: type) -> Mapping[str, object]:
    return get_type_hints(group, include_extras=True)
