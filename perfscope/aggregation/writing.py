"""All rows of what is aggregated, in files of CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.aggregation.tables import ALL_ROWS, find_rank_column
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.report import Report, Row, Section


def write_rows(report: Report, folder: Path) -> Report:
    """Write all rows of a report's tables of ranks into a folder, and say in the report where they are.

    A file of an earlier analysis is replaced.

    Raises:
        SourceError: The folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(folder, f"cannot be made: {error.strerror}") from None
    return replace(report, sections=tuple(_write_section(section, folder) for section in report.sections))


def _write_section(section: Section, folder: Path) -> Section:
    """Write a table, if it is one of ranks; its note names the file."""
    if find_rank_column(section) is None:
        return section
    name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
    headings = [column.heading for column in section.columns]
    path = folder / f"{name}.csv"
    replace_file(path, _to_csv(headings, section.every or section.rows))
    return replace(section, notes=tuple(note.replace(ALL_ROWS, f"All rows: {path}.") for note in section.notes))


def _to_csv(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode("utf-8", "surrogateescape")
