"""Gantt charts as SVG, below each other on one scale, so that a measured schedule can be compared with the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from perfscope.schedules.gantt import GanttChart, Lane, rasterise
from perfscope.schedules.operations import PassKind

_COLOURS = {
    PassKind.FORWARD: "#4c8bf5",
    PassKind.BACKWARD: "#3aa76d",
    PassKind.INPUT_GRADIENT: "#3aa76d",
    PassKind.WEIGHT_GRADIENT: "#a3d9b8",
}
_NAMES = {"forward": PassKind.FORWARD, "backward": PassKind.BACKWARD, "weight gradient": PassKind.WEIGHT_GRADIENT}
_WIDTH = 1200
_MARGIN = 90
_LANE = 26
_BAR = 22
_HEADING = 30
_LABEL_FROM = 13
#: A lane of more bars is drawn a pixel at a time, or a long step would make a file that no browser opens.
_MOST_BARS = 4000


def to_svg(charts: Sequence[GanttChart]) -> str:
    """Draw charts on a common axis, as long as the longest chart."""
    end = max((chart.end for chart in charts), default=0) or 1
    height = sum(_HEADING + _LANE * len(chart.lanes) for chart in charts) + 2 * _HEADING
    body = "\n".join(_draw_charts(charts, end))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{_WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def _draw_charts(charts: Sequence[GanttChart], end: int) -> Iterator[str]:
    top = 0
    for chart in charts:
        yield f'<text x="{_MARGIN}" y="{top + 20}" font-weight="bold">{escape(chart.title, quote=False)}</text>'
        top += _HEADING
        for lane in chart.lanes:
            yield from _draw_lane(lane, top, chart.end, end)
            top += _LANE
    yield from _draw_legend(top + 18)


def _draw_lane(lane: Lane, top: int, chart_end: int, end: int) -> Iterator[str]:
    yield f'<text x="{_MARGIN - 8}" y="{top + 16}" text-anchor="end">{escape(lane.label, quote=False)}</text>'
    yield _rectangle(0, chart_end, top, end, "#eceff1")
    if len(lane.bars) > _MOST_BARS:
        yield from _draw_raster(lane, top, chart_end, end)
        return
    for bar in lane.bars:
        yield _rectangle(bar.start, bar.end, top, end, _COLOURS[bar.kind])
        if _pixels(bar.end - bar.start, end) >= _LABEL_FROM:
            middle = _MARGIN + _pixels(bar.start + bar.end, end) / 2
            yield f'<text x="{middle:.1f}" y="{top + 15}" text-anchor="middle" fill="white">{bar.microbatch}</text>'


def _draw_raster(lane: Lane, top: int, chart_end: int, end: int) -> Iterator[str]:
    columns = max(1, round(_pixels(chart_end, end)))
    for column, kind in enumerate(rasterise(lane, chart_end, columns, lambda bar: bar.kind)):
        if kind is not None:
            start, stop = chart_end * column // columns, chart_end * (column + 1) // columns
            yield _rectangle(start, stop, top, end, _COLOURS[kind])


def _rectangle(start: int, stop: int, top: int, end: int, colour: str) -> str:
    x, width = _MARGIN + _pixels(start, end), _pixels(stop - start, end)
    return (
        f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_BAR}" fill="{colour}" '
        'stroke="white" stroke-width="0.4"/>'
    )


def _pixels(time: int, end: int) -> float:
    return time / end * (_WIDTH - _MARGIN - 20)


def _draw_legend(top: int) -> Iterator[str]:
    x = _MARGIN
    for name, kind in _NAMES.items():
        yield f'<rect x="{x}" y="{top - 11}" width="14" height="14" fill="{_COLOURS[kind]}"/>'
        yield f'<text x="{x + 20}" y="{top}">{name}</text>'
        x += 130
