"""Options that belong together, declared once: a named tuple or a dataclass, each field an option of a command.

A field carries its type, spellings, help text and default::

    class Layout(NamedTuple):
        tp: Annotated[int, typer.Option(help="Tensor-parallel size.", rich_help_panel="Layout")] = 1
        pp: Annotated[int | None, typer.Option(help="Pipeline-parallel size.", show_default="all GPUs")] = None

A command takes the group as one parameter, and its users see ``--tp`` and ``--pp``::

    @expand_groups
    def bubble(layout: Layout, format: FormatOption = Format.MARKDOWN) -> Outcome:
        stages = layout.pp

Several commands can take the same group. The help lists options in the order of the parameters and, within a group, of
its fields; a field of a group can be a group itself. No two options of a command may have fields of the same name. A
named tuple takes a third of the time to define that a dataclass takes, which counts where a command starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, wraps
from typing import NamedTuple, TypeGuard, TypeVar, get_type_hints

from perfscope.outcome import Outcome

GroupT = TypeVar("GroupT", bound=NamedTuple)


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


def fill_missing(group: GroupT, supplied: Mapping[str, object]) -> GroupT:
    """Take from a file the values that were not typed; names that are no fields of the group are ignored."""
    values = group._asdict()
    return group._replace(**{name: supplied.get(name) for name, value in values.items() if value is None})


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
