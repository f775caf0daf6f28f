"""Draws charts as SVG: one below the other, those with numbers on x on a common axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10

from perfscope.charts.grammar import Area, Categories, Chart, Dots, Heat, Line, Mark, RowSpans, Scale, Values
from perfscope.charts.palette import style_rules, style_variables
from perfscope.report import escape_control_characters

#: What spreads less is one value, around which the axis is made.
_LEAST_DECADES, _LEAST_SHARE = 0.1, 1e-6
_ROUND = (1, 2, 5, 10)
_SUFFIXES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
#: In pixels.
_WIDTH, _RIGHT, _BETWEEN_LEVELS = 860, 836, 60
_LETTER, _LONGEST_NAME = 7.0, 30
_AXIS_HEIGHT, _LEGEND_LINE, _HEADING = 40, 20, 26
#: A text of a run, such as the name of a kernel, is shown so far.
LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Extent:
    """An axis from ``low`` to ``high``, powers of ten where it is logarithmic, and their places in pixels."""

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
        """Round values that lie on the axis."""
        count = max(2, round(abs(self.end - self.start) / _BETWEEN_LEVELS))
        if self.scale is Scale.LOGARITHMIC:
            return self._decades(count)
        raw = (self.high - self.low) / count
        power = 10.0 ** floor(log10(raw))
        step = min((power * factor for factor in _ROUND), key=lambda step: abs(log10(step / raw)))
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _decades(self, count: int) -> list[float]:
        for steps in ((1, 2, 5), (1,)):
            decades = range(floor(self.low) - 1, ceil(self.high) + 1)
            values = [step * 10.0**decade for decade in decades for step in steps]
            levels = [value for value in values if self.low - 1e-9 <= log10(value) <= self.high + 1e-9]
            if len(levels) <= count:
                break
        return levels[:: ceil(len(levels) / count) or 1]


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
    margin = (high - low) * 0.04
    return Extent(
        low - (margin if axis.low is None else 0), high + (margin if axis.high is None else 0), start, end, axis.scale
    )


def _values_of(charts: Sequence[Chart], axis: str) -> list[float]:
    return [value for chart in charts for mark in chart.marks for value in _values(mark, axis)]


def _values(mark: Mark, axis: str) -> Iterator[float]:
    if isinstance(mark, Line | Dots):
        yield from (point[0 if axis == "x" else 1] for point in mark.points)
    elif isinstance(mark, Area):
        for x, low, high in mark.points:
            yield from (x,) if axis == "x" else (low, high)
    elif isinstance(mark, RowSpans) and axis == "x":
        for span in mark.spans:
            yield from (span.start, span.end)


def label_levels(levels: Sequence[float]) -> list[str]:
    """The labels of an axis, with as many decimals as tell them apart.

    >>> label_levels([0, 0.5, 1]), label_levels([10000, 20000]), label_levels([1, 10])
    (['0', '0.5', '1'], ['10k', '20k'], ['1', '10'])
    """
    step = min((abs(b - a) for a, b in pairwise(levels)), default=abs(levels[0]) if levels else 0)
    return [_label_level(level, step) for level in levels]


def _label_level(value: float, step: float) -> str:
    size, suffix = next((pair for pair in _SUFFIXES if abs(value) >= pair[0]), (1, ""))
    decimals = max(0, -floor(log10(step / size) + 1e-9)) if step > 0 else 0
    text = f"{value / size:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


@dataclass(frozen=True, slots=True)
class _Frame:
    """The place of one chart's marks, in pixels."""

    chart: Chart
    x: Extent
    y: Extent | None
    top: float
    bottom: float
    left: float

    def row(self, index: float) -> float:
        return self.top + index * self.chart.row_height

    def column(self, index: float) -> float:
        count = len(self.chart.x.names) if isinstance(self.chart.x, Categories) else 1
        return self.left + index * (_RIGHT - self.left) / max(count, 1)


def draw(charts: Sequence[Chart], identity: str) -> str:
    """Draw charts for a page, whose style sheet has the colours; ``identity`` is the page's name for them."""
    body, height = _draw_all(charts, with_titles=len(charts) > 1, skipped=1)
    title, description = charts[0].title, " ".join(chart.description for chart in charts)
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-labelledby="{identity}-t {identity}-d">'
        f'<title id="{identity}-t">{_write(title)}</title><desc id="{identity}-d">{_write(description)}</desc>'
        f"{body}</svg>"
    )


def draw_file(charts: Sequence[Chart]) -> str:
    """Draw charts as a file of their own, light or dark as its surroundings.

    Raises:
        ValueError: There is nothing to draw.
    """
    if not any(chart.marks for chart in charts):
        raise ValueError("nothing to draw")
    body, height = _draw_all(charts, with_titles=True, skipped=0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {_WIDTH} {height}">\n'
        f"<title>{_write(charts[0].title)}</title>\n<style>\n{style_variables()}{style_rules()}</style>\n"
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>\n{body}\n</svg>\n'
    )


def _draw_all(charts: Sequence[Chart], *, with_titles: bool, skipped: int) -> tuple[str, int]:
    """All charts and their height; the page has the title of the first one as text."""
    left = max(map(_left_margin, charts))
    numeric = [chart for chart in charts if isinstance(chart.x, Values)]
    axis = next((chart.x for chart in numeric if isinstance(chart.x, Values)), Values(""))
    x = fit_extent(axis, _values_of(numeric, "x"), left, _RIGHT)
    parts: list[str] = []
    top = 0.0
    for number, chart in enumerate(charts):
        has_title = with_titles and number >= skipped
        parts += _draw_heading(chart, top, has_title=has_title)
        top += (_HEADING if has_title else 4) + _LEGEND_LINE * _legend_lines(chart)
        if isinstance(chart.y, Categories):
            bottom = top + chart.row_height * len(chart.y.names)
            frame = _Frame(chart, x, None, top, bottom, left)
        else:
            bottom = top + chart.height
            y = fit_extent(chart.y, _values_of([chart], "y"), bottom, top)
            frame = _Frame(chart, x, y, top, bottom, left)
        label = chart.x.label if isinstance(chart.x, Values) else ""
        is_labelled = number == len(charts) - 1 or bool(label) or isinstance(chart.x, Categories)
        parts += _draw_axes(frame, is_labelled=is_labelled)
        parts += [line for mark in chart.marks for line in _draw_mark(mark, frame)]
        top = bottom + (_AXIS_HEIGHT + 4 if label else 26 if is_labelled else 8)
    return "\n".join(parts), round(top + 2)


def _left_margin(chart: Chart) -> float:
    if isinstance(chart.y, Categories):
        return 16 + _LETTER * min(max((len(name) for name in chart.y.names), default=4), _LONGEST_NAME)
    return 68


def _legend_places(chart: Chart) -> list[tuple[Line | Dots | Area | RowSpans, float, int]]:
    """Each legend entry with its x and its line."""
    marks = [mark for mark in chart.marks if not isinstance(mark, Heat) and mark.label]
    places: list[tuple[Line | Dots | Area | RowSpans, float, int]] = []
    x, line = 14.0, 0
    for mark in {(mark.label, mark.colour): mark for mark in marks}.values():
        size = 30 + _LETTER * len(mark.label)
        if x + size > _WIDTH and places:
            x, line = 14.0, line + 1
        places.append((mark, x, line))
        x += size
    return places


def _legend_lines(chart: Chart) -> int:
    places = _legend_places(chart)
    return places[-1][2] + 1 if places else 0


def _draw_heading(chart: Chart, top: float, *, has_title: bool) -> Iterator[str]:
    if has_title:
        yield f'<text class="heading" x="14" y="{top + 17:.0f}">{_write(chart.title)}</text>'
        top += _HEADING
    for mark, x, line in _legend_places(chart):
        y = top + 13 + line * _LEGEND_LINE
        if isinstance(mark, Line):
            dashed = " dashed" if mark.is_dashed else ""
            yield f'<path class="line line-{mark.colour}{dashed}" d="M{x:.0f} {y - 4:.0f}h14"/>'
        elif isinstance(mark, Dots):
            yield f'<circle class="fill-{mark.colour}" cx="{x + 7:.0f}" cy="{y - 4:.0f}" r="3.5"/>'
        else:
            faint = " area" if isinstance(mark, Area) else ""
            place = f'x="{x:.0f}" y="{y - 10:.0f}" width="14" height="12" rx="2"'
            yield f'<rect class="fill-{mark.colour}{faint}" {place}/>'
        yield f'<text class="faint" x="{x + 19:.0f}" y="{y:.0f}">{_write(mark.label)}</text>'


def _draw_axes(frame: _Frame, *, is_labelled: bool) -> Iterator[str]:
    chart = frame.chart
    if frame.y is not None and isinstance(chart.y, Values):
        yield from _draw_levels(frame, frame.y, chart.y)
    elif isinstance(chart.y, Categories):
        for index, name in enumerate(chart.y.names):
            y = frame.row(index) + chart.row_height / 2 + 4
            longest = int((frame.left - 14) / _LETTER)
            text = name if len(name) <= longest else name[: longest - 1] + "…"
            yield f'<text class="faint" x="{frame.left - 8:.1f}" y="{y:.1f}" text-anchor="end">{_write(text)}</text>'
    yield f'<path class="axis" d="M{frame.left:.1f} {frame.bottom:.1f}H{_RIGHT}"/>'
    if isinstance(chart.x, Categories):
        middles = [(frame.column(index) + frame.column(index + 1)) / 2 for index in range(len(chart.x.names))]
        ticks = list(zip(middles, chart.x.names, strict=True))
    else:
        levels = list(chart.x.ticks) or frame.x.levels()
        ticks = list(zip(map(frame.x.place, levels), label_levels(levels), strict=True))
        yield from (f'<path class="grid" d="M{x:.1f} {frame.bottom:.1f}v5"/>' for x, _ in ticks)
    previous = -1e9
    for x, text in ticks if is_labelled else ():
        if x - previous > _LETTER * (len(text) + 1):
            place = f'x="{x:.1f}" y="{frame.bottom + 18:.1f}" text-anchor="middle"'
            yield f'<text class="faint" {place}>{_write(text)}</text>'
            previous = x
    if isinstance(chart.x, Values) and chart.x.label:
        middle = (frame.left + _RIGHT) / 2
        yield (
            f'<text class="faint" x="{middle:.1f}" y="{frame.bottom + 36:.1f}" text-anchor="middle">'
            f"{_write(chart.x.label)}</text>"
        )


def _draw_levels(frame: _Frame, extent: Extent, axis: Values) -> Iterator[str]:
    levels = list(axis.ticks) or extent.levels()
    for level, text in zip(levels, label_levels(levels), strict=True):
        y = extent.place(level)
        yield f'<path class="grid" d="M{frame.left:.1f} {y:.1f}H{_RIGHT}"/>'
        yield f'<text class="faint" x="{frame.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    middle = (frame.top + frame.bottom) / 2
    yield (
        f'<text class="faint" x="16" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 16 {middle:.1f})">'
        f"{_write(axis.label)}</text>"
    )


def _draw_mark(mark: Mark, frame: _Frame) -> Iterator[str]:
    if isinstance(mark, RowSpans):
        yield from _draw_spans(mark, frame)
    elif isinstance(mark, Heat):
        yield from _draw_heat(mark, frame)
    elif frame.y is not None:
        yield from _draw_curves(mark, frame, frame.y)


def _draw_curves(mark: Line | Dots | Area, frame: _Frame, y: Extent) -> Iterator[str]:
    if isinstance(mark, Area):
        upper = [(frame.x.place(x), y.place(high)) for x, _, high in mark.points if y.holds(high)]
        lower = [(frame.x.place(x), y.place(low)) for x, low, _ in mark.points if y.holds(low)]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in (*upper, *reversed(lower)))
        yield f'<polygon class="mark area fill-{mark.colour}" points="{path}"/>'
    elif isinstance(mark, Line):
        places = [(frame.x.place(a), y.place(b)) for a, b in mark.points if frame.x.holds(a) and y.holds(b)]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
        dashed = " dashed" if mark.is_dashed else ""
        yield f'<polyline class="mark line line-{mark.colour}{dashed}" points="{path}"/>'
    else:
        for index, (a, b) in enumerate(mark.points):
            if frame.x.holds(a) and y.holds(b):
                end = _close("circle", mark.tips[index] if index < len(mark.tips) else "")
                place = f'cx="{frame.x.place(a):.1f}" cy="{y.place(b):.1f}"'
                yield f'<circle class="mark fill-{mark.colour}" {place} r="3"{end}'


def _draw_spans(mark: RowSpans, frame: _Frame) -> Iterator[str]:
    height = frame.chart.row_height
    for span in mark.spans:
        x = frame.x.place(min(span.start, span.end))
        width = frame.x.place(max(span.start, span.end)) - x
        top = frame.row(span.row) + min(2, height / 8)
        edge = " edge" if width > 4 else ""  # noqa: PLR2004 - pixels
        yield (
            f'<rect class="mark{edge} fill-{mark.colour}" x="{x:.2f}" y="{top:.1f}" width="{max(width, 0.2):.2f}" '
            f'height="{height - min(4, height / 4):.1f}"{_close("rect", span.tip)}'
        )
        if span.text and width > _LETTER * len(span.text) + 4:
            down = frame.row(span.row) + height / 2 + 4
            yield (
                f'<text class="on-mark" x="{x + width / 2:.1f}" y="{down:.1f}" text-anchor="middle">'
                f"{_write(span.text)}</text>"
            )


def _draw_heat(mark: Heat, frame: _Frame) -> Iterator[str]:
    height = frame.chart.row_height
    for cell in mark.cells:
        x, end = frame.column(cell.column), frame.column(cell.column + 1)
        depth = min(max(cell.heat, 0), 1)
        yield (
            f'<rect class="mark fill-heat" fill-opacity="{0.06 + 0.94 * depth:.3f}" x="{x:.2f}" '
            f'y="{frame.row(cell.row):.1f}" width="{max(end - x - 1, 0.5):.2f}" height="{height - 1}"'
            f"{_close('rect', cell.tip)}"
        )
        if cell.text and end - x > _LETTER * len(cell.text):
            style = ' class="on-mark"' if depth > 2 / 3 else ""
            down = frame.row(cell.row) + height / 2 + 4
            yield f'<text{style} x="{(x + end) / 2:.1f}" y="{down:.1f}" text-anchor="middle">{_write(cell.text)}</text>'


def _write(text: str) -> str:
    visible = escape_control_characters(text[:LONGEST_TEXT])
    return escape(visible if len(text) <= LONGEST_TEXT else visible + "…")


def _close(name: str, tip: str) -> str:
    """The end of an element, with the text that it shows when pointed at."""
    return f"><title>{_write(tip)}</title></{name}>" if tip else "/>"
