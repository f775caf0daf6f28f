"""The records of a block, taken apart by the shape of their lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_shapes import LABEL_TEXT, Measured, Shape
from perfscope.sources.joblog.text.line_fields import split_at_labels
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


def part_glued(text: bytes, glue: re.Pattern[bytes]) -> bytes:
    """A text with a line for each of the records that shared one; what a launcher wrote in front is that of all."""
    bare, labels = split_at_labels(text)
    if labels[0] is None:
        return glue.sub(rb"\1\n", text)
    labelled = ((label or b"", line) for label, line in zip(labels, bare, strict=True))
    return b"".join(label + glue.sub(partial(_end_line, label), line) + b"\n" for label, line in labelled)


def _end_line(label: bytes, glue: re.Match[bytes]) -> bytes:
    return glue[1] + b"\n" + label
