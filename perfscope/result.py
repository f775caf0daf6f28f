"""A result is its own schema: JSON, the attributes in Python, the tables and the reference of metrics follow from it.

A field with a ``Doc``, and a ``figure``, are keys of the JSON; their names have the units. Other fields are the
analyzers' own. CONTRIBUTING shows how a figure is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import get_annotations, getdoc
from itertools import chain
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Struct

from perfscope import report
from perfscope.constants import GB, MS_PER_S, NS_PER_MS
from perfscope.report import Cell, Json, Row, Section

#: A row of a table, or an object of JSON: what it is, its columns know.
Item: TypeAlias = Any
#: What the cell of a value is.
Unit: TypeAlias = Callable[[Any], Cell]


class Doc(NamedTuple):
    """What a field is, for the reference of metrics: ``Annotated[int, Doc("Completed steps.")]``."""

    text: str


if TYPE_CHECKING:
    figure = property
else:

    class figure(property):  # noqa: N801 - it is used like property
        """A key of the JSON that follows from the fields; its docstring says what it is."""


class InUnit:
    """A key of the JSON that is a private number over a unit, and over the field ``per``; ``text`` says what it is.

    ``field`` may be one of a part, as in ``slowest.wall_ns``.
    """

    def __init__(self, field: str, unit: int, text: str, *, per: str = "") -> None:
        self.number, self.unit, self.text, self.per = attrgetter(field), unit, text, per

    def __get__(self, item: Item, kind: type) -> float:
        if item is None:
            return self  # type: ignore[return-value]  # the class has the definition
        number = self.number(item)
        return float((number / getattr(item, self.per) if self.per else number) / self.unit)


class InUnitIfKnown(InUnit):
    """The same of a number that may be absent."""

    def __get__(self, item: Item, kind: type) -> float | None:  # type: ignore[override]  # None instead of a number
        return None if item is not None and self.number(item) is None else super().__get__(item, kind)


# Units of columns: what a value of the JSON is in the unit of the heading.


def MS(seconds: float) -> float:  # noqa: N802 - a unit
    """Milliseconds of seconds."""
    return seconds * MS_PER_S


def MS_OF_NS(ns: float) -> float:  # noqa: N802 - a unit
    """Milliseconds of nanoseconds, of a private field: exact to the last digit."""
    return ns / NS_PER_MS


def GIGABYTES(size: float) -> float:  # noqa: N802 - a unit
    """GB of bytes: 10**9."""
    return float(size / GB)


def PERCENT(share: float) -> float:  # noqa: N802 - a unit
    """Percent of a share of 1."""
    return float(100 * share)


class Column(Struct, frozen=True):
    """A column of a table: its heading with the unit, and the field that its cells show, or a function of the row.

    ``unit`` converts a value; an absent one stays absent.
    """

    heading: str
    value: str | Callable[[Item], Cell]
    unit: Unit | None = None
    decimals: int = 1

    def cell(self, item: Item) -> Cell:
        """The cell of a row; absent where the row has no such field."""
        value: Any = getattr(item, self.value, None) if isinstance(self.value, str) else self.value(item)
        return value if value is None or self.unit is None else self.unit(value)


class Table(Struct, frozen=True):
    """A table of a result: its title, the field that has its rows (``""``: the result is the row), and its columns."""

    title: str
    rows: str
    columns: tuple[Column, ...]

    def row(self, item: Item, *first: Cell) -> Row:
        """The cells of a row; ``first`` stands in for its first ones."""
        return (*first, *(column.cell(item) for column in self.columns[len(first) :]))

    def section(
        self,
        items: Iterable[Item],
        notes: Iterable[str] = (),
        *,
        totals: Sequence[Row] = (),
        most: int | None = None,
    ) -> Section:
        """The table as a section: ``totals`` are rows below the items, ``most`` is how many rows are shown."""
        rows: Sequence[Row] = tuple(chain((self.row(item) for item in items), totals))
        columns = tuple(report.Column(column.heading, column.decimals) for column in self.columns)
        if most is None:
            return Section(self.title, columns, rows, tuple(notes))
        return report.long_table(self.title, columns, rows, tuple(notes), most=most)


class Figures(Struct, frozen=True):
    """A part of a result: an object of JSON."""

    #: Private fields whose keys are keys of this object.
    INLINE: ClassVar[tuple[str, ...]] = ()

    def data(self) -> Json:
        """The JSON of it."""
        return to_json(self)


class Sums(Figures, frozen=True):
    """A part of a result whose fields are numbers that add up."""

    def __add__(self, addend: Self) -> Self:
        return type(self)(*(getattr(self, name) + getattr(addend, name) for name in self.__struct_fields__))


class Result(Figures, frozen=True, dict=True):
    """What an analyzer returns. ``data()`` is its JSON, ``sections()`` are its tables for people."""

    #: The tables, in their order.
    TABLES: ClassVar[tuple[Table, ...]] = ()

    def sections(self) -> tuple[Section, ...]:
        """Its tables with rows, its notes below the first one."""
        notes: tuple[str, ...] = tuple(getattr(self, "notes", ()))
        return tuple(
            table.section(getattr(self, table.rows) if table.rows else (self,), () if number else notes)
            for number, table in enumerate(self.TABLES)
        )

    def __bool__(self) -> Literal[True]:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(keys_of(type(self)))}>"

    def __str__(self) -> str:
        """Markdown, of a result that ``perfscope.open`` gave."""
        render: Callable[[Iterable[Section]], str] | None = self.__dict__.get("render")
        return render(self.sections()) if render else repr(self)

    def _repr_markdown_(self) -> str:
        return str(self)

    def show_by(self, render: Callable[[Iterable[Section]], str]) -> None:
        """Set what writes its tables; analyzers know no renderer."""
        self.__dict__["render"] = render


class ResultList(Result, frozen=True):
    """A result whose JSON is a list: its first field."""

    def _entries(self) -> Sequence[Item]:
        entries: Sequence[Item] = getattr(self, self.__struct_fields__[0])
        return entries

    def data(self) -> Json:
        """The JSON of its entries."""
        return to_json(self._entries())

    def __iter__(self) -> Iterator[Item]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} entries>"


@cache
def keys_of(kind: type) -> tuple[str, ...]:
    """The keys of an object of JSON: the documented fields, then the figures; all fields of a dataclass of a record."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    texts: dict[str, str] = {}
    figures: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        texts |= {name: str(hint) for name, hint in get_annotations(base).items()}
        figures |= {name: None for name, value in vars(base).items() if isinstance(value, figure | InUnit)}
    documented = [name for name in kind.__struct_fields__ if "Doc(" in texts[name]]  # type: ignore[attr-defined]
    return (*documented, *(name for name in figures if name not in documented))


def to_json(value: Item) -> Json:
    """A value as JSON."""
    if value is None or isinstance(value, str | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Struct) or is_dataclass(value):
        return to_object(value)
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(member) for key, member in value.items()}
    if isinstance(value, Sequence):
        return [to_json(member) for member in value]
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def to_object(value: Item) -> dict[str, Any]:
    """The object of JSON."""
    data = {key: to_json(getattr(value, key)) for key in keys_of(value.__class__)}
    for field in getattr(value, "INLINE", ()):
        data |= to_object(getattr(value, field))
    return data


def is_object(kind: Item) -> bool:
    """Whether a type is that of an object of JSON."""
    return isinstance(kind, type) and (issubclass(kind, Struct) or is_dataclass(kind))


def describe(kind: type) -> dict[str, tuple[Any, str]]:
    """The type and the definition of each key of an object of JSON."""
    hints = get_type_hints(kind, include_extras=True)
    texts = _attributes(kind)
    described: dict[str, tuple[Any, str]] = {}
    for key in keys_of(kind):
        if isinstance(getattr(kind, key, None), InUnit):
            known = getattr(kind, key)
            described[key] = float | None if isinstance(known, InUnitIfKnown) else float, known.text
        elif key not in hints:
            get = getattr(kind, key).fget
            described[key] = get_type_hints(get)["return"], " ".join((get.__doc__ or "").split())
        elif get_origin(hints[key]) is Annotated:
            hint, doc = get_args(hints[key])
            described[key] = hint, doc.text
        else:
            described[key] = hints[key], texts.get(key, "")
    for field in getattr(kind, "INLINE", ()):
        inline = describe(hints[field])
        described |= {key: (hint, f"{text} In Python ``{field}.{key}``.") for key, (hint, text) in inline.items()}
    return described


def _attributes(kind: type) -> dict[str, str]:
    """What the docstring of a class says of its attributes."""
    entries = re.split(r"^    (?=\w)", (getdoc(kind) or "").partition("Attributes:\n")[2], flags=re.MULTILINE)
    pairs = (entry.partition(": ") for entry in entries if entry)
    return {name: " ".join(text.split()) for names, _, text in pairs for name in names.split(", ")}
