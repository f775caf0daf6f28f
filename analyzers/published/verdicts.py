"""The verdict on a published figure, and the cell that it is on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from perfscope.analyzers.published.derived import Interval
from perfscope.tables.published import Figure, PublishedTable, Row, Span


class Verdict(StrEnum):
    """How a published figure compares with the recomputed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    FROM_UNROUNDED = "from unrounded inputs"
    WRONG = "wrong"
    CONVENTION = "other convention"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """One derived cell.

    Attributes:
        table_line: Line of the table's heading row.
        table_title: The heading above the table.
        line: The row's line.
        row: The label of the row.
        column: The column's heading.
        quantity: What the cell states: a ``Quantity``, or a change.
        published: The cell's digits; empty for an empty cell.
        recomputed: The exact value, in the unit of the printed digits.
        text: The recomputed value with as many decimals as the cell.
        verdict: How the two compare.
        why: For a wrong cell, the simple mistake that explains it, if there is one.
        span: Where the digits are in the file.
    """

    table_line: int
    table_title: str
    line: int
    row: str
    column: str
    quantity: str
    published: str
    recomputed: Fraction
    text: str
    verdict: Verdict
    why: str
    span: Span

    @property
    def agrees(self) -> bool:
        """Whether the cell follows from its row, or may follow from it by another convention."""
        return self.verdict in (Verdict.ROUNDED, Verdict.CONVENTION)


@dataclass(frozen=True, slots=True)
class Uncheckable:
    """A cell that could not be recomputed, and why."""

    line: int
    row: str
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a cell, and its printed figure."""

    table: PublishedTable
    row: Row
    column: int
    quantity: str
    published: Figure


def make_cell(position: Position, value: Fraction, verdict: Verdict, why: str) -> CheckedCell:
    """The cell at a position, with its exact value in the unit of the printed digits."""
    return CheckedCell(
        table_line=position.table.line,
        table_title=position.table.title,
        line=position.row.line,
        row=position.row.label,
        column=position.table.headings[position.column],
        quantity=position.quantity,
        published=position.published.text,
        recomputed=value,
        text=format_rounded(value, position.published.decimals),
        verdict=verdict,
        why=why,
        span=position.published.span,
    )


def judge(published: Figure, printed: Interval) -> Verdict:
    """Compare a published figure with the computed value, both in the unit of the printed digits."""
    stated = published.number / published.unit
    last_place = Fraction(1, 10**published.decimals)
    half = last_place / 2
    if abs(printed.value - stated) <= half:
        return Verdict.ROUNDED
    if stated <= printed.value < stated + last_place:
        return Verdict.TRUNCATED
    if any(low <= stated + half and high >= stated - half for low, high in (printed.nearest, printed.cut)):
        return Verdict.FROM_UNROUNDED
    return Verdict.WRONG


def format_rounded(value: Fraction, decimals: int) -> str:
    """Write a fraction with a number of decimals, halves to even.

    >>> format_rounded(Fraction(4974996, 100000), 1)
    '49.7'
    """
    digits = round(value * 10**decimals)
    sign = "-" if digits < 0 else ""
    whole, part = divmod(abs(digits), 10**decimals)
    return f"{sign}{whole}.{part:0{decimals}d}" if decimals else f"{sign}{whole}"
