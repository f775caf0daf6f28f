"""Gantt charts as drawings on one scale, so that a measured schedule can be compared with the ideal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import TypeVar

from perfscope.charts.grammar import Categories, Chart, Span, Spans, Values
from perfscope.charts.palette import Colour
from perfscope.schedules.operations import Op, PassKind
from perfscope.schedules.simulator import Timeline

_LabelT = TypeVar("_LabelT")


@dataclass(frozen=True, slots=True)
class Bar:
    """One pass, from start to end in any unit of time."""

    kind: PassKind
    microbatch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One device: its label and its bars in order."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class GanttChart:
    """Lanes over one axis.

    Attributes:
        title: Its heading.
        lanes: From top to bottom.
        end: Where the axis ends; it begins at 0.
    """

    title: str
    lanes: tuple[Lane, ...]
    end: int


def draw_timeline(title: str, timeline: Timeline) -> GanttChart:
    """Chart a simulated step; the passes of an overlapped pair share its time, drawn in sequence."""
    lanes = tuple(
        Lane(f"stage {device}", tuple(bar for span in spans for bar in _bars(span.block, span.start, span.end)))
        for device, spans in enumerate(timeline.devices)
    )
    return GanttChart(title, lanes, timeline.section)


def draw_scaled_timeline(title: str, timeline: Timeline, ticks: int) -> GanttChart:
    """Chart a simulated step in whole units, where a unit has ``ticks`` of the timeline's ticks."""
    exact = draw_timeline(title, timeline)
    lanes = tuple(
        Lane(
            lane.label, tuple(Bar(bar.kind, bar.microbatch, bar.start // ticks, bar.end // ticks) for bar in lane.bars)
        )
        for lane in exact.lanes
    )
    return GanttChart(title, lanes, max(exact.end // ticks, 1))


def _bars(block: tuple[Op, ...], start: int, end: int) -> list[Bar]:
    cuts = [start + (end - start) * index // len(block) for index in range(len(block) + 1)]
    return [
        Bar(op.kind, op.microbatch, cut, next_cut) for op, (cut, next_cut) in zip(block, pairwise(cuts), strict=True)
    ]


def rasterise(lane: Lane, end: int, columns: int, label: Callable[[Bar], _LabelT]) -> list[_LabelT | None]:
    """Cut 0 to ``end`` into equal columns, each with the label of most of its time; None where most of it is idle."""
    votes: list[dict[_LabelT, int]] = [{} for _ in range(columns)]
    for bar in lane.bars:
        first, last = bar.start * columns // end, -(-bar.end * columns // end)
        for column in range(first, min(last, columns)):
            overlap = min(bar.end * columns, (column + 1) * end) - max(bar.start * columns, column * end)
            votes[column][label(bar)] = votes[column].get(label(bar), 0) + overlap
    return [_find_winner(vote, end) for vote in votes]


def _find_winner(vote: dict[_LabelT, int], column_time: int) -> _LabelT | None:
    winner = max(vote, key=lambda label: vote[label], default=None)
    return winner if winner is not None and vote[winner] >= column_time - sum(vote.values()) else None


IDLE = "."
_DIGITS = "0123456789"
_LETTERS = "abcdefghij"
_COARSE_LABELS = {
    PassKind.FORWARD: "F",
    PassKind.BACKWARD: "B",
    PassKind.INPUT_GRADIENT: "B",
    PassKind.WEIGHT_GRADIENT: "W",
}
_COARSE_LEGEND = f"F forward, B backward, W weight gradient, {IDLE} idle: the largest share of each column's time"


def to_text(chart: GanttChart, width: int) -> str:
    """Draw a chart at most ``width`` columns wide beside its labels."""
    if not chart.end:
        return ""
    columns = min(width, chart.end // _find_resolution(chart))
    shortest = min((bar.end - bar.start for lane in chart.lanes for bar in lane.bars if bar.end > bar.start), default=0)
    fine = shortest * columns >= chart.end
    label = _label_finely if fine else _label_coarsely
    margin = max(len(lane.label) for lane in chart.lanes)
    lines = [
        f"{lane.label:<{margin}} |{''.join(cell or IDLE for cell in rasterise(lane, chart.end, columns, label))}|"
        for lane in chart.lanes
    ]
    return "\n".join([*lines, _legend(chart) if fine else _COARSE_LEGEND])


def _find_resolution(chart: GanttChart) -> int:
    """The longest time that divides every boundary, so that a small schedule is drawn exactly."""
    edges = (edge for lane in chart.lanes for bar in lane.bars for edge in (bar.start, bar.end))
    return gcd(chart.end, *edges)


def _label_finely(bar: Bar) -> str:
    if bar.kind is PassKind.WEIGHT_GRADIENT:
        return "w"
    return (_DIGITS if bar.kind is PassKind.FORWARD else _LETTERS)[bar.microbatch % len(_DIGITS)]


def _label_coarsely(bar: Bar) -> str:
    return _COARSE_LABELS[bar.kind]


def _legend(chart: GanttChart) -> str:
    kinds = {bar.kind for lane in chart.lanes for bar in lane.bars}
    weight = ", w weight gradient" if PassKind.WEIGHT_GRADIENT in kinds else ""
    return f"0-9 forward of that micro-batch (last digit), a-j its backward{weight}, {IDLE} idle"


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
