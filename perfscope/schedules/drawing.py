"""Gantt charts as drawings on one scale, so that a measured schedule can be compared with the ideal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import gcd
from typing import NamedTuple

from perfscope.charts.grammar import Categories, Chart, RowSpan, RowSpans, Values
from perfscope.charts.palette import Colour
from perfscope.schedules.operations import PassKind
from perfscope.schedules.simulator import PassTimeline

IDLE = "."
#: Characters of a line of a drawing.
COLUMNS = 100
_DIGITS, _LETTERS, _WEIGHT = "0123456789", "abcdefghij", "w" * 10
_FINE_LABELS = {PassKind.FORWARD: _DIGITS, PassKind.WEIGHT_GRADIENT: _WEIGHT}
_COARSE_LABELS = {PassKind.FORWARD: "F", PassKind.WEIGHT_GRADIENT: "W"}
_COARSE_LEGEND = f"F forward, B backward, W weight gradient, {IDLE} idle: the largest share of each column's time"
_NAMES = {
    PassKind.FORWARD: ("forward", Colour.FORWARD),
    PassKind.BACKWARD: ("backward", Colour.BACKWARD),
    PassKind.INPUT_GRADIENT: ("backward", Colour.BACKWARD),
    PassKind.WEIGHT_GRADIENT: ("weight gradient", Colour.WEIGHT),
}


class Bar(NamedTuple):
    """One pass, from start to end in any unit of time."""

    kind: PassKind
    microbatch: int
    start: int
    end: int


class Lane(NamedTuple):
    """One device: its label and its bars in order."""

    label: str
    bars: tuple[Bar, ...]


class GanttChart(NamedTuple):
    """Lanes from top to bottom over one axis from 0 to ``end``."""

    title: str
    lanes: tuple[Lane, ...]
    end: int


def draw_timeline(title: str, timeline: PassTimeline, ticks: int = 1) -> GanttChart:
    """Chart a simulated step in units of ``ticks``; the passes of an overlapped pair share its time, in sequence."""
    lanes = []
    for device, spans in enumerate(timeline.devices):
        bars = []
        for block, start, end in spans:
            cuts = [(start + (end - start) * index // len(block)) // ticks for index in range(len(block) + 1)]
            bars += [Bar(op.kind, op.microbatch, *edges) for op, edges in zip(block, pairwise(cuts), strict=True)]
        lanes.append(Lane(f"stage {device}", tuple(bars)))
    return GanttChart(title, tuple(lanes), timeline.section // ticks)


def _rasterise(lane: Lane, end: int, columns: int, label: Callable[[Bar], str]) -> list[str | None]:
    """Cut 0 to ``end`` into equal columns, each with the label of most of its time; None where most of it is idle."""
    votes: list[Counter[str]] = [Counter() for _ in range(columns)]
    for bar in lane.bars:
        first, last = bar.start * columns // end, -(-bar.end * columns // end)
        for column in range(first, min(last, columns)):
            votes[column][label(bar)] += min(bar.end * columns, (column + 1) * end) - max(
                bar.start * columns, column * end
            )
    winners = [max(vote, key=vote.__getitem__, default=None) for vote in votes]
    return [
        winner if winner is not None and vote[winner] >= end - vote.total() else None
        for winner, vote in zip(winners, votes, strict=True)
    ]


def to_text(chart: GanttChart, width: int) -> str:
    """Draw a chart at most ``width`` columns wide beside its labels."""
    if not chart.end:
        return ""
    bars = [bar for lane in chart.lanes for bar in lane.bars]
    # The longest time that divides every boundary: a small schedule is drawn exactly.
    resolution = gcd(chart.end, *(edge for bar in bars for edge in (bar.start, bar.end)))
    columns = min(width, chart.end // resolution)
    is_fine = min((bar.end - bar.start for bar in bars if bar.end > bar.start), default=0) * columns >= chart.end

    def label(bar: Bar) -> str:
        if is_fine:
            return _FINE_LABELS.get(bar.kind, _LETTERS)[bar.microbatch % len(_DIGITS)]
        return _COARSE_LABELS.get(bar.kind, "B")

    margin = max(len(lane.label) for lane in chart.lanes)
    lines = [
        f"{lane.label:<{margin}} |{''.join(cell or IDLE for cell in _rasterise(lane, chart.end, columns, label))}|"
        for lane in chart.lanes
    ]
    weight = ", w weight gradient" if any(bar.kind is PassKind.WEIGHT_GRADIENT for bar in bars) else ""
    legend = f"0-9 forward of that micro-batch (last digit), a-j its backward{weight}, {IDLE} idle"
    return "\n".join([*lines, legend if is_fine else _COARSE_LEGEND])


def to_charts(charts: Sequence[GanttChart], unit: int = 1, label: str = "") -> tuple[Chart, ...]:
    """Charts on a common axis, as long as the longest one; ``label`` is a unit of so many of the charts' units."""
    end = max((chart.end for chart in charts), default=0) or 1
    last = len(charts) - 1
    return tuple(
        Chart(
            chart.title,
            f"{chart.title}: the passes of {len(chart.lanes)} stages.",
            Values(label if index == last else "", low=0, high=end / unit),
            Categories(tuple(lane.label for lane in chart.lanes)),
            tuple(_marks(chart, unit)),
            row_height=26,
        )
        for index, chart in enumerate(charts)
    )


def _marks(chart: GanttChart, unit: int) -> Iterator[RowSpans]:
    whole = tuple(RowSpan(row, 0, chart.end / unit) for row in range(len(chart.lanes)))
    yield RowSpans("bubble", Colour.BUBBLE, whole)
    by_name: defaultdict[tuple[str, Colour], list[RowSpan]] = defaultdict(list)
    for row, lane in enumerate(chart.lanes):
        for bar in lane.bars:
            name, colour = _NAMES[bar.kind]
            tip = f"{lane.label}: {name} of micro-batch {bar.microbatch}, {(bar.end - bar.start) / unit:g}"
            span = RowSpan(row, bar.start / unit, bar.end / unit, tip, str(bar.microbatch))
            by_name[name, colour].append(span)
    yield from (RowSpans(name, colour, tuple(spans)) for (name, colour), spans in by_name.items())
