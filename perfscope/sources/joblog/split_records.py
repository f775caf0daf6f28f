"""The records of a block, taken apart by the shape of their lines, and once more for each rank with an equal line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.sources.joblog.equal_lines import EqualLines, Labels
from perfscope.sources.joblog.line_shapes import LABEL_TEXT, Cells, Measured, Shape

_LATIN = "latin-1"


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

    def with_equal_lines(self, equal: EqualLines) -> SplitRecords:
        """The records of all lines of the text that ``equal`` was made of."""
        lengths = [len(text) + len(line) + 1 for text, line in zip(self.between, self.lines, strict=False)]
        starts = np.cumsum([0, *lengths[:-1]]) + [len(text) for text in self.between[:-1]]
        further = [equal.further.get(start, ()) for start in starts.tolist()]
        firsts = equal.numbers[np.searchsorted(equal.starts, starts)]
        times = np.asarray([1 + len(labels) for labels in further], np.int64)
        lines = equal.original.decode(_LATIN).split("\n")
        stops = firsts + times
        between = [""] * (int(times.sum()) + 1)
        rows = np.cumsum(np.append(0, times))
        for begin, end, row in zip(
            [0, *stops.tolist()], [*firsts.tolist(), len(lines) - 1], rows.tolist(), strict=True
        ):
            if begin < end:
                between[row] = "\n".join((*lines[begin:end], ""))
        numbers = np.repeat(firsts - rows[:-1], times) + np.arange(len(between) - 1)
        columns = {name: np.repeat(column, times) for name, column in self.measured.columns.items()}
        return SplitRecords(
            between,
            list(map(lines.__getitem__, numbers.tolist())),
            _labels(self.labels, further) if len(self.labels) == len(self.lines) > 1 else self.labels,
            self.cells.repeated(times),
            Measured(np.repeat(self.measured.iteration, times), np.repeat(self.measured.wall_ns, times), columns),
        )


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


def _labels(labels: Sequence[str], further: Sequence[Labels]) -> list[str]:
    """The label of each line, and those of the lines that equal it."""
    all_labels: list[str] = []
    for label, equal in zip(labels, further, strict=True):
        all_labels.append(label)
        all_labels += (label if each is None else each.decode(_LATIN) for each in equal)
    return all_labels
