"""CSV for spreadsheets: every table of the report below the other, its section in the first column."""

from __future__ import annotations

import csv
import io

from perfscope.report import Report


def render(report: Report) -> str:
    """Write every table with full precision; an empty cell is a value that does not exist."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for section in report.sections:
        if section.columns:
            writer.writerow(["section", *(column.heading for column in section.columns)])
            # A program wants rows, not their quantiles.
            for row in section.every if section.is_aggregated else section.rows:
                writer.writerow([section.title, *("" if cell is None else cell for cell in row)])
    return buffer.getvalue()
