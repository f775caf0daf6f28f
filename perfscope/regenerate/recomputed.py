"""A raw table with what follows from it beside it: recomputed cells, added columns, and a verdict on each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from perfscope.analyzers.published.check import CheckedCell, Published, rounded
from perfscope.analyzers.published.check import analyze as check_tables
from perfscope.analyzers.published.contradictions import Contradiction
from perfscope.analyzers.published.contradictions import analyze as find_contradictions
from perfscope.analyzers.published.derived import CannotTell, baselines, recompute
from perfscope.errors import SourceError
from perfscope.report import Cell, Column, Json, Report, Section
from perfscope.sources.published.tables import read_published
from perfscope.tables.published import Constant, PublishedTable, Quantity, Row
from perfscope.units import format_count

#: What ``--add`` can compute, with how it is headed, in which unit and with how many decimals.
ADDED: Mapping[str, tuple[Quantity, str, Fraction, int]] = {
    "tflops": (Quantity.TFLOPS, "TFLOPs per GPU", Fraction(1), 1),
    "speed-up": (Quantity.SPEEDUP, "Speed-up", Fraction(1), 2),
    "efficiency": (Quantity.EFFICIENCY, "Efficiency (%)", Fraction(1, 100), 1),
    "save-speed": (Quantity.SAVE_SPEED, "Save (GB/s)", Fraction(1), 1),
    "memory-share": (Quantity.MEMORY_SHARE, "Memory used (%)", Fraction(1, 100), 1),
}


@dataclass(frozen=True, slots=True)
class _Checked:
    """A file's tables and what was found in them."""

    tables: Sequence[PublishedTable]
    published: Published
    contradictions: Sequence[Contradiction]


def recomputed_tables(
    paths: Sequence[Path], given: Mapping[Quantity, Constant], peak_tflops: float | None, added: Sequence[str]
) -> Report:
    """Write tables with their recomputed cells.

    Raises:
        SourceError: A file holds no table that can be recomputed.
    """
    sections: list[Section] = []
    data: list[Json] = []
    for path, checked in _check(paths, given, peak_tflops, added):
        for table in checked.tables:
            section, entry = _table(checked, table, added)
            sections.append(section)
            data.append({"file": str(path), **entry})
    document: dict[str, Json] = {"schema": "perfscope/table/1", "results": {"tables": data}}
    return Report(_title(data), document, tuple(sections))


def differing_cells(paths: Sequence[Path], given: Mapping[Quantity, Constant], peak_tflops: float | None) -> Report:
    """Write only what does not follow: cells that differ, and rows that contradict themselves.

    Raises:
        SourceError: A file holds no table that can be recomputed.
    """
    cells: list[tuple[Cell, ...]] = []
    rows: list[tuple[Cell, ...]] = []
    count = 0
    for _, checked in _check(paths, given, peak_tflops, ()):
        count += len(checked.published.cells)
        cells += [
            (one.table_title, one.row, one.column, one.published or None, one.text, str(one.verdict), one.why or None)
            for one in checked.published.differences
        ]
        rows += [(one.table_title, one.row, one.problem) for one in checked.contradictions]
    names = ("Table", "Row", "Column", "Published", "Recomputed", "Verdict", "Why")
    sections = (
        Section("Cells that differ", tuple(Column(name) for name in names), tuple(cells)),
        Section("Rows that contradict themselves", (Column("Table"), Column("Row"), Column("Problem")), tuple(rows)),
    )
    data: dict[str, Json] = {
        "schema": "perfscope/differences/1",
        "results": {"cells": [list(one) for one in cells], "contradictions": [list(one) for one in rows]},
    }
    title = f"{format_count(count, 'cell')}, {len(cells)} different; {format_count(len(rows), 'contradiction')}"
    return Report(title, data, tuple(section for section in sections if section.rows))


def _check(
    paths: Sequence[Path], given: Mapping[Quantity, Constant], peak_tflops: float | None, added: Sequence[str]
) -> Iterator[tuple[Path, _Checked]]:
    for path in paths:
        file = read_published(path, given, wanted=[ADDED[name][0] for name in added])
        if not file.tables:
            raise SourceError(path, "holds no table that can be recomputed", hint="; ".join(file.unread[:3]) or None)
        yield path, _Checked(file.tables, check_tables(file.tables, peak_tflops), find_contradictions(file.tables))


def _title(data: Sequence[Json]) -> str:
    differing = sum(1 for entry in data if isinstance(entry, dict) for cell in _differing(entry))
    rows = sum(len(entry["rows"]) for entry in data if isinstance(entry, dict) and isinstance(entry["rows"], list))
    return f"{format_count(rows, 'row')}, {differing} of the cells different"


def _differing(entry: Mapping[str, Json]) -> list[Json]:
    cells = entry["cells"]
    assert isinstance(cells, list)
    return [cell for cell in cells if isinstance(cell, dict) and cell["verdict"] != "rounded"]


def _table(checked: _Checked, table: PublishedTable, added: Sequence[str]) -> tuple[Section, dict[str, Json]]:
    cells = [cell for cell in checked.published.cells if cell.table_line == table.line]
    recomputed = {cell.column: _heading(cell) for cell in cells}
    wanted = [name for name in added if ADDED[name][0] not in table.columns]
    columns = [Column(heading) for heading in table.headings]
    columns += [Column(heading) for heading in recomputed.values()]
    columns += [Column(ADDED[name][1], ADDED[name][3]) for name in wanted]
    has_verdict = bool(recomputed) or any(
        one.line in {row.line for row in table.rows} for one in checked.contradictions
    )
    if has_verdict:
        columns.append(Column("Verdict"))
    rows: list[tuple[Cell, ...]] = []
    for row, baseline in zip(table.rows, baselines(table), strict=True):
        own = [cell for cell in cells if cell.line == row.line]
        shown: list[Cell] = [*_padded(row, table)]
        shown += [" ".join(cell.text for cell in own if cell.column == heading) or None for heading in recomputed]
        shown += [_added(table, row, baseline, name) for name in wanted]
        if has_verdict:
            problems = [one.problem for one in checked.contradictions if one.line == row.line]
            shown.append(_verdict(own, problems))
        rows.append(tuple(shown))
    section = Section(table.title, tuple(columns), tuple(rows), _notes(checked, table))
    return section, _entry(checked, table, cells, wanted)


def _heading(cell: CheckedCell) -> str:
    return f"{cell.column}, change recomputed" if cell.quantity.startswith("change") else f"{cell.column}, recomputed"


def _padded(row: Row, table: PublishedTable) -> Sequence[str]:
    return [*row.cells, *[""] * len(table.headings)][: len(table.headings)]


def _added(table: PublishedTable, row: Row, baseline: Row | None, name: str) -> str | None:
    """An added cell as text, so that its digits are exact; None where it cannot be computed."""
    quantity, _, unit, decimals = ADDED[name]
    try:
        return rounded(recompute(table, row, quantity, baseline, None).value / unit, decimals)
    except CannotTell:
        return None


def _verdict(cells: Sequence[CheckedCell], problems: Sequence[str]) -> str | None:
    said = [f"{cell.column}: {cell.verdict}{f' ({cell.why})' if cell.why else ''}" for cell in cells if not cell.agrees]
    said += [f"contradicts itself: {problem}" for problem in problems]
    return "; ".join(said) or ("agrees" if cells else None)


def _notes(checked: _Checked, table: PublishedTable) -> tuple[str, ...]:
    constants = [
        f"{quantity} {constant.value} ({constant.origin})"
        for quantity, constant in table.constants.items()
        if quantity not in table.columns
    ]
    lines = {row.line for row in table.rows}
    unknown = [
        f"{one.row}: {one.column} cannot be recomputed, {one.reason}"
        for one in checked.published.uncheckable
        if one.line in lines
    ]
    said = [f"Constants: {', '.join(constants)}."] if constants else []
    said += [f"Assumed: {line}." for line in checked.published.assumed]
    return (*said, *unknown, *table.notes)


def _entry(
    checked: _Checked, table: PublishedTable, cells: Sequence[CheckedCell], wanted: Sequence[str]
) -> dict[str, Json]:
    lines = {row.line for row in table.rows}
    return {
        "title": table.title,
        "headings": list(table.headings),
        "rows": [
            {
                "line": row.line,
                "cells": list(row.cells),
                "added": {name: _added(table, row, baseline, name) for name in wanted},
            }
            for row, baseline in zip(table.rows, baselines(table), strict=True)
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
            for cell in cells
        ],
        "contradictions": [
            {"line": one.line, "problem": one.problem} for one in checked.contradictions if one.line in lines
        ],
    }
