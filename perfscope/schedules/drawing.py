"""Gantt charts as drawings on one scale, so that a measured schedule can be compared with the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.schedules.gantt import GanttChart, Lane, rasterise
from perfscope.schedules.operations import PassKind

_NAMES = {
    PassKind.FORWARD: ("forward", Colour.FORWARD),
    PassKind.BACKWARD: ("backward", Colour.BACKWARD),
    PassKind.INPUT_GRADIENT: ("backward", Colour.BACKWARD),
    PassKind.WEIGHT_GRADIENT: ("weight gradient", Colour.WEIGHT),
}
#: A lane of more bars is drawn a pixel at a time, or a long step would make a file that no browser opens.
_MOST_BARS = 2000
_COLUMNS = 760


def to_charts(charts: Sequence[GanttChart], unit: int = 1, label: str = "") -> tuple[Chart, ...]:
    """Charts on a common axis, as long as the longest one.

    Args:
        charts: From the top to the bottom.
        unit: How many of their units of time one of the axis has.
        label: The axis' unit.
    """
    end = max((chart.end for chart in charts), default=0) or 1
    last = len(charts) - 1
    return tuple(
        Chart(
            chart.title,
            f"{chart.title}: the passes of {len(chart.lanes)} stages.",
            Values(label if index == last else "", low=0, high=end / unit),
            Categories("", tuple(lane.label for lane in chart.lanes)),
            tuple(_marks(chart, unit)),
            row_height=26,
        )
        for index, chart in enumerate(charts)
    )


def _marks(chart: GanttChart, unit: int) -> Iterator[Spans]:
    whole = tuple(Span(row, 0, chart.end / unit) for row in range(len(chart.lanes)))
    yield Spans("bubble", Colour.BUBBLE, whole)
    by_name: dict[tuple[str, Colour], list[Span]] = {}
    for row, lane in enumerate(chart.lanes):
        for kind, span in _spans(row, lane, chart.end, unit):
            by_name.setdefault(_NAMES[kind], []).append(span)
    for (name, colour), spans in by_name.items():
        yield Spans(name, colour, tuple(spans))


def _spans(row: int, lane: Lane, end: int, unit: int) -> Iterator[tuple[PassKind, Span]]:
    if len(lane.bars) > _MOST_BARS:
        for column, kind in enumerate(rasterise(lane, end, _COLUMNS, lambda bar: bar.kind)):
            if kind is not None:
                yield kind, Span(row, end * column / _COLUMNS / unit, end * (column + 1) / _COLUMNS / unit)
        return
    for bar in lane.bars:
        name = _NAMES[bar.kind][0]
        tip = f"{lane.label}: {name} of micro-batch {bar.microbatch}, {(bar.end - bar.start) / unit:g}"
        yield bar.kind, Span(row, bar.start / unit, bar.end / unit, tip, str(bar.microbatch))
