"""Whether the changes that cells state beside their values, as in ``506(↓5.3%)``, follow from the rows above.

A change is that to a row above without one, else to the row directly above. Where no change of a row or column follows
from a row above, they are relative to something else: another column, or runs that the table does not show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from perfscope.analyzers.published.derived import Interval, exact_interval, measured_interval
from perfscope.analyzers.published.verdicts import CheckedCell, Position, Uncheckable, Verdict, judge, make_cell
from perfscope.tables.published import Change, ChangeKind, Figure, PublishedTable, Row

_IN_PERCENT = re.compile(r"[*_~`≈\s]*[\d.,]{1,30} ?%")
_NEAR = Fraction(1, 5)


def check_changes(table: PublishedTable) -> list[list[CheckedCell | Uncheckable]]:
    """Check the changes of each row; one that is wrong needs another of its row or column that shows what it is of."""
    checked = [[_check_change(table, index, change) for change in row.changes] for index, row in enumerate(table.rows)]
    columns = {cell.column for cells in checked for cell in cells if _is_of_a_row(cell)}
    return [
        [cell if cell.column in columns or any(map(_is_of_a_row, cells)) else _without_a_base(cell) for cell in cells]
        for cells in checked
    ]


def _is_of_a_row(cell: CheckedCell | Uncheckable) -> bool:
    """Whether the change is that to a row above, or is so near to it that it was meant to be."""
    if isinstance(cell, Uncheckable):
        return False
    difference = abs(Fraction(cell.published) - cell.recomputed)
    return cell.verdict is not Verdict.WRONG or difference <= _NEAR * cell.recomputed


def _without_a_base(cell: CheckedCell | Uncheckable) -> Uncheckable:
    if isinstance(cell, Uncheckable):
        return cell
    return Uncheckable(cell.line, cell.row, cell.column, "no change of its row or column follows from a row above")


def _check_change(table: PublishedTable, index: int, change: Change) -> CheckedCell | Uncheckable:
    row = table.rows[index]
    value = row.numbers[change.column]
    references = _find_references(table, index, change.column)
    heading = table.headings[change.column]
    if value is None or not references:
        return Uncheckable(row.line, row.label, heading, "no row above to compare with")
    judged = [_judge_change(row, change, value, reference) for reference in references]
    fitting = [position for position, (verdict, _, _) in enumerate(judged) if verdict is not Verdict.WRONG]
    above = table.rows[index - 1]
    if not fitting and _states_a_change(above, change.column):
        judged.append(_judge_change(row, change, value, above))
        fitting = [len(judged) - 1] if judged[-1][0] is not Verdict.WRONG else []
    if len(references) > 1 and not fitting:
        fitting = _compared_by_others(table, index, change, references)
        if len(fitting) != 1:
            return Uncheckable(row.line, row.label, heading, "several rows above may be the one to compare with")
    verdict, printed, why = judged[fitting[0] if fitting else 0]
    name = "change in %" if change.kind is ChangeKind.PERCENT else "change"
    return make_cell(Position(table, row, change.column, name, change.figure), printed, verdict, why)


def _states_a_change(row: Row, column: int) -> bool:
    """Whether the row has a value other than 0 in the column, with a change of its own."""
    number = row.numbers[column] if column < len(row.numbers) else None
    return number is not None and number.number != 0 and any(change.column == column for change in row.changes)


def _judge_change(row: Row, change: Change, value: Figure, reference: Row) -> tuple[Verdict, Fraction, str]:
    """The verdict on a change against one row, the exact change, and the mistake where one explains it."""
    old = reference.numbers[change.column]
    assert old is not None
    difference = value.number - old.number
    is_percent = change.kind is ChangeKind.PERCENT
    printed = _percent_change(value, old) if is_percent else exact_interval(abs(difference))
    verdict, why = judge(change.figure, printed), ""
    points = exact_interval(abs(difference))
    if verdict is Verdict.WRONG and is_percent and _are_percent(row, reference, change.column):
        in_points = judge(change.figure, points)
        verdict, printed = (in_points, points) if in_points is not Verdict.WRONG else (verdict, printed)
    if change.sign * difference < 0:
        verdict, why = Verdict.WRONG, "the sign is reversed"
    elif verdict is Verdict.WRONG and is_percent:
        why = _explain_change(change, value, difference)
    return verdict, printed.value, why


def _are_percent(row: Row, reference: Row, column: int) -> bool:
    """Whether both values are printed in per cent, so that their difference is, too."""
    return all(_IN_PERCENT.match(cells[column]) for cells in (row.cells, reference.cells))


def _compared_by_others(table: PublishedTable, index: int, change: Change, references: Sequence[Row]) -> list[int]:
    """The references that all other changes of the row agree with."""
    row = table.rows[index]
    changes = [neighbour for neighbour in row.changes if neighbour.column != change.column]
    positions = []
    for position, reference in enumerate(references):
        pairs = [(neighbour, row.numbers[neighbour.column]) for neighbour in changes]
        is_stated = all(reference.numbers[neighbour.column] is not None for neighbour in changes)
        if (
            changes
            and is_stated
            and all(
                value is not None and _judge_change(row, neighbour, value, reference)[0] is not Verdict.WRONG
                for neighbour, value in pairs
            )
        ):
            positions.append(position)
    return positions


def _percent_change(value: Figure, reference: Figure) -> Interval:
    ratio = measured_interval(value) / measured_interval(reference)
    ends = []
    for low, high in (ratio.nearest, ratio.cut):
        smaller, larger = sorted((abs(low - 1) * 100, abs(high - 1) * 100))
        ends.append((Fraction(0) if low < 1 < high else smaller, larger))
    return Interval(abs(ratio.value - 1) * 100, ends[0], ends[1])


def _explain_change(change: Change, value: Figure, difference: Fraction) -> str:
    share = abs(difference) / value.number * 100 if value.number else Fraction(0)
    if judge(change.figure, exact_interval(share)) is Verdict.ROUNDED:
        return "the difference was divided by the new value, not the old one"
    return ""


def _find_references(table: PublishedTable, index: int, column: int) -> list[Row]:
    """The rows above with a value without a change of its own, the nearest first; of equal values one."""
    rows: dict[Fraction, Row] = {}
    for row in reversed(table.rows[:index]):
        number = row.numbers[column] if column < len(row.numbers) else None
        if number and number.number != 0 and all(change.column != column for change in row.changes):
            rows.setdefault(number.number, row)
    return list(rows.values())
