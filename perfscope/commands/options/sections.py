"""What of a report is printed: one screen on a terminal, sections by name, or all of it in a format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from perfscope.errors import UsageError
from perfscope.renderers import Format
from perfscope.report import Report, Section

WARNINGS = "Warnings"

_HELP = "Print only the sections whose heading begins so. May be repeated."

Sections = Annotated[list[str] | None, typer.Option("--section", metavar="NAME", help=_HELP, show_default="all")]
ScreenFormat = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="How to print the result.", show_default="one screen on a terminal, else md"),
]


def require_readable(sections: Sequence[str] | None, chosen: Format | None) -> None:
    """Check that sections are chosen of a format that has them.

    Raises:
        UsageError: JSON has no sections.
    """
    if sections and chosen is Format.JSON:
        raise UsageError("--section chooses what people read; JSON is whole", hint="--only chooses analyzers")


def choose_sections(report: Report, names: Iterable[str] | None) -> Report:
    """The report with the sections that are named alone, in the order of the names; all of it where none is.

    Raises:
        UsageError: The report has no section of a name.
    """
    if not names:
        return report
    sections = list(report.sections)
    if report.warnings:
        sections.append(Section(WARNINGS, notes=report.warnings))
    chosen: list[Section] = []
    for name in names:
        matches = [section for section in sections if section.title.lower().startswith(name.strip().lower())]
        if not matches or not name.strip():
            titles = ", ".join(section.title for section in sections)
            raise UsageError(f"the report has no section {name!r}", hint=f"its sections: {titles}")
        exact = [section for section in matches if section.title.lower() == name.strip().lower()]
        chosen += [section for section in exact or matches if section not in chosen]
    return replace(report, sections=tuple(chosen), warnings=())
