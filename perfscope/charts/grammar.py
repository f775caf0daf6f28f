"""What a chart shows: two axes and the marks between them. How it is drawn stands in ``perfscope.charts.svg``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from perfscope.charts.palette import Colour


class Scale(Enum):
    """How values become positions."""

    LINEAR = "linear"
    LOGARITHMIC = "logarithmic"


@dataclass(frozen=True, slots=True)
class Values:
    """An axis of numbers, with its unit in the label; without ``low``, ``high`` and ``ticks`` the marks decide."""

    label: str
    scale: Scale = Scale.LINEAR
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Categories:
    """An axis of names, from the left or from the top; positions are their indexes."""

    names: tuple[str, ...]


Axis: TypeAlias = Values | Categories


@dataclass(frozen=True, slots=True)
class Line:
    """A curve through points of x and y."""

    label: str
    colour: Colour
    points: tuple[tuple[float, float], ...]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Dots:
    """Points of x and y, each with the text that it shows when pointed at."""

    label: str
    colour: Colour
    points: tuple[tuple[float, float], ...]
    tips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Area:
    """Everything between two curves: points of x, lower y and upper y."""

    label: str
    colour: Colour
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class RowSpan:
    """A part of a row, from one value of x to another: its tip, and a text on it where it is wide enough."""

    row: int
    start: float
    end: float
    tip: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class RowSpans:
    """Parts of rows: bars of a timeline, of a stack, or of a sum from the left to the right."""

    label: str
    colour: Colour
    spans: tuple[RowSpan, ...]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell of a heat map: its column, its row, how hot it is from 0 to 1, its text and what it shows pointed at."""

    column: int
    row: int
    heat: float
    text: str = ""
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map; both axes are categories."""

    cells: tuple[HeatCell, ...]


Mark: TypeAlias = Line | Dots | Area | RowSpans | Heat


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: what it shows, the same in a sentence for those who cannot see it, and marks from back to front.

    Heights are in pixels: of a row where y is categories, of the place for marks where it is values.
    """

    title: str
    description: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    row_height: int = 18
    height: int = 240
