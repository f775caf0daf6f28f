"""A report as text: one module per format, each with a function ``render(report)`` that returns the text.

A new format is a module here and a line in ``Format``, which names the module. Beside them, ``summary`` writes the
lines at the end of ``perfscope profile``.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal: its columns, how many lines a screen may have, and whether colours are wanted."""

    width: int
    height: int
    has_colour: bool


def render_on_terminal(report: Report, terminal: Terminal, *, in_full: bool) -> str:
    """Write all sections of a report for a terminal, or one screen of the most important."""
    module = import_module(f"{__name__}.terminal")
    text: str = (module.render if in_full else module.render_screen)(report, terminal)
    return text
