"""Where a value stands on an axis, and which values are labelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, isfinite, log10

from perfscope.charts.grammar import Area, Axis, Categories, Chart, Dots, Heat, Line, Mark, Scale, Shades, Spans, Values

_MARGIN = 0.04
#: What spreads less is one value, around which the axis is made.
_LEAST_DECADES, _LEAST_SHARE = 0.1, 1e-6
_ROUND = (1, 2, 5, 10)
_SUFFIXES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_FEWEST_DIGITS = 10_000
_MOST_LEVELS = 8
_MOST_DECIMALS = 6
#: A longer axis lies on its side, where labels take more of it.
_LONG = 450


@dataclass(frozen=True, slots=True)
class Extent:
    """An axis of numbers in pixels.

    Attributes:
        low, high: Its first and last value, as powers of ten where it is logarithmic.
        start, end: Where they are, in pixels.
        scale: How values become positions.
    """

    low: float
    high: float
    start: float
    end: float
    scale: Scale

    def place(self, value: float) -> float:
        """Where a value is, in pixels."""
        position = log10(value) if self.scale is Scale.LOGARITHMIC else value
        return self.start + (position - self.low) / (self.high - self.low) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Whether a value can be drawn."""
        return isfinite(value) and (self.scale is Scale.LINEAR or value > 0)

    def levels(self) -> list[float]:
        """Round values that lie on the axis, some for each 100 pixels."""
        if self.scale is Scale.LOGARITHMIC:
            return self._decades()
        length = abs(self.end - self.start)
        count = max(2, round(length / (80 if length > _LONG else 42)))
        raw = (self.high - self.low) / count
        power = 10.0 ** floor(log10(raw))
        step = min((power * factor for factor in _ROUND), key=lambda step: abs(log10(step / raw)))
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _decades(self) -> list[float]:
        for steps in ((1, 2, 5), (1,)):
            decades = range(floor(self.low) - 1, ceil(self.high) + 1)
            values = [step * 10.0**decade for decade in decades for step in steps]
            levels = [value for value in values if self.low - 1e-9 <= log10(value) <= self.high + 1e-9]
            if len(levels) <= _MOST_LEVELS:
                return levels
        return levels[:: ceil(len(levels) / _MOST_LEVELS)]


def fit_extent(axis: Values, values: Sequence[float], start: float, end: float) -> Extent:
    """An axis that holds all values; one that must hold 0 states it as its low."""
    is_logarithmic = axis.scale is Scale.LOGARITHMIC
    usable = [value for value in values if isfinite(value) and (value > 0 or not is_logarithmic)]
    usable = [log10(value) for value in usable] if is_logarithmic else usable
    low, high = min(usable, default=0.0), max(usable, default=1.0)
    if axis.low is not None:
        low = log10(axis.low) if is_logarithmic else axis.low
    if axis.high is not None:
        high = log10(axis.high) if is_logarithmic else axis.high
    least = _LEAST_DECADES if is_logarithmic else abs(high) * _LEAST_SHARE
    if high - low <= least:
        high = low + (_LEAST_DECADES if is_logarithmic else abs(high) / 2 or 1.0)
    margin = (high - low) * _MARGIN
    return Extent(
        low - (margin if axis.low is None else 0), high + (margin if axis.high is None else 0), start, end, axis.scale
    )


def values_of(charts: Sequence[Chart], axis: str) -> list[float]:
    """All numbers that the marks of charts have on an axis, ``x`` or ``y``."""
    return [value for chart in charts for mark in chart.marks for value in _values(mark, axis, chart)]


def _values(mark: Mark, axis: str, chart: Chart) -> Iterator[float]:
    if isinstance(mark, Line | Dots):
        yield from (point[0 if axis == "x" else 1] for point in mark.points)
    elif isinstance(mark, Area):
        for x, low, high in mark.points:
            yield from (x,) if axis == "x" else (low, high)
    elif isinstance(mark, Spans) and axis == "x":
        for span in mark.spans:
            yield from (span.start, span.end)
    elif isinstance(mark, Shades) and axis == "x" and isinstance(chart.x, Values):
        for start, end, _ in mark.ranges:
            yield from (start, end)
    elif isinstance(mark, Heat):
        return


def label_levels(levels: Sequence[float]) -> list[str]:
    """The labels of an axis, with as many decimals as tell them apart.

    >>> label_levels([0, 0.5, 1]), label_levels([10000, 20000]), label_levels([1, 10])
    (['0', '0.5', '1'], ['10k', '20k'], ['1', '10'])
    """
    return [format_level(level, min((abs(b - a) for a, b in pairwise(levels)), default=abs(level))) for level in levels]


def format_level(value: float, step: float) -> str:
    """A number on an axis whose levels are so far apart."""
    size, suffix = 1, ""
    if abs(value) >= _FEWEST_DIGITS:
        size, suffix = next((pair for pair in _SUFFIXES if abs(value) >= pair[0]), (1, ""))
    decimals = max(0, -floor(log10(step / size) + 1e-9)) if step > 0 else 0
    if decimals > _MOST_DECIMALS:
        return f"{value:.3g}"
    text = f"{value / size:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def count_rows(axis: Axis) -> int:
    """How many rows an axis of categories has."""
    return len(axis.names) if isinstance(axis, Categories) else 0
