"""The reports of ``report table`` in a block: tables with recomputed cells, added columns and a verdict on each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from perfscope.analyzers.published.check import (
    CheckedCell,
    CheckedTables,
    Contradiction,
    check_tables,
    find_contradictions,
    format_rounded,
)
from perfscope.analyzers.published.derived import NotComputable, find_baselines, recompute
from perfscope.errors import SourceError
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.sources.published.tables import read_published
from perfscope.tables.published import Constant, PublishedTable, Quantity, Row
from perfscope.units import format_count


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column that ``--add`` computes.

    Attributes:
        quantity: What it states.
        heading: Its heading, with the unit.
        unit: What a printed 1 is worth.
        decimals: How many digits after the point its cells show.
    """

    quantity: Quantity
    heading: str
    unit: Fraction
    decimals: int


#: The columns that ``--add`` can compute, by the name that is typed.
ADDED_COLUMNS: Mapping[str, AddedColumn] = {
    "tflops": AddedColumn(Quantity.TFLOPS, "TFLOPs per GPU", Fraction(1), 1),
    "speed-up": AddedColumn(Quantity.SPEEDUP, "Speed-up", Fraction(1), 2),
    "efficiency": AddedColumn(Quantity.EFFICIENCY, "Efficiency (%)", Fraction(1, 100), 1),
    "save-speed": AddedColumn(Quantity.SAVE_SPEED, "Save (GB/s)", Fraction(1), 1),
    "memory-share": AddedColumn(Quantity.MEMORY_SHARE, "Memory used (%)", Fraction(1, 100), 1),
}


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """A file's tables, their recomputed cells, and their rows that contradict themselves."""

    path: Path
    tables: Sequence[PublishedTable]
    checked: CheckedTables
    contradictions: Sequence[Contradiction]


@dataclass(frozen=True, slots=True)
class _CheckedTable:
    """One table of a file, with what belongs to its rows.

    Attributes:
        table: The table.
        cells: Its recomputed cells.
        contradictions: Its rows that contradict themselves.
        notes: Sentences about constants, assumptions and cells that cannot be recomputed.
        added: The columns to add, by their typed name.
    """

    table: PublishedTable
    cells: Sequence[CheckedCell]
    contradictions: Sequence[Contradiction]
    notes: tuple[str, ...]
    added: Mapping[str, AddedColumn]

    @property
    def has_verdicts(self) -> bool:
        """Whether any row can be judged."""
        return bool(self.cells or self.contradictions)


def report_tables(
    paths: Sequence[Path], constants: Mapping[Quantity, Constant], peak_tflops: float | None, added: Sequence[str]
) -> Report:
    """Tables with their recomputed cells.

    Args:
        paths: CSV or markdown files.
        constants: Values that hold for every table, whatever its text states.
        peak_tflops: The GPU's dense peak, for columns with a share of it.
        added: Names of ``ADDED_COLUMNS``.

    Raises:
        SourceError: A file contains no table that can be recomputed.
    """
    columns = {name: ADDED_COLUMNS[name] for name in added}
    tables = [
        (file.path, _check_table(file, table, columns))
        for file in _check_files(paths, constants, peak_tflops, columns)
        for table in file.tables
    ]
    rows = sum(len(checked.table.rows) for _, checked in tables)
    differing = sum(not cell.agrees for _, checked in tables for cell in checked.cells)
    data: dict[str, Json] = {
        "schema": "perfscope/table/1",
        "results": {"tables": [{"file": str(path), **_table_data(checked)} for path, checked in tables]},
    }
    title = f"{format_count(rows, 'row')}, {differing} of the cells different"
    return Report(title, data, tuple(_table_section(checked) for _, checked in tables))


def report_differences(
    paths: Sequence[Path], constants: Mapping[Quantity, Constant], peak_tflops: float | None
) -> Report:
    """Only the cells that differ from their recomputed values, and the rows that contradict themselves.

    Raises:
        SourceError: A file contains no table that can be recomputed.
    """
    files = list(_check_files(paths, constants, peak_tflops, {}))
    cells: list[tuple[Cell, ...]] = [
        (
            cell.table_title,
            cell.row,
            cell.column,
            cell.published or None,
            cell.text,
            str(cell.verdict),
            cell.why or None,
        )
        for file in files
        for cell in file.checked.differences
    ]
    contradictions: list[tuple[Cell, ...]] = [
        (row.table_title, row.row, row.problem) for file in files for row in file.contradictions
    ]
    names = ("Table", "Row", "Column", "Published", "Recomputed", "Verdict", "Why")
    sections = (
        Section("Cells that differ", tuple(Column(name) for name in names), tuple(cells)),
        Section(
            "Rows that contradict themselves",
            (Column("Table"), Column("Row"), Column("Problem")),
            tuple(contradictions),
        ),
    )
    data: dict[str, Json] = {
        "schema": "perfscope/differences/1",
        "results": {"cells": [list(row) for row in cells], "contradictions": [list(row) for row in contradictions]},
    }
    count = format_count(sum(len(file.checked.cells) for file in files), "cell")
    title = f"{count}, {len(cells)} different; {format_count(len(contradictions), 'contradiction')}"
    return Report(title, data, tuple(section for section in sections if section.rows))


def _check_files(
    paths: Sequence[Path],
    constants: Mapping[Quantity, Constant],
    peak_tflops: float | None,
    added: Mapping[str, AddedColumn],
) -> Iterator[_CheckedFile]:
    for path in paths:
        file = read_published(path, constants, added=[column.quantity for column in added.values()])
        if not file.tables:
            raise SourceError(path, "contains no table that can be recomputed", hint="; ".join(file.unread[:3]) or None)
        yield _CheckedFile(path, file.tables, check_tables(file.tables, peak_tflops), find_contradictions(file.tables))


def _check_table(file: _CheckedFile, table: PublishedTable, added: Mapping[str, AddedColumn]) -> _CheckedTable:
    lines = {row.line for row in table.rows}
    return _CheckedTable(
        table,
        [cell for cell in file.checked.cells if cell.table_line == table.line],
        [row for row in file.contradictions if row.line in lines],
        _notes(file.checked, table, lines),
        {name: column for name, column in added.items() if column.quantity not in table.columns},
    )


def _notes(checked: CheckedTables, table: PublishedTable, lines: set[int]) -> tuple[str, ...]:
    constants = [
        f"{quantity} {constant.value} ({constant.origin})"
        for quantity, constant in table.constants.items()
        if quantity not in table.columns
    ]
    stated = [f"Constants: {', '.join(constants)}."] if constants else []
    assumed = [f"Assumed: {constant}." for constant in checked.assumed]
    unknown = [
        f"{cell.row}: {cell.column} cannot be recomputed, {cell.reason}"
        for cell in checked.uncheckable
        if cell.line in lines
    ]
    return (*stated, *assumed, *unknown, *table.notes)


def _table_section(checked: _CheckedTable) -> Section:
    table = checked.table
    recomputed = {cell.column: _recomputed_heading(cell) for cell in checked.cells}
    columns = [Column(heading) for heading in (*table.headings, *recomputed.values())]
    columns += [Column(column.heading, column.decimals) for column in checked.added.values()]
    if checked.has_verdicts:
        columns.append(Column("Verdict"))
    rows: list[tuple[Cell, ...]] = []
    for row, baseline in zip(table.rows, find_baselines(table), strict=True):
        cells = [cell for cell in checked.cells if cell.line == row.line]
        texts: list[Cell] = [*_pad(row, table)]
        texts += [" ".join(cell.text for cell in cells if cell.column == heading) or None for heading in recomputed]
        texts += [_compute_added(table, row, baseline, column) for column in checked.added.values()]
        if checked.has_verdicts:
            problems = [
                contradiction.problem for contradiction in checked.contradictions if contradiction.line == row.line
            ]
            texts.append(_verdict(cells, problems))
        rows.append(tuple(texts))
    return Section(table.title, tuple(columns), tuple(rows), checked.notes)


def _recomputed_heading(cell: CheckedCell) -> str:
    return f"{cell.column}, change recomputed" if cell.quantity.startswith("change") else f"{cell.column}, recomputed"


def _pad(row: Row, table: PublishedTable) -> Sequence[str]:
    """The cells of a row, as many as there are headings."""
    return [*row.cells, *[""] * len(table.headings)][: len(table.headings)]


def _compute_added(table: PublishedTable, row: Row, baseline: Row | None, column: AddedColumn) -> str | None:
    """An added cell as text, so that its digits are exact; None if it cannot be computed."""
    try:
        value = recompute(table, row, column.quantity, baseline, None).value
    except NotComputable:
        return None
    return format_rounded(value / column.unit, column.decimals)


def _verdict(cells: Sequence[CheckedCell], problems: Sequence[str]) -> str | None:
    texts = [
        f"{cell.column}: {cell.verdict}{f' ({cell.why})' if cell.why else ''}" for cell in cells if not cell.agrees
    ]
    texts += [f"contradicts itself: {problem}" for problem in problems]
    return "; ".join(texts) or ("agrees" if cells else None)


def _table_data(checked: _CheckedTable) -> dict[str, Json]:
    table = checked.table
    return {
        "title": table.title,
        "headings": list(table.headings),
        "rows": [
            {
                "line": row.line,
                "cells": list(row.cells),
                "added": {name: _compute_added(table, row, baseline, column) for name, column in checked.added.items()},
            }
            for row, baseline in zip(table.rows, find_baselines(table), strict=True)
        ],
        "cells": [
            {
                "line": cell.line,
                "column": cell.column,
                "published": cell.published or None,
                "recomputed": float(cell.recomputed),
                "text": cell.text,
                "verdict": str(cell.verdict),
                "why": cell.why or None,
            }
            for cell in checked.cells
        ],
        "contradictions": [{"line": row.line, "problem": row.problem} for row in checked.contradictions],
    }
