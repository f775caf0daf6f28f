"""A schedule as lanes of bars, the one form that both drawings take, whether it was simulated or measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from perfscope.schedules.orders import Kind, Op
from perfscope.schedules.simulator import Timeline

_NameT = TypeVar("_NameT")


@dataclass(frozen=True, slots=True)
class Bar:
    """One piece of work: from start to end in any unit of time."""

    kind: Kind
    microbatch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One device: its label and its bars in order."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lanes over one axis.

    Attributes:
        title: What it shows.
        lanes: From top to bottom.
        end: Where the axis ends; it begins at 0.
    """

    title: str
    lanes: tuple[Lane, ...]
    end: int


def chart_of(title: str, timeline: Timeline) -> Chart:
    """A simulated step as lanes; overlapped pairs are drawn one after the other in their common time."""
    lanes = tuple(
        Lane(f"stage {device}", tuple(bar for span in spans for bar in _bars(span.block, span.start, span.end)))
        for device, spans in enumerate(timeline.devices)
    )
    return Chart(title, lanes, timeline.section)


def scaled_chart_of(title: str, timeline: Timeline, ticks: int) -> Chart:
    """A simulated step whose times are in parts of a unit, in whole units."""
    exact = chart_of(title, timeline)
    lanes = tuple(
        Lane(
            lane.label, tuple(Bar(one.kind, one.microbatch, one.start // ticks, one.end // ticks) for one in lane.bars)
        )
        for lane in exact.lanes
    )
    return Chart(title, lanes, max(exact.end // ticks, 1))


def _bars(block: tuple[Op, ...], start: int, end: int) -> list[Bar]:
    cuts = [start + (end - start) * index // len(block) for index in range(len(block) + 1)]
    return [Bar(op.kind, op.microbatch, left, right) for op, left, right in zip(block, cuts, cuts[1:], strict=False)]


def rasterise(lane: Lane, end: int, columns: int, name: Callable[[Bar], _NameT]) -> list[_NameT | None]:
    """What most of each column's time went to, out of equal columns from 0 to ``end``; None where that is idleness."""
    votes: list[dict[_NameT, int]] = [{} for _ in range(columns)]
    for bar in lane.bars:
        first, last = bar.start * columns // end, -(-bar.end * columns // end)
        for column in range(first, min(last, columns)):
            overlap = min(bar.end * columns, (column + 1) * end) - max(bar.start * columns, column * end)
            votes[column][name(bar)] = votes[column].get(name(bar), 0) + overlap
    return [_winner(vote, end) for vote in votes]


def _winner(vote: dict[_NameT, int], whole: int) -> _NameT | None:
    winner = max(vote, key=lambda name: vote[name], default=None)
    return winner if winner is not None and vote[winner] >= whole - sum(vote.values()) else None
