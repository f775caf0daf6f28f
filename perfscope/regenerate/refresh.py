"""Published tables with recomputed cells: in place, where every other byte stays, or as tables of a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import msgspec

from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.models.hardware import Gpu
from perfscope.regenerate.published import (
    CellVerdict,
    CheckedCell,
    CheckedTables,
    check_tables,
    format_rounded,
    leave_conventions,
)
from perfscope.regenerate.recomputation import NotComputable, find_baselines, recompute
from perfscope.report import Cell, Column, Json, Report, Row, Section
from perfscope.sources.published.markdown import MarkdownDocument
from perfscope.sources.published.tables import PublishedFile, read_published
from perfscope.tables.published import Constant, PublishedRow, PublishedTable, Quantity
from perfscope.units import format_count


def check_file(
    path: Path, constants: Mapping[Quantity, Constant], gpu: Gpu | None
) -> tuple[PublishedFile, CheckedTables]:
    """Recompute the cells of a file; nothing is written. Fails where it contains no table that can be recomputed."""
    file = read_published(path, constants, gpu=gpu)
    if not file.tables:
        hint = "a table needs a column such as TFLOPs, speed-up or efficiency, and what it is computed from"
        raise SourceError(path, _NO_TABLE, hint="; ".join(file.unread) or hint)
    return file, leave_conventions(check_tables(file.tables))


def write_cells(path: Path, document: MarkdownDocument | None, checked: CheckedTables) -> None:
    """Replace the cells of a file that cannot be right by their recomputed values."""
    if document is None:
        raise SourceError(path, "is CSV", hint="refresh changes markdown; --check reads CSV, too")
    if checked.unfounded:
        replace_file(path, replace_cells(document, checked.unfounded).encode("utf-8", "surrogateescape"))


def replace_cells(document: MarkdownDocument, cells: Sequence[CheckedCell]) -> str:
    """The document's text with the recomputed digits instead of the published ones; an empty cell keeps its width."""
    lines = list(document.lines)
    for cell in sorted(cells, key=lambda cell: (cell.span.line, cell.span.start), reverse=True):
        line = lines[cell.span.line - 1]
        width = cell.span.end - cell.span.start
        text = cell.text.rjust(width) if cell.verdict is CellVerdict.MISSING else cell.text
        lines[cell.span.line - 1] = line[: cell.span.start] + text + line[cell.span.end :]
    return "".join(lines)


NOTHING_CHECKED = "nothing was checked: no cell could be recomputed, and no product of columns compared"
_NO_TABLE = "contains no table that can be recomputed"
_VERDICTS_EXPLAINED = (
    "`rounded`: right to its own digits. `truncated`: digits were cut off. `from unrounded inputs`: right if a time or "
    "rate beside it is itself rounded or cut off, and left alone. `within 1 %`: of what the model's convention gives. "
    "`wrong`: none of these. `other convention`: its whole column or model differs, and is left alone. "
    "`missing`: empty, though it can be computed. `counts the tied embedding twice`, `over the peak of fp8`: faults."
)


def report_file(file: PublishedFile, checked: CheckedTables, *, written: bool) -> Report:
    """The neutral document; ``written`` says whether the recomputed cells replaced the published ones."""
    counts = {str(verdict): sum(cell.verdict is verdict for cell in checked.cells) for verdict in CellVerdict}
    unread = (*file.unread, *(f"line {table.line}: {note}" for table in file.tables for note in table.notes))
    data: dict[str, Json] = {
        "schema": "perfscope/refresh/1",
        "file": file.path,
        "written": written and bool(checked.unfounded),
        "tables": len(file.tables),
        "counts": counts,
        "results": {
            "cells": [cell.data() for cell in checked.cells],
            "contradictions": msgspec.to_builtins(checked.contradictions),
            "not_recomputed": msgspec.to_builtins(checked.uncheckable),
        },
        "constants": [
            {"table_line": table.line, "quantity": str(quantity), "value": constant.value, "origin": constant.origin}
            for table in file.tables
            for quantity, constant in table.constants.items()
            if quantity not in table.columns
        ],
        "assumed": list(checked.assumed),
        "not_read": unread,
    }
    title = (
        f"{file.path}: {format_count(len(checked.cells), 'cell')} in {format_count(len(file.tables), 'table')}, "
        f"{len(checked.unfounded)} {'rewritten' if written else 'different'}; "
        f"{format_count(len(checked.contradictions), 'contradiction')}"
    )
    products = (f"{format_count(checked.products, 'product')} of columns compared.",) if checked.products else ()
    notes = (_VERDICTS_EXPLAINED, *checked.followed, *products)
    sections = [_section("Verdicts", ("Verdict", "Cells"), [each for each in counts.items() if each[1]], *notes)]
    if checked.unfounded:
        headings = ("Line", "Table", "Row", "Column", "Published", "Recomputed", "Exact", "Verdict")
        rows = [
            (str(each.line), each.table, each.row, each.column, each.published, each.text, exact, verdict)
            for each in checked.unfounded
            for exact, verdict in [(f"{each.recomputed:.5f}", str(each.verdict))]
        ]
        sections.append(_section("Rewritten cells" if written else "Cells that differ", headings, rows))
    if checked.contradictions:
        note = "They are never changed: the row does not show which of its columns is wrong."
        lines = [(str(row.line), row.table, row.row, row.problem) for row in checked.contradictions]
        title_of_rows = "Rows that contradict themselves"
        sections.append(_section(title_of_rows, ("Line", "Table", "Row", "Problem"), lines, note))
    if checked.uncheckable:
        lines = [(str(cell.line), cell.row, cell.column, cell.reason) for cell in checked.uncheckable]
        sections.append(_section("Not recomputed", ("Line", "Row", "Column", "Reason"), lines))
    sections += [Section("Not read", notes=unread)] if unread else []
    assumed = (f"assumed {line}: no column, text or option states it" for line in checked.assumed)
    empty = (NOTHING_CHECKED,) if checked.is_empty else ()
    return Report(title, data, tuple(sections), (*empty, *assumed, *checked.conventions))


def _section(title: str, headings: Sequence[str], rows: Iterable[Row], *notes: str) -> Section:
    return Section(title, tuple(map(Column, headings)), tuple(rows), notes)


_PATTERNS = ("*.md", "*.mdx", "*.csv")


def report_folder(folder: Path, constants: Mapping[Quantity, Constant], gpu: Gpu | None) -> Report:
    """How many rows of each file of a folder are right, flagged and not answered, and why."""
    rows: list[Row] = []
    flagged: list[Row] = []
    unanswered: list[Row] = []
    for path in sorted(path for pattern in _PATTERNS for path in folder.glob(pattern)):
        file = read_published(path, constants, gpu=gpu)
        checked = leave_conventions(check_tables(file.tables))
        by_row: dict[tuple[int, str], list[CheckedCell]] = {}
        for cell in checked.cells:
            by_row.setdefault((cell.line, cell.row), []).append(cell)
        wrong = Counter(f"{cell.column}: {cell.verdict}" for cell in checked.unfounded)
        found = {(cell.line, cell.row) for cell in checked.unfounded}
        found |= {(row.line, row.row) for row in checked.contradictions}
        right = [key for key, cells in by_row.items() if all(cell.is_right for cell in cells)]
        left = [key for key, cells in by_row.items() if all(cell.verdict is CellVerdict.CONVENTION for cell in cells)]
        reasons = {(cell.line, cell.row): cell.reason for cell in checked.uncheckable}
        refused = Counter(reason for key, reason in reasons.items() if key not in by_row)
        count = len({(row.line, row.label) for table in file.tables for row in table.rows})
        rows.append((path.name, count, len(by_row) - len(left), len(right), len(left), checked.products, len(found)))
        flagged += [(path.name, what, number) for what, number in wrong.items()]
        flagged += [(path.name, f"line {row.line}: {row.problem}", 1) for row in checked.contradictions]
        unanswered += [(path.name, reason.partition(": ")[2], None) for reason in file.unread[:1]]
        unanswered += [(path.name, reason, number) for reason, number in refused.most_common()]
    if not rows:
        raise SourceError(folder, "contains no markdown and no CSV")
    headings = ("File", "Rows", "Answered", "Right within 1 %", "Another convention", "Products", "Flagged")
    sections = (
        _section("Files", headings, rows, _FILES_EXPLAINED),
        _section("Flagged", ("File", "What", "Cells"), flagged),
        _section("Not answered", ("File", "Reason", "Rows"), unanswered),
    )
    title = f"{folder}: {format_count(len(rows), 'file')} with published tables"
    return Report(title, {"schema": "perfscope/table/1"}, sections)


_FILES_EXPLAINED = (
    "Answered: rows with a TFLOPs, MFU, HFU, speed-up or efficiency that was recomputed. Products: totals compared "
    "with their factors. Flagged: rows of which a figure is wrong, or whose columns contradict each other."
)


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


def report_tables(
    paths: Sequence[Path], constants: Mapping[Quantity, Constant], gpu: Gpu | None, added: Sequence[str]
) -> Report:
    """Tables of CSV or markdown files with their recomputed cells, and the columns ``added`` by their names.

    Fails where a file contains no table that can be recomputed.
    """
    columns = [ADDED_COLUMNS[name] for name in added]
    sections, rows, differing = [], 0, 0
    for path in paths:
        file = read_published(path, constants, added=[column.quantity for column in columns], gpu=gpu)
        if not file.tables:
            raise SourceError(path, _NO_TABLE, hint="; ".join(file.unread[:3]) or None)
        for table in file.tables:
            checked = check_tables([table])
            sections.append(_describe(table, checked, columns))
            rows, differing = rows + len(table.rows), differing + len(checked.differences)
    title = f"{format_count(rows, 'row')}, {differing} of the cells different"
    return Report(title, {"schema": "perfscope/table/1"}, tuple(sections))


def _describe(table: PublishedTable, checked: CheckedTables, columns: Sequence[AddedColumn]) -> Section:
    added = [column for column in columns if column.quantity not in table.columns]
    recomputed = {
        cell.column: f"{cell.column}, {'change ' if cell.quantity.startswith('change') else ''}recomputed"
        for cell in checked.cells
    }
    headings = [Column(heading) for heading in (*table.headings, *recomputed.values())]
    headings += [Column(column.heading, column.decimals) for column in added]
    has_verdicts = bool(checked.cells or checked.contradictions)
    headings += [Column("Verdict")] if has_verdicts else []
    rows: list[Row] = []
    for row, baseline in zip(table.rows, find_baselines(table), strict=True):
        cells = [cell for cell in checked.cells if cell.line == row.line]
        texts: list[Cell] = list((*row.cells, *[""] * len(table.headings))[: len(table.headings)])
        texts += [" ".join(cell.text for cell in cells if cell.column == heading) or None for heading in recomputed]
        texts += [_compute_added(table, row, baseline, column) for column in added]
        verdict = _verdict(cells, [each.problem for each in checked.contradictions if each.line == row.line])
        rows.append((*texts, *((verdict,) if has_verdicts else ())))
    return Section(table.title, tuple(headings), tuple(rows), _notes(checked, table))


def _notes(checked: CheckedTables, table: PublishedTable) -> tuple[str, ...]:
    constants = [
        f"{quantity} {constant.value} ({constant.origin})"
        for quantity, constant in table.constants.items()
        if quantity not in table.columns
    ]
    stated = [f"Constants: {', '.join(constants)}."] if constants else []
    assumed = [f"Assumed: {constant}." for constant in checked.assumed]
    unknown = [f"{cell.row}: {cell.column} cannot be recomputed, {cell.reason}" for cell in checked.uncheckable]
    return (*stated, *assumed, *unknown, *table.notes)


def _compute_added(
    table: PublishedTable, row: PublishedRow, baseline: PublishedRow | None, column: AddedColumn
) -> str | None:
    """An added cell as text, so that its digits are exact; None if it cannot be computed."""
    try:
        value = recompute(table, row, column.quantity, baseline).value
    except NotComputable:
        return None
    return format_rounded(value / column.unit, column.decimals)


def _verdict(cells: Sequence[CheckedCell], problems: Sequence[str]) -> str | None:
    texts = [f"{cell.column}: {cell.verdict}" for cell in cells if not cell.agrees]
    texts += [f"contradicts itself: {problem}" for problem in problems]
    return "; ".join(texts) or ("agrees" if cells else None)
