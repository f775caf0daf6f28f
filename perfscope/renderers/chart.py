"""A chart of curves and measured points as SVG, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 760, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 210, 40, 60
_COLOURS = ("#1f5fbf", "#2f8f5b", "#c0392b", "#8e44ad", "#b9770e", "#117a8b", "#555555")
_LEGEND_LINE = 18


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve, or measured points.

    Attributes:
        label: Its name in the legend.
        points: Pairs of x and y, all positive.
        marked: Draw a dot at each point instead of a line through them.
        dashed: Draw the line dashed.
        colour: Its index in the palette.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    marked: bool = field(default=False)
    dashed: bool = field(default=False)
    colour: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """The range of each axis in decades, and the position of a value in it."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    def x(self, value: float) -> float:
        share = (log10(value) - self.low_x) / (self.high_x - self.low_x)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (log10(value) - self.low_y) / (self.high_y - self.low_y)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def to_chart(title: str, x_label: str, y_label: str, curves: Sequence[Curve]) -> str:
    """Draw curves; each x of a marked curve is a tick.

    Raises:
        ValueError: There is no positive point.
    """
    points = [point for curve in curves for point in curve.points if min(point) > 0]
    if not points:
        raise ValueError("nothing to draw")
    frame = _fit_frame(points)
    ticks = sorted({x for curve in curves if curve.marked for x, _ in curve.points})
    body = "\n".join((*_draw_axes(frame, ticks, x_label, y_label), *_draw_curves(frame, curves), *_draw_legend(curves)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>\n'
        f'<text x="{_LEFT}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>\n{body}\n</svg>\n'
    )


def _fit_frame(points: Sequence[tuple[float, float]]) -> _Frame:
    xs, ys = [log10(x) for x, _ in points], [log10(y) for _, y in points]
    margin = 0.04
    return _Frame(
        min(xs) - margin,
        max(*xs, min(xs) + 0.1) + margin,
        min(ys) - margin,
        max(*ys, min(ys) + 0.1) + margin,
    )


def _draw_axes(frame: _Frame, ticks: Sequence[float], x_label: str, y_label: str) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    yield f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#333"/>'
    for value in ticks:
        x = frame.x(value)
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="#333"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{value:g}</text>'
    for value in _list_levels(frame.low_y, frame.high_y):
        y = frame.y(value)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#e4e4e4"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    yield f'<text x="{(_LEFT + right) / 2:.1f}" y="{_HEIGHT - 16}" text-anchor="middle">{escape(x_label)}</text>'
    middle = (_TOP + bottom) / 2
    yield (
        f'<text x="18" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 18 {middle:.1f})">'
        f"{escape(y_label)}</text>"
    )


def _list_levels(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade that lie in the frame."""
    values = [step * 10.0**decade for decade in range(floor(low) - 1, ceil(high) + 1) for step in (1, 2, 5)]
    return [value for value in values if low <= log10(value) <= high]


def _draw_curves(frame: _Frame, curves: Sequence[Curve]) -> Iterator[str]:
    for curve in curves:
        colour = _COLOURS[curve.colour % len(_COLOURS)]
        points = [(frame.x(x), frame.y(y)) for x, y in curve.points if x > 0 and y > 0]
        if curve.marked:
            for x, y in points:
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>'


def _draw_legend(curves: Sequence[Curve]) -> Iterator[str]:
    legend_x, top = _WIDTH - _RIGHT + 14, _TOP + 6
    for curve in curves:
        colour = _COLOURS[curve.colour % len(_COLOURS)]
        if curve.marked:
            yield f'<circle cx="{legend_x + 8}" cy="{top - 4}" r="3.5" fill="{colour}"/>'
        else:
            dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
            yield f'<path d="M{legend_x} {top - 4}h16" stroke="{colour}" stroke-width="1.5"{dash}/>'
        yield f'<text x="{legend_x + 22}" y="{top}">{escape(curve.label)}</text>'
        top += _LEGEND_LINE
