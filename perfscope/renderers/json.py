"""JSON for programs: the report's data, with null for what does not exist and no NaN."""

from __future__ import annotations

import json
from itertools import islice

from perfscope.report import Report

_JOINED_AT_ONCE = 4096


def render(report: Report) -> str:
    """Write a report's data; warnings are part of it.

    Raises:
        ValueError: A number is NaN or infinite, which is a defect of the analyzer that made it.
    """
    document = {**report.data, "warnings": list(report.warnings)}
    # Every number and bracket is a text of its own: joined all at once they take many times the memory of the answer.
    tokens = json.JSONEncoder(indent=2, allow_nan=False).iterencode(document)
    pieces = iter(lambda: "".join(islice(tokens, _JOINED_AT_ONCE)), "")
    return "".join([*pieces, "\n"])
