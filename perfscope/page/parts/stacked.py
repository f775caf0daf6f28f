"""Bars of parts that stand behind each other, as marks of a chart."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.charts.grammar import Span, Spans
from perfscope.charts.palette import Colour
from perfscope.charts.svg import stack_spans


def stack_marks(
    names: Sequence[str], rows: Sequence[Sequence[float]], kinds: Sequence[tuple[str, Colour]], unit: str
) -> tuple[Spans, ...]:
    """A mark for each kind that occurs, with a span for each row that has it.

    Args:
        names: What each row is of.
        rows: A value for each kind, by row.
        kinds: What each part is, and its colour, from the left to the right.
        unit: Of the values.
    """
    stacked = stack_spans(rows)
    marks = []
    for kind, (label, colour) in enumerate(kinds):
        spans = [
            Span(row, *edges[kind], f"{names[row]}: {label} {rows[row][kind]:,.3f} {unit}")
            for row, edges in enumerate(stacked)
            if rows[row][kind] > 0
        ]
        if spans:
            marks.append(Spans(label, colour, tuple(spans)))
    return tuple(marks)
