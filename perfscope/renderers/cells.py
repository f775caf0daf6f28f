"""Cells and lines as people read them, the same in every format."""

from __future__ import annotations

from perfscope.report import Cell, Column, Section, escape_control_characters

ABSENT = "n/a"


def to_text(value: Cell, column: Column) -> str:
    """A cell: a number with its column's decimals, ``n/a`` for what does not exist.

    >>> to_text(1.005, Column("Time (ms)", 2))
    '1.00'
    """
    if value is None:
        return ABSENT
    if isinstance(value, float):
        return f"{value:.{column.decimals}f}"
    return to_line(str(value))


def to_line(text: str) -> str:
    """A text in one line, without characters that would move a terminal's cursor or change its colour."""
    return escape_control_characters(" ".join(text.split()))


def is_numeric(section: Section, index: int) -> bool:
    """Whether a column of a section holds numbers alone."""
    values = [row[index] for row in section.rows if row[index] is not None]
    return bool(values) and not any(isinstance(value, str) for value in values)
