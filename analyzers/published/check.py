"""Whether a published figure follows from the figures beside it.

Each TFLOPs, speed-up, efficiency, share-of-peak and change cell is computed again, exactly, from its own row and the
baseline. A cell is *rounded* if it is the exact value to its own digits, and *truncated* if digits were cut off. It is
*from unrounded inputs* if it follows from an input that is itself printed rounded. Otherwise it is *wrong*.

Columns that differ as a whole follow another definition and are left as they are.

A file often holds many tables of one author. If nearly all of its TFLOPs differ a little, all of them follow the other
convention. Otherwise a table follows it if nearly all of its TFLOPs differ by the same factor. A table also follows it
if no TFLOPs agree and each follows from other passes or another sequence length than those assumed. Speed-ups and
efficiencies have one usual definition, so a stale column is recomputed. Where no cell of a column follows from it and
most are far from it, the table does not show what they are relative to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from perfscope.analyzers.published.derived import (
    ASSUMED_PASSES,
    ASSUMED_SEQ_LEN,
    Interval,
    NotComputable,
    exact_interval,
    find_baselines,
    find_constant,
    measured_interval,
    recompute,
    tflops,
)
from perfscope.analyzers.published.verdicts import (
    CheckedCell,
    Position,
    Uncheckable,
    Verdict,
    format_rounded,
    judge,
    make_cell,
)
from perfscope.constants import GB, GIB
from perfscope.tables.published import DERIVED, Change, ChangeKind, Figure, PublishedTable, Quantity, Row

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


_Q = Quantity

_PASSES_WITH_AND_WITHOUT_RECOMPUTATION = 4 + 3


@dataclass(frozen=True, slots=True)
class CheckedTables:
    """The derived cells of a file's tables.

    Attributes:
        cells: Every derived cell that could be recomputed.
        uncheckable: Cells that could not be recomputed; deliberately empty ones (OOM) are not listed.
        conventions: Tables whose TFLOPs follow another convention, in words.
        assumed: Constants that neither the file nor an option states: ``sequence length 1024 (tokens)``.
    """

    cells: tuple[CheckedCell, ...]
    uncheckable: tuple[Uncheckable, ...]
    conventions: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def differences(self) -> tuple[CheckedCell, ...]:
        """The cells that do not follow from their rows."""
        return tuple(cell for cell in self.cells if not cell.agrees)

    @property
    def unfounded(self) -> tuple[CheckedCell, ...]:
        """The differences that no input before it was rounded can explain: what such an input gives may be right."""
        return tuple(cell for cell in self.differences if cell.verdict is not Verdict.FROM_UNROUNDED)


def check_tables(tables: Sequence[PublishedTable], peak_tflops: float | None = None) -> CheckedTables:
    """Recompute every derived cell.

    Args:
        tables: The tables of a file.
        peak_tflops: The GPU's dense peak, for columns with a share of it; without it they are not recomputed.
    """
    peak = Fraction(str(peak_tflops)) if peak_tflops else None
    results = [result for table in tables for result in _check_table(table, peak)]
    cells = tuple(result for result in results if isinstance(result, CheckedCell))
    return CheckedTables(
        cells,
        tuple(result for result in results if isinstance(result, Uncheckable)),
        (),
        _find_assumed(tables, {(cell.table_line, cell.line) for cell in cells if cell.quantity == _Q.TFLOPS}),
    )


def _check_table(table: PublishedTable, peak: Fraction | None) -> Iterator[CheckedCell | Uncheckable | None]:
    derived = [quantity for quantity in DERIVED if quantity in table.columns]
    changes = check_changes(table)
    for index, (row, baseline) in enumerate(zip(table.rows, find_baselines(table), strict=True)):
        for quantity in derived:
            yield _check_cell(table, row, quantity, baseline, peak)
        yield from changes[index]


def _check_cell(
    table: PublishedTable, row: Row, quantity: Quantity, baseline: Row | None, peak: Fraction | None
) -> CheckedCell | Uncheckable | None:
    """Check one cell; None if it has no figure and needs none, as in a row with OOM."""
    published = row.figures.get(quantity)
    blank = row.blanks.get(quantity)
    column = table.columns[quantity]
    try:
        exact = recompute(table, row, quantity, baseline, peak)
    except NotComputable as error:
        if published is None and not row.problems:
            return None
        return Uncheckable(row.line, row.label, table.headings[column], row.problems.get(quantity, str(error)))
    if published is not None:
        printed = exact / exact_interval(published.unit)
        verdict = judge(published, printed)
        if verdict is Verdict.WRONG and quantity is _Q.EFFICIENCY and _is_of_printed_speedup(table, row, baseline):
            verdict = Verdict.FROM_UNROUNDED
        why = _explain(table, row, quantity, baseline, published) if verdict is Verdict.WRONG else ""
        return make_cell(Position(table, row, column, str(quantity), published), printed.value, verdict, why)
    if blank is not None:
        decimals = _usual_decimals(table, quantity)
        empty = Figure(exact.value, Fraction(1), decimals, "", blank)
        return make_cell(Position(table, row, column, str(quantity), empty), exact.value, Verdict.MISSING, "")
    reason = row.absent.get(quantity) or row.problems.get(quantity, "")
    return Uncheckable(row.line, row.label, table.headings[column], reason)


def _is_of_printed_speedup(table: PublishedTable, row: Row, baseline: Row | None) -> bool:
    """Whether the efficiency is that of the speed-up as printed, which itself follows from its table."""
    speedup, efficiency = row.figures.get(_Q.SPEEDUP), row.figures[_Q.EFFICIENCY]
    if speedup is None or baseline is None:
        return False
    try:
        exact = recompute(table, row, _Q.SPEEDUP, baseline, None)
        ratio = recompute(table, row, _Q.EFFICIENCY, baseline, None).value / exact.value
    except NotComputable:
        return False
    printed = exact_interval(speedup.number * ratio / efficiency.unit)
    return judge(speedup, exact) is not Verdict.WRONG and judge(efficiency, printed) is Verdict.ROUNDED


def _usual_decimals(table: PublishedTable, quantity: Quantity) -> int:
    printed = [row.figures[quantity].decimals for row in table.rows if quantity in row.figures]
    return max(set(printed), key=printed.count) if printed else 1


def _explain(table: PublishedTable, row: Row, quantity: Quantity, baseline: Row | None, published: Figure) -> str:
    """Name a simple mistake that gives exactly the published figure; else the input that it would need."""
    if quantity is _Q.SPEEDUP and baseline is not None and _Q.RATE in row.figures and _Q.RATE in baseline.figures:
        rate = published.number * baseline.figures[_Q.RATE].number
        return f"it needs {format_rounded(rate, row.figures[_Q.RATE].decimals)} samples/s"
    if quantity is not _Q.TFLOPS or published.number <= 0:
        return ""
    exact = tflops(table, row).value
    passes = find_constant(table, row, _Q.PASSES, ASSUMED_PASSES).value
    wrong_passes = _PASSES_WITH_AND_WITHOUT_RECOMPUTATION - passes
    mistakes = (
        (Fraction(wrong_passes, passes), f"{wrong_passes} passes instead of {passes} would give this figure"),
        (Fraction(GIB, GB), "a size in units of 2**30 would give this figure"),
        (Fraction(GB, GIB), "a size divided by 2**30 instead of 10**9 would give this figure"),
    )
    for factor, name in mistakes:
        if judge(published, exact_interval(exact * factor)) is Verdict.ROUNDED:
            return name
    if _Q.STEP_TIME not in row.figures:
        return ""
    time = row.figures[_Q.STEP_TIME]
    return f"would need a step time of {format_rounded(time.number * exact / published.number, time.decimals + 1)} s"


def _find_assumed(tables: Sequence[PublishedTable], computed: set[tuple[int, int]]) -> tuple[str, ...]:
    """The constants that nothing states, for rows whose TFLOPs were computed."""
    assumed: dict[str, None] = {}
    for table in tables:
        for row in table.rows:
            if (table.line, row.line) not in computed:
                continue
            for quantity, fallback in ((_Q.SEQ_LEN, ASSUMED_SEQ_LEN), (_Q.PASSES, ASSUMED_PASSES)):
                needed = quantity is _Q.PASSES or not {_Q.TOKEN_RATE, _Q.TOKENS} & set(row.figures)
                if needed and find_constant(table, row, quantity, fallback) is fallback:
                    assumed[f"{quantity} {fallback.value} ({fallback.origin})"] = None
    return tuple(assumed)


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
