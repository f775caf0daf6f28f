"""A Gantt chart in characters, one line a stage, for the terminal.

Where every pass is at least one column wide, a forward pass shows the last digit of its micro-batch and a backward pass
the letter of that digit (a is 0); elsewhere each column shows the kind of pass that took most of its time.
"""

from __future__ import annotations

from math import gcd

from perfscope.schedules.gantt import Bar, GanttChart, rasterise
from perfscope.schedules.operations import PassKind

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
