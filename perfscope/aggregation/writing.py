"""All rows of what is aggregated, in files of CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.aggregation.entries import condense, list_tables
from perfscope.aggregation.tables import ALL_ROWS, find_rank_column
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.report import Json, Report, Section


def write_rows(report: Report, folder: Path) -> Report:
    """Write all rows of a report's tables of ranks into a folder, and say in the report where they are.

    A file of an earlier analysis is replaced. Long lists of the JSON are written, too; there the entries stay that
    stand out, and ``aggregated`` says what each list was and which file has the others.

    Raises:
        SourceError: The folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(folder, f"cannot be made: {error.strerror}") from None
    sections = tuple(_write_section(section, folder) for section in report.sections)
    results = report.data["results"]
    assert isinstance(results, Mapping)
    file_of = {}
    for table in list_tables(results):
        file_of[table.name] = _write(folder / f"{table.name}.csv", table.columns, table.rows())
    condensed = condense(results, file_of)
    aggregated = {"aggregated": condensed.lists} if condensed.lists else {}
    return replace(report, sections=sections, data={**report.data, **aggregated, "results": condensed.results})


def _write_section(section: Section, folder: Path) -> Section:
    """Write a table, if it is one of ranks; its note names the file."""
    if find_rank_column(section) is None:
        return section
    name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
    headings = [column.heading for column in section.columns]
    path = _write(folder / f"{name}.csv", headings, section.every or section.rows)
    return replace(section, notes=tuple(note.replace(ALL_ROWS, f"All rows: {path}.") for note in section.notes))


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Json]]) -> str:
    replace_file(path, _to_csv(columns, rows))
    return str(path)


def _to_csv(columns: Sequence[str], rows: Sequence[Sequence[Json]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode("utf-8", "surrogateescape")
