"""Recompute the derived cells of a markdown file in place; every other byte stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.regenerate.published.check import (
    CellVerdict,
    CheckedCell,
    CheckedTables,
    Contradiction,
    check_tables,
    find_contradictions,
    leave_conventions,
)
from perfscope.report import Column, Json, Report, Section
from perfscope.sources.published.markdown import MarkdownDocument
from perfscope.sources.published.tables import PublishedFile, read_published
from perfscope.tables.published import Constant, Quantity
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


def to_report(checked: CheckedFile, *, written: bool) -> Report:
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
