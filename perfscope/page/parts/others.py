"""The results that no chart draws, as tables, and what could not be computed: nothing of a report is missing."""

from __future__ import annotations

from perfscope.engine.run import Analysis
from perfscope.page.part import Part
from perfscope.report import Column, Section

_IDENTITY, _TITLE = "others", "Other results"
#: Results whose tables stand below a chart.
_DRAWN = frozenset(
    (
        "findings", "wall_clock", "steps", "gpus", "energy", "throttling", "breakdown", "host", "idle", "overlap",
        "collectives", "stragglers", "pipeline_bubble", "pipeline_steps", "whatif", "kernels", "memory", "saves",
        "timeline", "modules",
    )
)  # fmt: skip


def show_others(analysis: Analysis) -> Part:
    """The tables of all other results, and the reasons of those that are absent."""
    sections = [
        section for name, result in analysis.results.items() if name not in _DRAWN for section in result.sections()
    ]
    if analysis.skipped:
        rows = tuple((skip.analyzer, skip.reason) for skip in analysis.skipped)
        sections.append(Section("Not computed", (Column("Result"), Column("Reason")), rows))
    if not sections:
        return Part(_IDENTITY, _TITLE, absent="Nothing to show: all results are drawn above.")
    lead = "Tables of `perfscope analyze` that no chart draws, and what could not be computed."
    return Part(_IDENTITY, _TITLE, lead, sections=tuple(sections))
