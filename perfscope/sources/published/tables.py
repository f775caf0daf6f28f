"""Markdown and CSV files as published tables: the quantity of every column, and the figures of every row."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import SourceError, UsageError
from perfscope.files import read_text
from perfscope.sources.published.cells import leading_number, read_changes, read_figure
from perfscope.sources.published.headings import ColumnMeaning, describe_columns
from perfscope.sources.published.markdown import Cell, Grid, MarkdownDocument, read_markdown
from perfscope.sources.published.stated import find_statements, select_constants
from perfscope.tables.published import (
    DERIVED,
    Constant,
    PrintedFigure,
    PublishedRow,
    PublishedTable,
    Quantity,
    TextSpan,
)

_LABELS = (
    Quantity.GPUS,
    Quantity.NODES,
    Quantity.PARAMETERS,
    Quantity.MICRO_BATCH,
    Quantity.GLOBAL_BATCH,
    Quantity.STEP_TIME,
    Quantity.RATE,
)
_LABEL_CELLS = 4  # of a row without a column that names it
_ABSENT = frozenset(
    {"", "-", "--", "—", "n/a", "na", "none", "tbd", "todo", "?", "x", "xx", "xxx", "xxxx", "oom", "fail", "failed"}
)
_BATCH = (Quantity.MICRO_BATCH, Quantity.ACCUMULATION, Quantity.GLOBAL_BATCH)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """The tables of a file that can be recomputed or checked; CSV has no document around them.

    ``unread`` names, in words, what only looks like a table, and tables without a column that can be recomputed.
    """

    path: str
    document: MarkdownDocument | None
    tables: tuple[PublishedTable, ...]
    unread: tuple[str, ...]


def read_published(path: Path, constants: Mapping[Quantity, Constant], added: Sequence[Quantity] = ()) -> PublishedFile:
    """Read the tables of a markdown file, or the one of a CSV file.

    ``constants`` hold for every table, whatever its text states. With derived quantities that will be ``added``, tables
    without a derived column are read, too.

    Raises:
        SourceError: The file cannot be read, or is no text.
    """
    if path.suffix.lower() == ".csv":
        table = read_table(_read_csv(path), constants, {}, required=bool(added))
        return PublishedFile(os.fspath(path), None, (table,) if table else (), ())
    document = read_markdown(path)
    statements = find_statements(document)
    tables = []
    unread = list(document.unread)
    for grid in document.grids:
        stated = select_constants(document, grid, statements)
        table = read_table(
            grid,
            {**stated.constants, **constants},
            stated.ambiguous,
            required=bool(added),
        )
        if table is None:
            unread.append(f"line {grid.line}: no column of the table can be recomputed")
        else:
            tables.append(table)
    return PublishedFile(document.path, document, tuple(tables), tuple(unread))


def read_table(
    grid: Grid,
    constants: Mapping[Quantity, Constant],
    ambiguous: Mapping[Quantity, str],
    *,
    required: bool = False,
) -> PublishedTable | None:
    """Read a table's figures; None if nothing in it can be recomputed or checked, unless the table is required."""
    headings = [cell.text for cell in grid.headings]
    columns = describe_columns(headings, grid.rows)
    indices, notes = _index_quantities(columns, headings)
    rows = [
        _read_row(line, cells, headings, columns, indices)
        for line, cells in zip(grid.row_lines, grid.rows, strict=True)
        if any(cell.text for cell in cells)
    ]
    derived = any(quantity in indices for quantity in DERIVED) or any(row.changes for row in rows)
    checkable = sum(quantity in indices for quantity in _BATCH) > 1 and Quantity.GLOBAL_BATCH in indices
    if not derived and not checkable and not required and not _has_ambiguous_result(notes):
        return None
    return PublishedTable(
        grid.title, grid.line, tuple(headings), indices, tuple(rows), dict(constants), dict(ambiguous), tuple(notes)
    )


def _has_ambiguous_result(notes: Sequence[str]) -> bool:
    """Whether two columns state one derived quantity: then the table is listed with that reason."""
    return any(note.endswith(f"both state {quantity}: neither is used") for note in notes for quantity in DERIVED)


def _index_quantities(
    columns: Sequence[ColumnMeaning], headings: Sequence[str]
) -> tuple[dict[Quantity, int], list[str]]:
    """The column of each quantity, and notes about quantities of two columns."""
    indices: dict[Quantity, int] = {}
    doubled: dict[Quantity, list[int]] = {}
    for index, column in enumerate(columns):
        if column.quantity is None:
            continue
        if column.quantity in indices:
            doubled.setdefault(column.quantity, [indices[column.quantity]]).append(index)
        else:
            indices[column.quantity] = index
    notes = []
    for quantity, repeated in doubled.items():
        names = " and ".join(f"{headings[index]!r}" for index in repeated)
        del indices[quantity]
        notes.append(f"the columns {names} both state {quantity}: neither is used")
    return indices, notes


def _read_row(
    line: int,
    cells: Sequence[Cell],
    headings: Sequence[str],
    columns: Sequence[ColumnMeaning],
    indices: Mapping[Quantity, int],
) -> PublishedRow:
    figures: dict[Quantity, PrintedFigure] = {}
    blanks: dict[Quantity, TextSpan] = {}
    absent: dict[Quantity, str] = {}
    problems: dict[Quantity, str] = {}
    usable = _take_cells(cells, headings, problems)
    for quantity, index in indices.items():
        if quantity in problems or index >= len(usable):
            problems.setdefault(quantity, "the row ends before this column")
        elif usable[index].text == "" and quantity in DERIVED:
            blanks[quantity] = usable[index].span
        elif usable[index].text.lower() in _ABSENT:
            absent[quantity] = usable[index].text or "the cell is empty"
        else:
            try:
                figures[quantity] = read_figure(quantity, usable[index], columns[index].unit)
            except UsageError as error:
                problems[quantity] = error.problem
    numbers = tuple(leading_number(cell) for cell in usable)
    changes = tuple(change for index, cell in enumerate(usable) for change in read_changes(cell, index))
    group = tuple(
        _group_key(usable[index])
        for index, column in enumerate(columns)
        if index < len(usable) and _separates_groups(column)
    )
    label = _label(usable, headings, columns, indices) or _first_texts(cells)
    texts = tuple(cell.text for cell in cells)
    return PublishedRow(line, texts, label, group, figures, blanks, numbers, changes, absent, problems)


def _take_cells(cells: Sequence[Cell], headings: Sequence[str], problems: dict[Quantity, str]) -> Sequence[Cell]:
    """The cells of the row, or none if a bar inside a cell has shifted them."""
    extra = [cell for cell in cells[len(headings) :] if cell.text]
    if not extra:
        return cells[: len(headings)]
    reason = f"the row has {len(cells)} cells under {len(headings)} headings: write a bar inside a cell as \\|"
    problems.update(dict.fromkeys(Quantity, reason))
    return ()


def _separates_groups(column: ColumnMeaning) -> bool:
    """Whether rows that differ in this column have no common baseline."""
    return column.is_group or column.quantity in (Quantity.MICRO_BATCH, Quantity.PARAMETERS, Quantity.SEQ_LEN)


def _group_key(cell: Cell) -> str:
    """``16(max)`` and ``16`` are one batch size."""
    number = leading_number(cell)
    return str(number.number) if number else cell.text


def _label(
    cells: Sequence[Cell], headings: Sequence[str], columns: Sequence[ColumnMeaning], indices: Mapping[Quantity, int]
) -> str:
    labels = [index for index, column in enumerate(columns) if column.is_label]
    labels += [indices[quantity] for quantity in _LABELS if quantity in indices]
    parts = [f"{headings[i]} {cells[i].text}" for i in dict.fromkeys(labels) if i < len(cells) and cells[i].text]
    return ", ".join(parts) or _first_texts(cells)


def _first_texts(cells: Sequence[Cell]) -> str:
    return " ".join(cell.text for cell in cells[:_LABEL_CELLS] if cell.text)


def _read_csv(path: Path) -> Grid:
    reader = csv.reader(read_text(path).removeprefix("\ufeff").splitlines())
    try:
        lines = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise SourceError(path, f"is not CSV: {error}") from None
    if not lines:
        raise SourceError(path, "is empty")
    rows = [tuple(Cell(text.strip(), TextSpan(number, 0, 0)) for text in row) for number, row in lines]
    numbers = [number for number, _ in lines]
    return Grid(
        path.stem.replace("_", " ").capitalize(), numbers[0], numbers[-1], rows[0], tuple(rows[1:]), tuple(numbers[1:])
    )
