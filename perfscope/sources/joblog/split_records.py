"""The records of a block, taken apart by the shape of their lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfscope.sources.joblog.cells import Cells
from perfscope.sources.joblog.line_shapes import LABEL_TEXT, Measured, Shape
from perfscope.tables.columns import Int64


@dataclass(frozen=True, slots=True)
class SplitRecords:
    """The records of a block.

    Attributes:
        text: The block.
        starts: Where each record begins.
        ends: Where each ends, with the end of its line.
        labels: Their labels; a single empty one where they have none.
        cells: Their figures.
        measured: What a format makes of these.
    """

    text: bytes
    starts: Int64
    ends: Int64
    labels: Sequence[str]
    cells: Cells
    measured: Measured


def split_records(shape: Shape, text: bytes, measure: Callable[[Cells], Measured]) -> SplitRecords | None:
    """Take the lines of a shape out of a text of whole lines; None where it has none."""
    spans = shape.find(text)
    if spans is None:
        return None
    cells = Cells(spans, shape.columns)
    labels = cells.texts(LABEL_TEXT) if LABEL_TEXT in cells else [""]
    return SplitRecords(text, spans.starts, spans.ends, labels, cells, measure(cells))
