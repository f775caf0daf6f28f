"""A report on a terminal: one screen of the most important, or sections as tables that fit its width."""

from __future__ import annotations

from perfscope.renderers import Terminal
from perfscope.renderers.terminal.screens import draw_analyses, draw_analysis, draw_comparison
from perfscope.renderers.terminal.tables import draw_sections
from perfscope.report import Report

_SCREENS = {
    "perfscope/analysis/1": draw_analysis,
    "perfscope/analyses/1": draw_analyses,
    "perfscope/comparison/1": draw_comparison,
    "perfscope/comparisons/1": draw_comparison,
}


def render(report: Report, terminal: Terminal) -> str:
    """Write all sections of a report."""
    return draw_sections(report, terminal)


def render_screen(report: Report, terminal: Terminal) -> str:
    """Write what matters most in at most ``terminal.height`` lines; a report without a screen in full."""
    return _SCREENS.get(str(report.data.get("schema")), draw_sections)(report, terminal)
