"""Published tables with recomputed cells: in place, where every other byte stays, or as tables of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.regenerate.published import (
    CellVerdict,
    CheckedCell,
    CheckedTables,
    Contradiction,
    NotComputable,
    check_tables,
    find_baselines,
    find_contradictions,
    format_rounded,
    leave_conventions,
    recompute,
)
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.sources.published.markdown import MarkdownDocument
from perfscope.sources.published.tables import PublishedFile, read_published
from perfscope.tables.published import Constant, PublishedRow, PublishedTable, Quantity
from perfscope.units import format_count


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A markdown file, the text around its tables, their recomputed cells, and the rows that contradict themselves."""

    file: PublishedFile
    document: MarkdownDocument
    tables: CheckedTables
    contradictions: tuple[Contradiction, ...]

    @property
    def differs(self) -> bool:
        """Whether a cell cannot be right, or a row contradicts itself."""
        return bool(self.tables.unfounded or self.contradictions)


def check_file(path: Path, constants: Mapping[Quantity, Constant], peak_tflops: float | None) -> CheckedFile:
    """Recompute the cells of a file; nothing is written.

    Raises:
        SourceError: The file cannot be read, or contains no table that can be recomputed.
    """
    file = read_published(path, constants)
    if not file.tables or file.document is None:
        raise SourceError(path, "contains no table that can be recomputed", hint=_explain_unread(file))
    tables = leave_conventions(check_tables(file.tables, peak_tflops))
    return CheckedFile(file, file.document, tables, find_contradictions(file.tables))


def _explain_unread(file: PublishedFile) -> str:
    if file.document is None:
        return "refresh changes markdown; a block `report table` reads CSV"
    return (
        "; ".join(file.unread)
        or "a table needs a column such as TFLOPs, speed-up or efficiency, and what it is computed from"
    )


def write_cells(path: Path, checked: CheckedFile) -> None:
    """Replace the cells of a file that cannot be right by their recomputed values."""
    if checked.tables.unfounded:
        content = replace_cells(checked.document, checked.tables.unfounded)
        replace_file(path, content.encode("utf-8", "surrogateescape"))


def replace_cells(document: MarkdownDocument, cells: Sequence[CheckedCell]) -> str:
    """The document's text with the recomputed digits instead of the published ones; an empty cell keeps its width."""
    lines = list(document.lines)
    for cell in sorted(cells, key=lambda cell: (cell.span.line, cell.span.start), reverse=True):
        line = lines[cell.span.line - 1]
        width = cell.span.end - cell.span.start
        text = cell.text.rjust(width) if cell.verdict is CellVerdict.MISSING else cell.text
        lines[cell.span.line - 1] = line[: cell.span.start] + text + line[cell.span.end :]
    return "".join(lines)


_VERDICTS_EXPLAINED = (
    "`rounded`: right to its own digits. `truncated`: digits were cut off. `from unrounded inputs`: right if a time or "
    "rate beside it is itself rounded or cut off, and left alone. `wrong`: none of these. `other convention`: its "
    "whole column differs, and is left alone. `missing`: empty, though it can be computed."
)


def report_file(checked: CheckedFile, *, written: bool) -> Report:
    """The neutral document; ``written`` says whether the recomputed cells replaced the published ones."""
    file, tables = checked.file, checked.tables
    counts = {str(verdict): sum(cell.verdict is verdict for cell in tables.cells) for verdict in CellVerdict}
    data: dict[str, Json] = {
        "schema": "perfscope/refresh/1",
        "file": file.path,
        "written": written and bool(tables.unfounded),
        "tables": len(file.tables),
        "counts": counts,
        "results": {
            "cells": [cell_data(cell) for cell in tables.cells],
            "contradictions": [
                {"table": row.table_title, "line": row.line, "row": row.row, "problem": row.problem}
                for row in checked.contradictions
            ],
            "not_recomputed": [
                {"line": cell.line, "row": cell.row, "column": cell.column, "reason": cell.reason}
                for cell in tables.uncheckable
            ],
        },
        "constants": _constants(file),
        "assumed": list(tables.assumed),
        "not_read": [*file.unread, *_table_notes(file)],
    }
    title = (
        f"{file.path}: {format_count(len(tables.cells), 'cell')} in {format_count(len(file.tables), 'table')}, "
        f"{len(tables.unfounded)} {'rewritten' if written else 'different'}; "
        f"{format_count(len(checked.contradictions), 'contradiction')}"
    )
    sections = tuple(_sections(checked, counts, written=written))
    warnings = (
        *(f"assumed {line}: no column, text or option states it" for line in tables.assumed),
        *tables.conventions,
    )
    return Report(title, data, sections, warnings)


def cell_data(cell: CheckedCell) -> dict[str, Json]:
    """The JSON of a checked cell."""
    return {
        "table": cell.table_title,
        "table_line": cell.table_line,
        "line": cell.line,
        "row": cell.row,
        "column": cell.column,
        "quantity": cell.quantity,
        "published": cell.published or None,
        "recomputed": float(cell.recomputed),
        "text": cell.text,
        "verdict": str(cell.verdict),
    }


def _sections(checked: CheckedFile, counts: Mapping[str, int], *, written: bool) -> list[Section]:
    tables, contradictions = checked.tables, checked.contradictions
    verdicts = tuple(counts.items())
    sections = [Section("Verdicts", (Column("Verdict"), Column("Cells")), verdicts, notes=(_VERDICTS_EXPLAINED,))]
    if tables.unfounded:
        sections.append(_differences("Rewritten cells" if written else "Cells that differ", tables.unfounded))
    if contradictions:
        sections.append(
            Section(
                "Rows that contradict themselves",
                (Column("Line"), Column("Table"), Column("Row"), Column("Problem")),
                tuple((str(row.line), row.table_title, row.row, row.problem) for row in contradictions),
                notes=("They are never changed: the row does not show which of its columns is wrong.",),
            )
        )
    if tables.uncheckable:
        sections.append(
            Section(
                "Not recomputed",
                (Column("Line"), Column("Row"), Column("Column"), Column("Reason")),
                tuple((str(cell.line), cell.row, cell.column, cell.reason) for cell in tables.uncheckable),
            )
        )
    unread = (*checked.file.unread, *_table_notes(checked.file))
    return [*sections, Section("Not read", notes=unread)] if unread else sections


def _differences(title: str, cells: Sequence[CheckedCell]) -> Section:
    columns = ("Line", "Table", "Row", "Column", "Published", "Recomputed", "Exact", "Verdict")
    rows = tuple(
        (
            str(cell.line),
            cell.table_title,
            cell.row,
            cell.column,
            cell.published or None,
            cell.text,
            f"{float(cell.recomputed):.5f}",
            str(cell.verdict),
        )
        for cell in cells
    )
    return Section(title, tuple(Column(name) for name in columns), rows)


def _constants(file: PublishedFile) -> list[Json]:
    return [
        {"table_line": table.line, "quantity": str(quantity), "value": constant.value, "origin": constant.origin}
        for table in file.tables
        for quantity, constant in table.constants.items()
        if quantity not in table.columns
    ]


def _table_notes(file: PublishedFile) -> list[str]:
    return [f"line {table.line}: {note}" for table in file.tables for note in table.notes]


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
