"""Whether a published figure follows from the figures beside it.

Each TFLOPs, speed-up, efficiency, share-of-peak and change cell is computed again, exactly, from its own row and the
baseline. A cell is *rounded* if it is the exact value to its own digits, *truncated* if digits were cut off,
*from unrounded inputs* if it follows from an input that is itself printed rounded, and *wrong* if none of that is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
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
from perfscope.constants import GB, GIB
from perfscope.tables.published import DERIVED, Change, ChangeKind, Figure, PublishedTable, Quantity, Row, Span

_Q = Quantity

_IN_PERCENT = re.compile(r"[*_~`≈\s]*[\d.,]{1,30} ?%")
_PASSES_WITH_AND_WITHOUT_RECOMPUTATION = 4 + 3


class Verdict(StrEnum):
    """How a published figure compares with the recomputed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    FROM_UNROUNDED = "from unrounded inputs"
    WRONG = "wrong"
    CONVENTION = "other convention"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """One derived cell.

    Attributes:
        table_line: Line of the table's heading row.
        table_title: The heading above the table.
        line: The row's line.
        row: The label of the row.
        column: The column's heading.
        quantity: What the cell states: a ``Quantity``, or a change.
        published: The cell's digits; empty for an empty cell.
        recomputed: The exact value, in the unit of the printed digits.
        text: The recomputed value with as many decimals as the cell.
        verdict: How the two compare.
        why: For a wrong cell, the simple mistake that explains it, if there is one.
        span: Where the digits are in the file.
    """

    table_line: int
    table_title: str
    line: int
    row: str
    column: str
    quantity: str
    published: str
    recomputed: Fraction
    text: str
    verdict: Verdict
    why: str
    span: Span

    @property
    def agrees(self) -> bool:
        """Whether the cell follows from its row, or may follow from it by another convention."""
        return self.verdict in (Verdict.ROUNDED, Verdict.CONVENTION)


@dataclass(frozen=True, slots=True)
class Uncheckable:
    """A cell that could not be recomputed, and why."""

    line: int
    row: str
    column: str
    reason: str


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
    for index, (row, baseline) in enumerate(zip(table.rows, find_baselines(table), strict=True)):
        for quantity in derived:
            yield _check_cell(table, row, quantity, baseline, peak)
        for change in row.changes:
            yield _check_change(table, index, change)


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
        why = _explain(table, row, quantity, baseline, published) if verdict is Verdict.WRONG else ""
        return _cell(_Position(table, row, column, str(quantity), published), printed.value, verdict, why)
    if blank is not None:
        decimals = _usual_decimals(table, quantity)
        empty = Figure(exact.value, Fraction(1), decimals, "", blank)
        return _cell(_Position(table, row, column, str(quantity), empty), exact.value, Verdict.MISSING, "")
    reason = row.absent.get(quantity) or row.problems.get(quantity, "")
    return Uncheckable(row.line, row.label, table.headings[column], reason)


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of a cell, and its printed figure."""

    table: PublishedTable
    row: Row
    column: int
    quantity: str
    published: Figure


def _cell(position: _Position, value: Fraction, verdict: Verdict, why: str) -> CheckedCell:
    return CheckedCell(
        table_line=position.table.line,
        table_title=position.table.title,
        line=position.row.line,
        row=position.row.label,
        column=position.table.headings[position.column],
        quantity=position.quantity,
        published=position.published.text,
        recomputed=value,
        text=format_rounded(value, position.published.decimals),
        verdict=verdict,
        why=why,
        span=position.published.span,
    )


def _usual_decimals(table: PublishedTable, quantity: Quantity) -> int:
    printed = [row.figures[quantity].decimals for row in table.rows if quantity in row.figures]
    return max(set(printed), key=printed.count) if printed else 1


def judge(published: Figure, printed: Interval) -> Verdict:
    """Compare a published figure with the computed value, both in the unit of the printed digits."""
    stated = published.number / published.unit
    last_place = Fraction(1, 10**published.decimals)
    half = last_place / 2
    if abs(printed.value - stated) <= half:
        return Verdict.ROUNDED
    if stated <= printed.value < stated + last_place:
        return Verdict.TRUNCATED
    if any(low <= stated + half and high >= stated - half for low, high in (printed.nearest, printed.cut)):
        return Verdict.FROM_UNROUNDED
    return Verdict.WRONG


def format_rounded(value: Fraction, decimals: int) -> str:
    """Write a fraction with a number of decimals, halves to even.

    >>> format_rounded(Fraction(4974996, 100000), 1)
    '49.7'
    """
    digits = round(value * 10**decimals)
    sign = "-" if digits < 0 else ""
    whole, part = divmod(abs(digits), 10**decimals)
    return f"{sign}{whole}.{part:0{decimals}d}" if decimals else f"{sign}{whole}"


def _check_change(table: PublishedTable, index: int, change: Change) -> CheckedCell | Uncheckable:
    row = table.rows[index]
    value = row.numbers[change.column]
    references = _find_references(table, index, change.column)
    heading = table.headings[change.column]
    if value is None or not references:
        return Uncheckable(row.line, row.label, heading, "no row above to compare with")
    judged = [_judge_change(row, change, value, reference) for reference in references]
    fitting = [position for position, (verdict, _, _) in enumerate(judged) if verdict is not Verdict.WRONG]
    if len(references) > 1 and not fitting:
        fitting = _compared_by_others(table, index, change, references)
        if len(fitting) != 1:
            return Uncheckable(row.line, row.label, heading, "several rows above may be the one to compare with")
    verdict, printed, why = judged[fitting[0] if fitting else 0]
    name = "change in %" if change.kind is ChangeKind.PERCENT else "change"
    return _cell(_Position(table, row, change.column, name, change.figure), printed, verdict, why)


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
