"""The pipeline as measured beside the ideal one."""

from __future__ import annotations

from perfscope.analyzers.pipeline_steps import PipelineSteps
from perfscope.analyzers.pipelines.bubble_report import BubbleReport
from perfscope.constants import NS_PER_MS
from perfscope.engine.run import Analysis
from perfscope.page.part import Figure, Part, result_of, why_absent
from perfscope.report import Cell, Column, Section
from perfscope.schedules.drawing import GanttChart, Lane, to_charts

_IDENTITY, _TITLE = "pipeline", "Pipeline"


def show_pipeline(analysis: Analysis) -> Part:
    """A typical step of each pipeline, measured and ideal, on one scale."""
    bubbles = result_of(analysis, "pipeline_bubble", BubbleReport)
    timed = result_of(analysis, "pipeline_steps", PipelineSteps)
    sections = tuple(section for result in (bubbles, timed) if result for section in result.sections())
    if bubbles is None:
        if timed is None:
            return Part(_IDENTITY, _TITLE, absent=why_absent(analysis, "pipeline_bubble"))
        reason = "Nothing to draw: traces of all stages are needed. The times below are those of the hosts."
        return Part(_IDENTITY, _TITLE, reason, sections=sections)
    charts = bubbles.bubble.charts
    lead = "Passes of micro-batches by stage, in a typical step: what is empty is bubble."
    if len(charts) == 1:
        lead += " There is no ideal beside it, because the schedule was not recognised."
    return Part(_IDENTITY, _TITLE, lead, (Figure(to_charts(charts, NS_PER_MS, "ms"), _table(charts)),), sections)


def _table(charts: tuple[GanttChart, ...]) -> Section:
    columns = (Column("Schedule"), Column("Stage"), Column("Passes"), Column("Busy (ms)", 3), Column("Step (ms)", 3))
    rows: list[tuple[Cell, ...]] = [
        (chart.title, lane.label, len(lane.bars), _busy(lane) / NS_PER_MS, chart.end / NS_PER_MS)
        for chart in charts
        for lane in chart.lanes
    ]
    return Section("Passes by stage", columns, tuple(rows))


def _busy(lane: Lane) -> int:
    return sum(bar.end - bar.start for bar in lane.bars)
