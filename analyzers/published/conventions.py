"""Columns of TFLOPs that differ as a whole: they were counted by another convention, and are left as they are.

A file often holds many tables of one author. If nearly all of its TFLOPs differ a little, all of them follow the other
convention; if not, a table does whose TFLOPs nearly all differ by the same factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from perfscope.analyzers.published.check import CheckedCell, CheckedTables, Verdict
from perfscope.tables.published import Quantity

_FEWEST_DIFFERENT = 3
_SHARE_DIFFERENT = 0.8
_LARGEST_DIFFERENCE = Fraction(1, 5)
_SAME_FACTOR = Fraction(1, 20)


def leave_conventions(checked: CheckedTables) -> CheckedTables:
    """Give the TFLOPs that follow another convention that verdict, and say so once for a file or a table."""
    stated = [cell for cell in checked.cells if cell.quantity == Quantity.TFLOPS and cell.published]
    if _differ_a_little(stated):
        return _leave(checked, [stated])
    lines = dict.fromkeys(cell.table_line for cell in stated)
    tables = [[cell for cell in stated if cell.table_line == line] for line in lines]
    return _leave(checked, [cells for cells in tables if _differ_by_a_factor(cells)])


def _leave(checked: CheckedTables, columns: Sequence[Sequence[CheckedCell]]) -> CheckedTables:
    left = {(cell.line, cell.span.start) for cells in columns for cell in cells}
    cells = tuple(
        replace(cell, verdict=Verdict.CONVENTION, why="")
        if (cell.line, cell.span.start) in left and cell.quantity == Quantity.TFLOPS and not cell.agrees
        else cell
        for cell in checked.cells
    )
    return replace(checked, cells=cells, conventions=tuple(_describe(column) for column in columns))


def _describe(cells: Sequence[CheckedCell]) -> str:
    shares = [_ratio(cell) - 1 for cell in cells if cell.verdict is Verdict.WRONG]
    lines = list(dict.fromkeys(cell.table_line for cell in cells))
    where = f"line {lines[0]}" if len(lines) == 1 else f"{len(lines)} tables from line {lines[0]} on"
    return (
        f"{where}: {len(shares)} of {len(cells)} TFLOPs are off by {float(min(shares)):+.1%} to "
        f"{float(max(shares)):+.1%}: they may follow another convention, or a log; they are left as they are"
    )


def _ratio(cell: CheckedCell) -> Fraction:
    return Fraction(cell.published.replace(",", "")) / cell.recomputed


def _wrong_ratios(cells: Sequence[CheckedCell]) -> list[Fraction]:
    """The published over the recomputed figure of each wrong cell, ascending; empty unless nearly all are wrong."""
    wrong = sorted(_ratio(cell) for cell in cells if cell.verdict is Verdict.WRONG and cell.recomputed)
    is_most = len(wrong) >= _FEWEST_DIFFERENT and len(wrong) >= _SHARE_DIFFERENT * len(cells)
    return wrong if is_most else []


def _differ_a_little(cells: Sequence[CheckedCell]) -> bool:
    ratios = _wrong_ratios(cells)
    little = [ratio for ratio in ratios if abs(ratio - 1) <= _LARGEST_DIFFERENCE]
    return bool(ratios) and len(little) >= _SHARE_DIFFERENT * len(cells)


def _differ_by_a_factor(cells: Sequence[CheckedCell]) -> bool:
    ratios = _wrong_ratios(cells)
    return bool(ratios) and (_differ_a_little(cells) or ratios[-1] <= ratios[0] * (1 + _SAME_FACTOR))
