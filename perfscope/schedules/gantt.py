"""A schedule as a Gantt chart, which the text and the SVG drawing share; it may be simulated or measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

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
