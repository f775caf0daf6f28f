"""A report as text: one file a format, each a function from Report to str that never prints."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfscope.report import Report


class Format(StrEnum):
    """What ``--format`` takes."""

    MARKDOWN = "md"
    JSON = "json"
    CSV = "csv"


def render(report: Report, to: Format) -> str:
    """Write a report in one format; only that format's module is imported."""
    if to is Format.JSON:
        from perfscope.renderers.json import to_json

        return to_json(report)
    if to is Format.CSV:
        from perfscope.renderers.csv import to_csv

        return to_csv(report)
    from perfscope.renderers.markdown import to_markdown

    return to_markdown(report)
