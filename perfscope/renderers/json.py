"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json

import msgspec

from perfscope.report import Report


def render(report: Report) -> str:
    """Write a report's data; warnings are part of it.

    Raises:
        ValueError: A number is NaN or infinite, which is a defect of the analyzer that made it.
    """
    data = {**report.data, "warnings": list(report.warnings)}
    try:
        return msgspec.json.format(json.dumps(data, allow_nan=False), indent=2) + "\n"
    except msgspec.DecodeError:  # half a pair of surrogates, of a name that is no UTF-8
        return json.dumps(data, indent=2, allow_nan=False) + "\n"
