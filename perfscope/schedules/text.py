"""A schedule drawn in characters, one line a stage, for the terminal.

Where every operation is at least one column wide, a forward pass shows the last digit of its micro-batch and a backward
pass the letter at that place (a is 0); elsewhere each column shows what most of its time went to.
"""

from __future__ import annotations

from math import gcd

from perfscope.schedules.lanes import Bar, Chart, rasterise
from perfscope.schedules.orders import Kind

IDLE = "."
_DIGITS = "0123456789"
_LETTERS = "abcdefghij"
_COARSE = {Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.INPUT: "B", Kind.WEIGHT: "W"}


def draw(chart: Chart, width: int) -> str:
    """Draw a chart at most ``width`` columns wide beside its labels."""
    if not chart.end:
        return ""
    columns = min(width, chart.end // _step(chart))
    shortest = min((bar.end - bar.start for lane in chart.lanes for bar in lane.bars if bar.end > bar.start), default=0)
    fine = shortest * columns >= chart.end
    name = _fine if fine else _coarse
    margin = max(len(lane.label) for lane in chart.lanes)
    lines = [
        f"{lane.label:<{margin}} |{''.join(cell or IDLE for cell in rasterise(lane, chart.end, columns, name))}|"
        for lane in chart.lanes
    ]
    return "\n".join([*lines, _legend(chart) if fine else _coarse_legend()])


def _step(chart: Chart) -> int:
    """The longest time that divides every boundary, so that a small schedule is drawn exactly."""
    edges = (edge for lane in chart.lanes for bar in lane.bars for edge in (bar.start, bar.end))
    return gcd(chart.end, *edges)


def _fine(bar: Bar) -> str:
    if bar.kind is Kind.WEIGHT:
        return "w"
    return (_DIGITS if bar.kind is Kind.FORWARD else _LETTERS)[bar.microbatch % len(_DIGITS)]


def _coarse(bar: Bar) -> str:
    return _COARSE[bar.kind]


def _legend(chart: Chart) -> str:
    kinds = {bar.kind for lane in chart.lanes for bar in lane.bars}
    weight = ", w weight gradient" if Kind.WEIGHT in kinds else ""
    return f"0-9 forward of that micro-batch (last digit), a-j its backward{weight}, {IDLE} idle"


def _coarse_legend() -> str:
    return f"F forward, B backward, W weight gradient, {IDLE} idle: what most of a column's time went to"
