"""Recompute the derived cells of a markdown file in place; every other byte stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfscope.analyzers.published.check import CheckedCell, Published, Verdict, of_another_convention
from perfscope.analyzers.published.check import analyze as check_tables
from perfscope.analyzers.published.contradictions import Contradiction
from perfscope.analyzers.published.contradictions import analyze as find_contradictions
from perfscope.errors import ExitCode, SourceError
from perfscope.files import replace_file
from perfscope.outcome import Outcome
from perfscope.renderers import Format
from perfscope.report import Column, Json, Report, Section
from perfscope.sources.published.markdown import Document
from perfscope.sources.published.tables import PublishedFile, read_published
from perfscope.tables.published import Constant, Quantity
from perfscope.units import format_count

_FEW = 3


def refresh_file(
    path: Path, given: Mapping[Quantity, Constant], peak_tflops: float | None, *, check: bool, to: Format
) -> Outcome:
    """Check a file's tables, and write the recomputed cells unless only a check is wanted.

    Raises:
        SourceError: The file cannot be read or written, or holds no table that can be recomputed.
    """
    file = read_published(path, given)
    if not file.tables or file.document is None:
        raise SourceError(path, "holds no table that can be recomputed", hint=_what_is_missing(file))
    published = check_tables(file.tables, peak_tflops)
    contradictions = find_contradictions(file.tables)
    if published.differences and not check:
        content = apply_cells(file.document, published.differences)
        replace_file(path, content.encode("utf-8", "surrogateescape"))
    report = to_report(file, published, contradictions, written=not check)
    differs = bool(published.differences or contradictions)
    return Outcome(
        report,
        to,
        notes=tuple(f"warning: {line}" for line in report.warnings),
        exit_code=ExitCode.DIFFERENCE if check and differs else ExitCode.OK,
    )


def _what_is_missing(file: PublishedFile) -> str:
    if file.document is None:
        return "refresh changes markdown; `report table` reads CSV"
    return (
        "; ".join(file.unread)
        or "a table needs a column such as TFLOPs, speed-up or efficiency, and what it is computed from"
    )


def apply_cells(document: Document, cells: Sequence[CheckedCell]) -> str:
    """Put the recomputed digits in the place of the published ones; an empty cell keeps its width."""
    lines = list(document.lines)
    for cell in sorted(cells, key=lambda cell: (cell.span.line, cell.span.start), reverse=True):
        line = lines[cell.span.line - 1]
        width = cell.span.end - cell.span.start
        text = cell.text.rjust(width) if cell.verdict is Verdict.MISSING else cell.text
        lines[cell.span.line - 1] = line[: cell.span.start] + text + line[cell.span.end :]
    return "".join(lines)


def to_report(
    file: PublishedFile, published: Published, contradictions: Sequence[Contradiction], *, written: bool
) -> Report:
    """Write what was found as the neutral document."""
    counts = {str(verdict): sum(cell.verdict is verdict for cell in published.cells) for verdict in Verdict}
    data: dict[str, Json] = {
        "schema": "perfscope/refresh/1",
        "file": file.path,
        "written": written and bool(published.differences),
        "tables": len(file.tables),
        "counts": counts,
        "results": {
            "cells": [_cell_data(cell) for cell in published.cells],
            "contradictions": [
                {"table": one.table_title, "line": one.line, "row": one.row, "problem": one.problem}
                for one in contradictions
            ],
            "not_recomputed": [
                {"line": one.line, "row": one.row, "column": one.column, "reason": one.reason}
                for one in published.uncheckable
            ],
        },
        "constants": _constants(file),
        "assumed": list(published.assumed),
        "not_read": [*file.unread, *_table_notes(file)],
    }
    title = (
        f"{file.path}: {format_count(len(published.cells), 'cell')} in {format_count(len(file.tables), 'table')}, "
        f"{len(published.differences)} {'rewritten' if written else 'different'}; "
        f"{format_count(len(contradictions), 'contradiction')}"
    )
    sections = (*_sections(published, contradictions, counts, written=written), *_notes(file, published))
    warnings = (
        *(f"assumed {line}: no column, text or option states it" for line in published.assumed),
        *of_another_convention(published),
    )
    return Report(title, data, sections, warnings)


def _cell_data(cell: CheckedCell) -> dict[str, Json]:
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
        "why": cell.why or None,
    }


def _sections(
    published: Published, contradictions: Sequence[Contradiction], counts: Mapping[str, int], *, written: bool
) -> list[Section]:
    sections = [
        Section(
            "Verdicts",
            (Column("Verdict"), Column("Cells")),
            tuple((verdict, count) for verdict, count in counts.items()),
            notes=(_VERDICTS_EXPLAINED,),
        )
    ]
    if published.differences:
        columns = ("Line", "Table", "Row", "Column", "Published", "Recomputed", "Exact", "Verdict", "Why")
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
                cell.why,
            )
            for cell in published.differences
        )
        title = "Rewritten cells" if written else "Cells that differ"
        sections.append(Section(title, tuple(Column(name) for name in columns), rows))
    if contradictions:
        sections.append(
            Section(
                "Rows that contradict themselves",
                (Column("Line"), Column("Table"), Column("Row"), Column("Problem")),
                tuple((str(one.line), one.table_title, one.row, one.problem) for one in contradictions),
                notes=("They are never changed: which of the columns is wrong cannot be told from the row.",),
            )
        )
    if published.uncheckable:
        sections.append(
            Section(
                "Not recomputed",
                (Column("Line"), Column("Row"), Column("Column"), Column("Reason")),
                tuple((str(one.line), one.row, one.column, one.reason) for one in published.uncheckable),
            )
        )
    return sections


_VERDICTS_EXPLAINED = (
    "`rounded`: right to its own digits. `truncated`: digits were cut off. `from unrounded inputs`: right if a time or "
    "rate beside it is itself rounded or cut off. `wrong`: none of these. `missing`: empty, though it can be computed."
)


def _constants(file: PublishedFile) -> list[Json]:
    return [
        {"table_line": table.line, "quantity": str(quantity), "value": constant.value, "origin": constant.origin}
        for table in file.tables
        for quantity, constant in table.constants.items()
        if quantity not in table.columns
    ]


def _table_notes(file: PublishedFile) -> list[str]:
    return [f"line {table.line}: {note}" for table in file.tables for note in table.notes]


def _notes(file: PublishedFile, published: Published) -> list[Section]:
    used: dict[str, list[str]] = {}
    for table in file.tables:
        for quantity, constant in table.constants.items():
            if quantity not in table.columns:
                used.setdefault(f"{quantity} {constant.value} ({constant.origin})", []).append(str(table.line))
    lines = [f"{constant} for the tables at lines {', '.join(where)}" for constant, where in used.items()]
    lines.extend(f"{line} for tables without it" for line in published.assumed)
    sections = [Section("Constants", notes=tuple(lines))] if lines else []
    unread = (*file.unread, *_table_notes(file))
    if unread:
        sections.append(Section("Not read", notes=tuple(unread)))
    return sections
