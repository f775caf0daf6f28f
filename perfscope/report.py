"""The neutral document between analyzers and renderers: data for JSON, and sections for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from perfscope.constants import MANY_RANKS, MS_PER_S
from perfscope.errors import PerfscopeError

if TYPE_CHECKING:  # fractions takes long to import, and every command imports this module
    from fractions import Fraction

Cell: TypeAlias = str | int | float | None
Row: TypeAlias = tuple[Cell, ...]
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"

_T = TypeVar("_T")

#: Control characters, and those that turn the direction of a line.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NUMBER = re.compile(r"\d+")
#: Rows that a table shows of something of which there may be very many.
MOST_ROWS = 20
#: Levels of a tree that tables show, unless more are asked for.
DEFAULT_DEPTH = 3
#: The longest or worst of many that an answer shows.
MOST_SHOWN = 5
#: Names that a sentence lists; more are counted.
MOST_NAMED = 3
#: The smallest change, or share of a step, that matters: a smaller one is within what nobody would act on.
SMALLEST_CHANGE = 0.02
#: A smaller share of a whole is not worth a line.
NEGLIGIBLE = 0.01


def escape_control_characters(text: str) -> str:
    """A text of a file, such as its name, without what would change a terminal's colour or title."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def percent(share: float | Fraction | None) -> float | None:
    """A cell in percent of a share, where 1 is the whole."""
    return None if share is None else float(100 * share)


def percent_of(part: float, whole: float) -> float | None:
    """A cell in percent of a part of a whole; there is none where the whole is 0."""
    return 100 * part / whole if whole else None


def milliseconds(seconds: float | None) -> float | None:
    """A cell in ms of seconds."""
    return None if seconds is None else seconds * MS_PER_S


def to_float(value: float | Fraction | None) -> float | None:
    """A cell of an exact number."""
    return None if value is None else float(value)


def in_unit(value: float | Fraction | None, unit: int) -> float | None:
    """A cell in a larger unit, such as bytes in ``constants.GB``."""
    return None if value is None else float(value / unit)


def first_rows(rows: Sequence[Row], most: int) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The first rows of a long table, and a note that says how many are left out, if there are any."""
    left_out = len(rows) - most
    return tuple(rows[:most]), (f"{left_out} more rows are in --format json.",) if left_out > 0 else ()


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading (with the unit) and how many decimals its numbers show."""

    heading: str
    decimals: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, an optional table, and notes that a reader needs to trust it.

    Attributes:
        columns: The table's columns; empty for a section of text.
        rows: One tuple a row, as long as ``columns``; None is a value that does not exist.
        notes: Sentences below the table: conventions, assumptions, reasons for values that are absent.
        drawing: Lines that are shown as they are, between the heading and the notes.
        every: All rows of a table that does not show all; empty where ``rows`` are all.
        is_aggregated: Whether ``rows`` tell what ``every`` has by quantiles, groups and outliers.
    """

    title: str
    columns: tuple[Column, ...] = ()
    rows: Sequence[Row] = ()
    notes: tuple[str, ...] = ()
    drawing: str = ""
    every: Sequence[Row] = ()
    is_aggregated: bool = False

    def __post_init__(self) -> None:
        for row in chain(self.rows, self.every):
            if len(row) != len(self.columns):
                raise AssertionError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns")


def long_table(
    title: str, columns: tuple[Column, ...], rows: Sequence[Row], notes: tuple[str, ...] = (), *, most: int
) -> Section:
    """A long table that shows its first rows; its last note says how many are left out, if there are any."""
    shown, left_out = first_rows(rows, most)
    return Section(title, columns, shown, (*notes, *left_out), every=rows if left_out else ())


def shorten_warnings(warnings: Sequence[str]) -> tuple[str, ...]:
    """Warnings for people: of more than 512 that differ in numbers alone, as those of many ranks, the first ones."""
    alike: dict[str, list[str]] = {}
    for line in warnings:
        alike.setdefault(_NUMBER.sub("0", line), []).append(line)
    shown: list[str] = []
    for lines in alike.values():
        left_out = len(lines) - MOST_ROWS if len(lines) > MANY_RANKS else 0
        shown += lines[: len(lines) - left_out]
        if left_out:
            shown.append(
                f"{left_out:,} more warnings, which differ from the last one in numbers alone, are in --format json"
            )
    return tuple(shown)


@dataclass(frozen=True, slots=True)
class Report:
    """A whole answer: what ``--format json`` prints, whose first key is ``schema``, and what people read.

    ``warnings`` are doubts about the answer, repeated on standard error. ``page`` is the path of the run's page.
    """

    title: str
    data: Mapping[str, Json]
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = field(default=())
    page: str = ""

    def select(self, titles: Iterable[str]) -> tuple[Section, ...]:
        """The sections of these titles, in their order; fails where the report has no section of a title."""
        by_title = {section.title: section for section in self.sections}
        titles = tuple(titles)
        for title in titles:
            if title not in by_title:
                raise PerfscopeError(f"there is no section {title!r}", hint=f"the sections are: {', '.join(by_title)}")
        return tuple(by_title[title] for title in titles)
