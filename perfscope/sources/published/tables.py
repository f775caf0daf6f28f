"""Markdown and CSV files as published tables: which columns mean what, and the figures of every row."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfscope.errors import SourceError, UsageError
from perfscope.sources.published import headings as cells_of
from perfscope.sources.published.headings import Column
from perfscope.sources.published.markdown import Cell, Document, Grid, read_markdown, read_text
from perfscope.sources.published.stated import stated_for, statements
from perfscope.tables.published import DERIVED, Constant, Figure, PublishedTable, Quantity, Row, Span

_LABELS = (
    Quantity.GPUS,
    Quantity.NODES,
    Quantity.PARAMETERS,
    Quantity.MICRO_BATCH,
    Quantity.GLOBAL_BATCH,
    Quantity.STEP_TIME,
    Quantity.RATE,
)
_ABSENT = frozenset(
    {"", "-", "--", "—", "n/a", "na", "none", "tbd", "todo", "?", "x", "xx", "xxx", "xxxx", "oom", "fail", "failed"}
)
_BATCH = (Quantity.MICRO_BATCH, Quantity.ACCUMULATION, Quantity.GLOBAL_BATCH)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """The tables of a file that can be recomputed or checked.

    Attributes:
        path: The file.
        document: The markdown around them; absent for CSV.
        tables: Those tables in order.
        unread: What looks like a table and is none, and tables that nothing can be recomputed in, in words.
    """

    path: str
    document: Document | None
    tables: tuple[PublishedTable, ...]
    unread: tuple[str, ...]


def read_published(path: Path, given: Mapping[Quantity, Constant], wanted: Sequence[Quantity] = ()) -> PublishedFile:
    """Read the tables of a markdown file, or the one of a CSV file.

    Args:
        path: The file; ``.csv`` is read as CSV, anything else as markdown.
        given: Constants that hold whatever the text says.
        wanted: Derived quantities that are to be added: tables without a derived column are kept too.

    Raises:
        SourceError: The file cannot be read, or is no text.
    """
    if path.suffix.lower() == ".csv":
        table = understand(_read_csv(path), given, {}, keep=bool(wanted))
        return PublishedFile(os.fspath(path), None, (table,) if table else (), ())
    document = read_markdown(path)
    found = statements(document)
    tables = []
    unread = list(document.unread)
    for grid in document.grids:
        stated = stated_for(document, grid, found)
        table = understand(
            grid, {**stated.constants, **given}, stated.ambiguous, keep=bool(wanted), dp_is_gpus=stated.dp_is_gpus
        )
        if table is None:
            unread.append(f"line {grid.line}: no column of the table can be recomputed")
        else:
            tables.append(table)
    return PublishedFile(document.path, document, tuple(tables), tuple(unread))


def read_runs(path: Path) -> PublishedTable:
    """Read a CSV whatever it states.

    Raises:
        SourceError: It cannot be read.
    """
    table = understand(_read_csv(path), {}, {}, keep=True)
    assert table is not None
    return table


def understand(
    grid: Grid,
    constants: Mapping[Quantity, Constant],
    ambiguous: Mapping[Quantity, str],
    *,
    keep: bool = False,
    dp_is_gpus: bool = False,
) -> PublishedTable | None:
    """Read a table's figures; None where nothing in it can be recomputed or checked, unless it is to be kept."""
    headings = [cell.text for cell in grid.headings]
    understood = cells_of.understand(headings, grid.rows)
    places, notes = _places(understood, headings)
    rows = [
        row
        for line, cells in zip(grid.rows_lines, grid.rows, strict=True)
        if any(cell.text for cell in cells)
        for row in (_row(line, cells, headings, understood, places),)
    ]
    derived = any(quantity in places for quantity in DERIVED) or any(row.changes for row in rows)
    checkable = sum(quantity in places for quantity in _BATCH) > 1 and Quantity.GLOBAL_BATCH in places
    if not derived and not checkable and not keep and not _doubles_a_result(notes):
        return None
    if dp_is_gpus and Quantity.GPUS in places and Quantity.DATA_PARALLEL not in places:
        places = {**places, Quantity.DATA_PARALLEL: places[Quantity.GPUS]}
        rows = [_with_dp(row) for row in rows]
    return PublishedTable(
        grid.title, grid.line, tuple(headings), places, tuple(rows), dict(constants), dict(ambiguous), tuple(notes)
    )


def _doubles_a_result(notes: Sequence[str]) -> bool:
    """Whether a result stands in two columns: then the table is listed with that reason."""
    return any(note.endswith(f"both state {quantity}: neither is used") for note in notes for quantity in DERIVED)


def _places(understood: Sequence[Column], headings: Sequence[str]) -> tuple[dict[Quantity, int], list[str]]:
    places: dict[Quantity, int] = {}
    doubled: dict[Quantity, list[int]] = {}
    for index, column in enumerate(understood):
        if column.quantity is None:
            continue
        if column.quantity in places:
            doubled.setdefault(column.quantity, [places[column.quantity]]).append(index)
        else:
            places[column.quantity] = index
    notes = []
    for quantity, indices in doubled.items():
        names = " and ".join(f"{headings[index]!r}" for index in indices)
        del places[quantity]
        notes.append(f"the columns {names} both state {quantity}: neither is used")
    return places, notes


def _row(
    line: int,
    cells: Sequence[Cell],
    headings: Sequence[str],
    understood: Sequence[Column],
    places: Mapping[Quantity, int],
) -> Row:
    figures: dict[Quantity, Figure] = {}
    blanks: dict[Quantity, Span] = {}
    absent: dict[Quantity, str] = {}
    problems: dict[Quantity, str] = {}
    usable = _usable(cells, headings, problems)
    for quantity, index in places.items():
        if quantity in problems or index >= len(usable):
            problems.setdefault(quantity, "the row ends before this column")
        elif usable[index].text == "" and quantity in DERIVED:
            blanks[quantity] = usable[index].span
        elif usable[index].text.lower() in _ABSENT:
            absent[quantity] = usable[index].text or "the cell is empty"
        else:
            try:
                figures[quantity] = cells_of.read_figure(quantity, usable[index], understood[index].unit)
            except UsageError as error:
                problems[quantity] = error.problem
    numbers = tuple(cells_of.leading_number(cell) for cell in usable)
    changes = tuple(change for index, cell in enumerate(usable) for change in cells_of.changes(cell, index))
    group = tuple(
        _group_key(usable[index]) for index, column in enumerate(understood) if _groups(column, index, usable)
    )
    label = _label(usable, headings, understood, places) or " ".join(cell.text for cell in cells[:4] if cell.text)
    texts = tuple(cell.text for cell in cells)
    return Row(line, texts, label, group, figures, blanks, numbers, changes, absent, problems)


def _usable(cells: Sequence[Cell], headings: Sequence[str], problems: dict[Quantity, str]) -> Sequence[Cell]:
    """The row's cells, or none where a bar inside a cell has shifted them."""
    extra = [cell for cell in cells[len(headings) :] if cell.text]
    if not extra:
        return cells[: len(headings)]
    reason = f"the row has {len(cells)} cells under {len(headings)} headings: write a bar inside a cell as \\|"
    problems.update(dict.fromkeys(Quantity, reason))
    return ()


def _groups(column: Column, index: int, cells: Sequence[Cell]) -> bool:
    grouping = column.is_group or column.quantity in (Quantity.MICRO_BATCH, Quantity.PARAMETERS, Quantity.SEQ_LEN)
    return grouping and index < len(cells)


def _group_key(cell: Cell) -> str:
    """``16(max)`` and ``16`` are one batch size."""
    number = cells_of.leading_number(cell)
    return str(number.number) if number else cell.text


def _label(
    cells: Sequence[Cell], headings: Sequence[str], understood: Sequence[Column], places: Mapping[Quantity, int]
) -> str:
    named = [index for index, column in enumerate(understood) if column.is_label]
    chosen = named + [places[quantity] for quantity in _LABELS if quantity in places]
    parts = [f"{headings[i]} {cells[i].text}" for i in dict.fromkeys(chosen) if i < len(cells) and cells[i].text]
    return ", ".join(parts) or " ".join(cell.text for cell in cells[:4] if cell.text)


def _with_dp(row: Row) -> Row:
    gpus = row.figures.get(Quantity.GPUS)
    figures = {**row.figures, Quantity.DATA_PARALLEL: gpus} if gpus else row.figures
    return replace(row, figures=figures)


def _read_csv(path: Path) -> Grid:
    reader = csv.reader(read_text(path).removeprefix("\ufeff").splitlines())
    try:
        lines = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise SourceError(path, f"is no CSV: {error}") from None
    if not lines:
        raise SourceError(path, "is empty")
    rows = [tuple(Cell(text.strip(), Span(number, 0, 0)) for text in row) for number, row in lines]
    numbers = [number for number, _ in lines]
    return Grid(
        path.stem.replace("_", " ").capitalize(), numbers[0], numbers[-1], rows[0], tuple(rows[1:]), tuple(numbers[1:])
    )
