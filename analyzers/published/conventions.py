"""Columns that differ as a whole: they follow another definition, and are left as they are.

A file often holds many tables of one author. If nearly all of its TFLOPs differ a little, all of them follow the other
convention; if not, a table does whose TFLOPs nearly all differ by the same factor, or of which none agrees and each
follows from other passes or another sequence length than those assumed. Speed-ups and efficiencies have one usual
definition, so that a stale column is recomputed; where no cell of a column follows from it and most are far from it,
they are relative to something that the table does not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from perfscope.analyzers.published.check import CheckedTables
from perfscope.analyzers.published.verdicts import CheckedCell, Verdict
from perfscope.tables.published import Quantity

_FEWEST_DIFFERENT = 3
_SHARE_DIFFERENT = 0.8
_LARGEST_DIFFERENCE = Fraction(1, 5)
_SAME_FACTOR = Fraction(1, 20)
# Of the passes and the sequence length that nothing states: 3 passes instead of 4, 512 to 32768 tokens.
_ASSUMED_FACTORS = tuple(
    factor
    for passes in (Fraction(1), Fraction(3, 4), Fraction(4, 3))
    for factor in (passes * Fraction(2) ** power for power in range(-1, 6))
    if factor != 1
)
_NEARLY = Fraction(1, 50)
_ROUGHLY = Fraction(1, 5)  # sizes as 7B are rounded
_FAR = Fraction(3, 2)
_RATIOS = (Quantity.SPEEDUP, Quantity.EFFICIENCY)


def leave_conventions(checked: CheckedTables) -> CheckedTables:
    """Give the figures that follow another convention that verdict, and say so once for a file or a table."""
    stated = [cell for cell in checked.cells if cell.published]
    counted = [cell for cell in stated if cell.quantity == Quantity.TFLOPS]
    if _differ_a_little(counted):
        columns = [counted]
    else:
        columns = [cells for cells in _by_column(counted) if _differ_by_a_factor(cells)]
    ratios = [cells for cells in _by_column(stated) if cells[0].quantity in _RATIOS and _are_of_something_else(cells)]
    return _leave(checked, columns, ratios)


def _by_column(cells: Sequence[CheckedCell]) -> list[list[CheckedCell]]:
    columns: dict[tuple[int, str], list[CheckedCell]] = {}
    for cell in cells:
        columns.setdefault((cell.table_line, cell.column), []).append(cell)
    return list(columns.values())


def _leave(
    checked: CheckedTables, columns: Sequence[Sequence[CheckedCell]], ratios: Sequence[Sequence[CheckedCell]]
) -> CheckedTables:
    left = {(cell.line, cell.span.start) for cells in (*columns, *ratios) for cell in cells}
    cells = tuple(
        replace(cell, verdict=Verdict.CONVENTION, why="")
        if (cell.line, cell.span.start) in left and cell.published and not cell.agrees
        else cell
        for cell in checked.cells
    )
    described = (*(_describe(column) for column in columns), *(_describe_ratios(column) for column in ratios))
    return replace(checked, cells=cells, conventions=described)


def _describe_ratios(cells: Sequence[CheckedCell]) -> str:
    return (
        f"line {cells[0].table_line}: no {cells[0].column} follows from the rows of its table: "
        "they may be relative to something that it does not show; they are left as they are"
    )


def _are_of_something_else(cells: Sequence[CheckedCell]) -> bool:
    """Whether no cell but the baselines follows from its table, and most are far from what would."""
    compared = [cell for cell in cells if cell.recomputed != 1]
    if not compared or any(cell.verdict is not Verdict.WRONG for cell in compared):
        return False
    far = [cell for cell in compared if not 1 / _FAR <= _ratio(cell) <= _FAR]
    return len(far) * 2 > len(compared)


def _ratio(cell: CheckedCell) -> Fraction:
    return Fraction(cell.published.replace(",", "")) / cell.recomputed if cell.recomputed else Fraction(0)


def _describe(cells: Sequence[CheckedCell]) -> str:
    shares = [_ratio(cell) - 1 for cell in cells if cell.verdict is Verdict.WRONG]
    lines = list(dict.fromkeys(cell.table_line for cell in cells))
    where = f"line {lines[0]}" if len(lines) == 1 else f"{len(lines)} tables from line {lines[0]} on"
    return (
        f"{where}: {len(shares)} of {len(cells)} TFLOPs are off by {float(min(shares)):+.1%} to "
        f"{float(max(shares)):+.1%}: they may follow another convention, or a log; they are left as they are"
    )


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
    if ratios and (_differ_a_little(cells) or ratios[-1] <= ratios[0] * (1 + _SAME_FACTOR)):
        return True
    return _follow_from_other_constants(cells)


def _follow_from_other_constants(cells: Sequence[CheckedCell]) -> bool:
    """Whether no cell agrees, and all are off by one factor that passes or a sequence length can make."""
    wrong = [_ratio(cell) for cell in cells if cell.verdict is Verdict.WRONG and cell.recomputed]
    if len(wrong) < len(cells):
        return False
    tolerance = _ROUGHLY if len(wrong) >= _FEWEST_DIFFERENT else _NEARLY
    return any(all(abs(ratio / factor - 1) <= tolerance for ratio in wrong) for factor in _ASSUMED_FACTORS)
