"""The differences between the content of a block and its rebuilt content: cells, and lines outside of tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from perfscope.regenerate.blocks import Block
from perfscope.sources.published.markdown import Grid, parse_markdown

_SHOWN_LINES = 8
_LABEL_CELLS = 3


@dataclass(frozen=True, slots=True)
class StaleCell:
    """A cell that differs from the one rebuilt from the raw files.

    Attributes:
        line: Its line in the report.
        row: The first cells of its row.
        column: Its column's heading.
        reported: Its text in the report.
        rebuilt: Its text from the raw files.
    """

    line: int
    row: str
    column: str
    reported: str
    rebuilt: str


def compare_contents(block: Block, content: str) -> tuple[tuple[StaleCell, ...], tuple[str, ...]]:
    """The cells of a block that differ from its rebuilt content, and the differing lines outside of tables."""
    if block.content == content:
        return (), ()
    old, new = parse_markdown(block.content, "old"), parse_markdown(content, "new")
    cells: list[StaleCell] = []
    old_lines: set[int] = set()
    new_lines: set[int] = set()
    for old_grid, new_grid in zip_longest(old.grids, new.grids):
        if old_grid is None or new_grid is None or not _have_same_shape(old_grid, new_grid):
            continue
        cells.extend(_compare_cells(block, old_grid, new_grid))
        old_lines.update(range(old_grid.line, old_grid.last_line + 1))
        new_lines.update(range(new_grid.line, new_grid.last_line + 1))
    old_prose = [line for number, line in enumerate(old.lines, 1) if number not in old_lines]
    new_prose = [line for number, line in enumerate(new.lines, 1) if number not in new_lines]
    compared = difflib.ndiff(old_prose, new_prose)
    lines = [line.rstrip() for line in compared if line[0] in "+-" and line[2:].strip()]
    return tuple(cells), tuple(lines[:_SHOWN_LINES])


def _have_same_shape(old: Grid, new: Grid) -> bool:
    old_headings, new_headings = ([cell.text for cell in grid.headings] for grid in (old, new))
    return old_headings == new_headings and len(old.rows) == len(new.rows)


def _compare_cells(block: Block, old: Grid, new: Grid) -> Iterator[StaleCell]:
    for line, old_row, new_row in zip(old.row_lines, old.rows, new.rows, strict=True):
        label = " ".join(cell.text for cell in old_row[:_LABEL_CELLS])
        for heading, old_cell, new_cell in zip(old.headings, old_row, new_row, strict=False):
            if old_cell.text != new_cell.text:
                yield StaleCell(block.line + line, label, heading.text, old_cell.text, new_cell.text)
