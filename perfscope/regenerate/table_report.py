"""The reports of ``report table`` in a block: tables with recomputed cells, added columns and a verdict on each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import SourceError
from perfscope.regenerate.published.check import (
    CheckedCell,
    CheckedTables,
    Contradiction,
    check_tables,
    find_contradictions,
    format_rounded,
)
from perfscope.regenerate.published.derived import NotComputable, find_baselines, recompute
from perfscope.regenerate.refresh import cell_data
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.sources.published.tables import read_published
from perfscope.tables.published import Constant, PublishedRow, PublishedTable, Quantity
from perfscope.units import format_count


class AddedColumn(NamedTuple):
    """A column that ``--add`` computes: its quantity, its heading, what a printed 1 is worth, and its decimals."""

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


class _File(NamedTuple):
    tables: Sequence[PublishedTable]
    checked: CheckedTables
    contradictions: Sequence[Contradiction]


def report_tables(
    paths: Sequence[Path], constants: Mapping[Quantity, Constant], peak_tflops: float | None, added: Sequence[str]
) -> Report:
    """Tables of CSV or markdown files with their recomputed cells, and the columns ``added`` by their names.

    Raises:
        SourceError: A file contains no table that can be recomputed.
    """
    columns = {name: ADDED_COLUMNS[name] for name in added}
    tables = [(file, table) for file in _check_files(paths, constants, peak_tflops, columns) for table in file.tables]
    sections, data = [], []
    for file, table in tables:
        section, entry = _describe(file, table, columns)
        sections.append(section)
        data.append(entry)
    rows = sum(len(table.rows) for _, table in tables)
    differing = sum(
        not cell.agrees for file, table in tables for cell in file.checked.cells if cell.table_line == table.line
    )
    title = f"{format_count(rows, 'row')}, {differing} of the cells different"
    return Report(title, {"schema": "perfscope/table/1", "results": {"tables": data}}, tuple(sections))


def _check_files(
    paths: Sequence[Path],
    constants: Mapping[Quantity, Constant],
    peak_tflops: float | None,
    added: Mapping[str, AddedColumn],
) -> Iterator[_File]:
    for path in paths:
        file = read_published(path, constants, added=[column.quantity for column in added.values()])
        if not file.tables:
            raise SourceError(path, "contains no table that can be recomputed", hint="; ".join(file.unread[:3]) or None)
        yield _File(file.tables, check_tables(file.tables, peak_tflops), find_contradictions(file.tables))


def _describe(file: _File, table: PublishedTable, columns: Mapping[str, AddedColumn]) -> tuple[Section, Json]:
    lines = {row.line for row in table.rows}
    checked = [cell for cell in file.checked.cells if cell.table_line == table.line]
    contradictions = [row for row in file.contradictions if row.line in lines]
    added = {name: column for name, column in columns.items() if column.quantity not in table.columns}
    recomputed = {
        cell.column: f"{cell.column}, {'change ' if cell.quantity.startswith('change') else ''}recomputed"
        for cell in checked
    }
    headings = [Column(heading) for heading in (*table.headings, *recomputed.values())]
    headings += [Column(column.heading, column.decimals) for column in added.values()]
    has_verdicts = bool(checked or contradictions)
    rows: list[tuple[Cell, ...]] = []
    entries: list[Json] = []
    for row, baseline in zip(table.rows, find_baselines(table), strict=True):
        cells = [cell for cell in checked if cell.line == row.line]
        computed = {name: _compute_added(table, row, baseline, column) for name, column in added.items()}
        texts: list[Cell] = list((*row.cells, *[""] * len(table.headings))[: len(table.headings)])
        texts += [" ".join(cell.text for cell in cells if cell.column == heading) or None for heading in recomputed]
        verdict = _verdict(cells, [each.problem for each in contradictions if each.line == row.line])
        rows.append((*texts, *computed.values(), *((verdict,) if has_verdicts else ())))
        entries.append({"line": row.line, "cells": list(row.cells), "added": computed})
    if has_verdicts:
        headings.append(Column("Verdict"))
    data: Json = {"title": table.title, "rows": entries, "cells": [cell_data(cell) for cell in checked]}
    return Section(table.title, tuple(headings), tuple(rows), _notes(file.checked, table, lines)), data


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


def _compute_added(
    table: PublishedTable, row: PublishedRow, baseline: PublishedRow | None, column: AddedColumn
) -> str | None:
    """An added cell as text, so that its digits are exact; None if it cannot be computed."""
    try:
        value = recompute(table, row, column.quantity, baseline, None).value
    except NotComputable:
        return None
    return format_rounded(value / column.unit, column.decimals)


def _verdict(cells: Sequence[CheckedCell], problems: Sequence[str]) -> str | None:
    texts = [f"{cell.column}: {cell.verdict}" for cell in cells if not cell.agrees]
    texts += [f"contradicts itself: {problem}" for problem in problems]
    return "; ".join(texts) or ("agrees" if cells else None)
