"""The records of a block, taken apart by the shape of their lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfscope.sources.joblog.line_shapes import LABEL_TEXT, Cells, Measured, Shape


@dataclass(frozen=True, slots=True)
class SplitRecords:
    """The records of a block.

    Attributes:
        between: The text before each line, and behind the last one.
        lines: Their lines.
        labels: Their labels; a single empty one where they have none.
        cells: Their figures.
        measured: What a format makes of these.
    """

    between: list[str]
    lines: list[str]
    labels: Sequence[str]
    cells: Cells
    measured: Measured


def split_records(shape: Shape, text: str, measure: Callable[[Cells], Measured]) -> SplitRecords | None:
    """Take the lines of a shape out of a text; None where it has none."""
    width = shape.pattern.groups + 1
    # text between, line, columns, text between, line, columns, ..., text
    parts = shape.pattern.split(text)
    if len(parts) < width:
        return None
    cells = Cells({name: parts[2 + offset :: width] for offset, name in enumerate(shape.columns)})
    labels = cells.texts(LABEL_TEXT) if LABEL_TEXT in cells else [""]
    return SplitRecords(parts[0::width], parts[1::width], labels, cells, measure(cells))
