"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json

from perfscope.report import Report


def to_json(report: Report) -> str:
    """Write a report's data; warnings are part of it.

    Raises:
        ValueError: A number is NaN or infinite, which is a defect of the analyzer that made it.
    """
    document = {**report.data, "warnings": list(report.warnings)}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
