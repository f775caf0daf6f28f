"""CSV for spreadsheets: every table of the report below the other, its section in the first column."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import islice

from perfscope.report import Report, Section

#: So many rows are text at the same time.
_AT_ONCE = 512


def render(report: Report) -> str:
    """Write every table with full precision; an empty cell is a value that does not exist."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """The same text, some rows at a time."""
    for section in report.sections:
        if section.columns:
            yield _lines([["section", *(column.heading for column in section.columns)]])
            rows = _rows(section)
            while some := list(islice(rows, _AT_ONCE)):
                yield _lines(some)


def _rows(section: Section) -> Iterator[list[object]]:
    """A program wants rows, not their quantiles."""
    for row in section.every if section.is_aggregated else section.rows:
        yield [section.title, *("" if cell is None else cell for cell in row)]


def _lines(rows: list[list[object]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()
