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
#: The headings of all reports of ``perfscope analyze``, for the completion of shells; a test compares them.
ANALYSIS_SECTIONS = (
    "Findings", "Wall clock", "Slowest steps", "Steps", "Set-up", "GPUs", "Links", "Throttling", "Energy",
    "Profiling overhead", "Saves", "MFU of steady-state steps", "Device time", "Device time of the whole window",
    "Device time by step", "Host time", "Host time by step",
    "Host time outside of operators", "Operators on the host", "Overlap by axis of parallelism",
    "Overlap by process group", "Idle time by cause", "Longest idle gaps", "Calls that hold the host up", "Optimizer",
    "Kernels", "Kernels by operator", "Operations by shapes", "Collectives", "Stragglers", "Pace of the devices",
    "Clocks", "Pipeline bubble", "Measured schedule", "Pipeline bubble of every step", "Late ranks",
    "Steps with the latest ranks",
    "Steps on the host, by rank", "Roofline of operators", "Operators by category", "Time by module",
    "Tensor cores by NVML's counters", "Peak memory", "Largest allocations at the peak", "Activations at the peak",
    "What would lower the peak", "Goodput", "Not computed", WARNINGS,
)  # fmt: skip
COMPARISON_SECTIONS = (
    "Figures", "Limits", "Different set-up", "What the change is made of", "What appeared, vanished or changed",
    "What did not change", "Verdicts", WARNINGS,
)  # fmt: skip


def _complete(titles: Sequence[str], typed: str) -> list[str]:
    return [title.lower() for title in titles if title.lower().startswith(typed.lower())]


def _complete_analysis(incomplete: str) -> list[str]:
    return _complete(ANALYSIS_SECTIONS, incomplete)


def _complete_comparison(incomplete: str) -> list[str]:
    return _complete(COMPARISON_SECTIONS, incomplete)


_HELP = "Print only the sections whose heading begins so. May be repeated."

AnalysisSections = Annotated[
    list[str] | None,
    typer.Option("--section", metavar="NAME", help=_HELP, autocompletion=_complete_analysis, show_default="all"),
]
ComparisonSections = Annotated[
    list[str] | None,
    typer.Option("--section", metavar="NAME", help=_HELP, autocompletion=_complete_comparison, show_default="all"),
]
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
