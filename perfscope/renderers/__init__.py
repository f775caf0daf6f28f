"""A report as text: one module per format, each with a function ``render(report)`` that returns the text.

A new format is a module here and a line in ``Format``, which names the module. Beside them, ``summary`` writes the
lines at the end of ``perfscope profile``.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module

from perfscope.report import Report


class Format(StrEnum):
    """The formats that ``--format`` takes; the module of a format has its name in lower case."""

    MARKDOWN = "md"
    JSON = "json"
    CSV = "csv"


def render(report: Report, to: Format) -> str:
    """Write a report in one format; only that format's module is imported."""
    text: str = import_module(f"{__name__}.{to.name.lower()}").render(report)
    return text
