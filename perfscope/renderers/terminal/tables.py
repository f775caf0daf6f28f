"""Sections on a terminal. No number is cut: a table that is too wide becomes several, each with the first column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import fill
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfscope.renderers import Terminal
from perfscope.renderers.cells import ABSENT, is_numeric, to_line, to_text
from perfscope.renderers.terminal.lines import DOUBT, FAINT, HEADING, console_of, plain
from perfscope.report import Report, Section, escape_control_characters

#: Of a column of texts, which wrap.
_NARROWEST_TEXT = 12
#: Between columns: one blank of a cell, one of the box.
_PADDING = 2


def draw_sections(report: Report, terminal: Terminal) -> str:
    """Write the title, every section, and the warnings."""
    console = console_of(terminal)
    console.print(plain(report.title, "bold"))
    for section in report.sections:
        console.print()
        console.print(plain(section.title, HEADING))
        _draw(console, section, terminal)
    for warning in report.warnings:
        console.print(plain(f"Warning: {warning}", DOUBT))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _draw(console: Console, section: Section, terminal: Terminal) -> None:
    if section.columns:
        columns = [_Measure.of(section, index) for index in range(len(section.columns))]
        for number, fitting in enumerate(_split(columns, terminal.width)):
            if number:
                console.print()
            console.print(_table(section, fitting, terminal.width), crop=True)
    for line in escape_control_characters(section.drawing).splitlines() if section.drawing else ():
        text = Text(line)
        text.truncate(terminal.width, overflow="ellipsis")
        console.print(text, no_wrap=True)
    for note in section.notes:
        console.print(plain(f"- {note.replace('**', '').replace('`', '')}", FAINT))


@dataclass(frozen=True, slots=True)
class _Measure:
    """A column, and how wide it must and would be."""

    index: int
    is_number: bool
    least: int
    best: int

    @classmethod
    def of(cls, section: Section, index: int) -> _Measure:
        """Measure a column: numbers and the words of a heading are not cut, texts wrap."""
        column, is_number = section.columns[index], is_numeric(section, index)
        cells = max((cell_len(to_text(row[index], column)) for row in section.rows), default=len(ABSENT))
        word = max(map(cell_len, to_line(column.heading).split()), default=1)
        if is_number:
            return cls(index, is_number, max(cells, word), max(cells, word))
        best = max(cells, cell_len(column.heading))
        return cls(index, is_number, max(word, min(best, _NARROWEST_TEXT)), best)


def _split(columns: Sequence[_Measure], width: int) -> Iterator[list[_Measure]]:
    """The columns of each table: as many as fit, and the first one in all of them."""
    first, *following = columns
    fitting = [first]
    for column in following:
        if len(fitting) > 1 and sum(measured.least + _PADDING for measured in (*fitting, column)) > width:
            yield fitting
            fitting = [first]
        fitting.append(column)
    yield fitting


def _table(section: Section, columns: Sequence[_Measure], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    room = width - sum(column.least + _PADDING for column in columns)
    for column in columns:
        extra = min(max(room, 0), column.best - column.least)
        room -= extra
        heading = fill(to_line(section.columns[column.index].heading), column.least + extra)
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(Text(heading), justify=side, width=column.least + extra, overflow="fold")
    for row in section.rows:
        table.add_row(*(Text(to_text(row[column.index], section.columns[column.index])) for column in columns))
    return table
