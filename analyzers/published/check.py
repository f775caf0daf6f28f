"""Does a published figure follow from the figures beside it?

Each TFLOPs, speed-up, efficiency, share-of-peak and change cell is computed again, exactly, from its own row and the
baseline. A cell is *rounded* where it is the exact value to its own digits, *truncated* where digits were cut off,
*from unrounded* where it follows from an input that is itself printed rounded, and *wrong* where nothing of that holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from perfscope.analyzers.published.derived import (
    ASSUMED_PASSES,
    ASSUMED_SEQ_LEN,
    CannotTell,
    Interval,
    baselines,
    constant,
    exactly,
    measured,
    recompute,
    tflops,
)
from perfscope.tables.published import DERIVED, Change, ChangeKind, Figure, PublishedTable, Quantity, Row, Span

_Q = Quantity
_MANY = 3
_NEARLY_ALL = 0.8
_A_LITTLE = Fraction(1, 5)


class Verdict(StrEnum):
    """How a published figure stands to the recomputed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    FROM_UNROUNDED = "from unrounded inputs"
    WRONG = "wrong"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """One derived cell.

    Attributes:
        table_line: Line of the table's heading row.
        table_title: The heading above the table.
        line: The row's line.
        row: What tells the row from others.
        column: The column's heading.
        quantity: What the cell states; a change is named so.
        published: The cell's digits; empty where the cell is.
        recomputed: The exact value, in the unit of the printed digits.
        text: The recomputed value with as many decimals as the cell.
        verdict: How the two stand to each other.
        why: For a wrong cell, what would explain it, where something simple does.
        span: Where the digits stand.
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
        """Whether the cell is what its row says."""
        return self.verdict is Verdict.ROUNDED


@dataclass(frozen=True, slots=True)
class Uncheckable:
    """A cell that could not be recomputed, and why."""

    line: int
    row: str
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """Every table of a file against itself.

    Attributes:
        cells: Every derived cell that could be recomputed.
        uncheckable: Cells that could not be recomputed; deliberately empty ones (OOM) are not listed.
        assumed: Constants that neither the file nor an option gave: ``sequence length 1024 (tokens)``.
    """

    cells: tuple[CheckedCell, ...]
    uncheckable: tuple[Uncheckable, ...]
    assumed: tuple[str, ...]

    @property
    def differences(self) -> tuple[CheckedCell, ...]:
        """The cells that are not what their rows say."""
        return tuple(cell for cell in self.cells if not cell.agrees)


def analyze(tables: Sequence[PublishedTable], peak_tflops: float | None = None) -> Published:
    """Recompute every derived cell.

    Args:
        tables: The tables of a file.
        peak_tflops: The GPU's dense peak, for columns that give a share of it; without it they are not recomputed.
    """
    peak = Fraction(str(peak_tflops)) if peak_tflops else None
    found = [answer for table in tables for answer in _check_table(table, peak)]
    cells = tuple(answer for answer in found if isinstance(answer, CheckedCell))
    return Published(
        cells,
        tuple(answer for answer in found if isinstance(answer, Uncheckable)),
        _assumed(tables, {(cell.table_line, cell.line) for cell in cells if cell.quantity == _Q.TFLOPS}),
    )


def of_another_convention(published: Published) -> tuple[str, ...]:
    """Tables whose TFLOPs are nearly all a little off: they were counted in another way than by BigScience's."""
    said = []
    for line in dict.fromkeys(cell.table_line for cell in published.cells):
        cells = [cell for cell in published.cells if cell.table_line == line and cell.quantity == _Q.TFLOPS]
        shares = [Fraction(cell.published.replace(",", "")) / cell.recomputed - 1 for cell in cells if cell.published]
        off = [share for cell, share in zip(cells, shares, strict=False) if cell.verdict is Verdict.WRONG]
        if len(off) >= _MANY and len(off) >= _NEARLY_ALL * len(cells) and max(map(abs, off)) <= _A_LITTLE:
            said.append(
                f"line {line}: {len(off)} of {len(cells)} TFLOPs are off by {float(min(off)):+.1%} to "
                f"{float(max(off)):+.1%}: they may follow another convention, or a log"
            )
    return tuple(said)


def _check_table(table: PublishedTable, peak: Fraction | None) -> list[CheckedCell | Uncheckable | None]:
    found: list[CheckedCell | Uncheckable | None] = []
    for index, (row, baseline) in enumerate(zip(table.rows, baselines(table), strict=True)):
        derived = [quantity for quantity in DERIVED if quantity in table.columns]
        found.extend(_check_cell(table, row, quantity, baseline, peak) for quantity in derived)
        found.extend(_check_change(table, index, change) for change in row.changes)
    return found


def _check_cell(
    table: PublishedTable, row: Row, quantity: Quantity, baseline: Row | None, peak: Fraction | None
) -> CheckedCell | Uncheckable | None:
    """Check one cell; None where it holds no figure and none is expected, as beside OOM."""
    published = row.figures.get(quantity)
    blank = row.blanks.get(quantity)
    column = table.columns[quantity]
    try:
        exact = recompute(table, row, quantity, baseline, peak)
    except CannotTell as reason:
        reason_here = row.problems.get(quantity, str(reason))
        return (
            Uncheckable(row.line, row.label, table.headings[column], reason_here) if published or row.problems else None
        )
    if published is not None:
        printed = exact / exactly(published.unit)
        verdict = judge(published, printed)
        why = _explain(table, row, quantity, baseline, published) if verdict is Verdict.WRONG else ""
        return _cell(_Place(table, row, column, str(quantity), published), printed.value, verdict, why)
    if blank is not None:
        decimals = _usual_decimals(table, quantity)
        empty = Figure(exact.value, Fraction(1), decimals, "", blank)
        return _cell(_Place(table, row, column, str(quantity), empty), exact.value, Verdict.MISSING, "")
    said = row.absent.get(quantity) or row.problems.get(quantity, "")
    return Uncheckable(row.line, row.label, table.headings[column], said)


@dataclass(frozen=True, slots=True)
class _Place:
    """Which cell it is, and what is printed there."""

    table: PublishedTable
    row: Row
    column: int
    quantity: str
    published: Figure


def _cell(place: _Place, value: Fraction, verdict: Verdict, why: str) -> CheckedCell:
    return CheckedCell(
        table_line=place.table.line,
        table_title=place.table.title,
        line=place.row.line,
        row=place.row.label,
        column=place.table.headings[place.column],
        quantity=place.quantity,
        published=place.published.text,
        recomputed=value,
        text=rounded(value, place.published.decimals),
        verdict=verdict,
        why=why,
        span=place.published.span,
    )


def _usual_decimals(table: PublishedTable, quantity: Quantity) -> int:
    printed = [row.figures[quantity].decimals for row in table.rows if quantity in row.figures]
    return max(set(printed), key=printed.count) if printed else 1


def judge(published: Figure, printed: Interval) -> Verdict:
    """Say how a published figure stands to the computed value, both in the unit of the printed digits."""
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


def rounded(value: Fraction, decimals: int) -> str:
    """Write a fraction with so many decimals, halves to even.

    >>> rounded(Fraction(4974996, 100000), 1)
    '49.7'
    """
    digits = round(value * 10**decimals)
    sign = "-" if digits < 0 else ""
    whole, part = divmod(abs(digits), 10**decimals)
    return f"{sign}{whole}.{part:0{decimals}d}" if decimals else f"{sign}{whole}"


def _check_change(table: PublishedTable, index: int, change: Change) -> CheckedCell | Uncheckable:
    row = table.rows[index]
    reference = _reference(table.rows[:index], change.column)
    value = row.numbers[change.column]
    if reference is None or value is None or reference.number == 0:
        return Uncheckable(row.line, row.label, table.headings[change.column], "no row above to compare with")
    difference = value.number - reference.number
    percent = change.kind is ChangeKind.PERCENT
    printed = _percent_change(value, reference) if percent else exactly(abs(difference))
    verdict = judge(change.figure, printed)
    why = ""
    if change.sign * difference < 0:
        verdict, why = Verdict.WRONG, "the sign is the other one"
    elif verdict is Verdict.WRONG and percent:
        why = _share_of_new(change, value, difference)
    name = "change in %" if percent else "change"
    return _cell(_Place(table, row, change.column, name, change.figure), printed.value, verdict, why)


def _percent_change(value: Figure, reference: Figure) -> Interval:
    ratio = measured(value) / measured(reference)
    ends = []
    for low, high in (ratio.nearest, ratio.cut):
        smaller, larger = sorted((abs(low - 1) * 100, abs(high - 1) * 100))
        ends.append((Fraction(0) if low < 1 < high else smaller, larger))
    return Interval(abs(ratio.value - 1) * 100, ends[0], ends[1])


def _share_of_new(change: Change, value: Figure, difference: Fraction) -> str:
    share = abs(difference) / value.number * 100 if value.number else Fraction(0)
    if judge(change.figure, exactly(share)) is Verdict.ROUNDED:
        return "it is the difference over the new value, not over the old"
    return ""


def _reference(above: Sequence[Row], column: int) -> Figure | None:
    """The nearest value above without a change of its own: what changes are against."""
    for row in reversed(above):
        number = row.numbers[column] if column < len(row.numbers) else None
        if number is not None and all(change.column != column for change in row.changes):
            return number
    return None


def _explain(table: PublishedTable, row: Row, quantity: Quantity, baseline: Row | None, published: Figure) -> str:
    """Name a simple mistake that gives exactly what was published; else the input that it would need."""
    if quantity is _Q.SPEEDUP and baseline is not None and _Q.RATE in row.figures and _Q.RATE in baseline.figures:
        rate = published.number * baseline.figures[_Q.RATE].number
        return f"it needs {rounded(rate, row.figures[_Q.RATE].decimals)} samples a second"
    if quantity is not _Q.TFLOPS or published.number <= 0:
        return ""
    exact = tflops(table, row).value
    passes = constant(table, row, _Q.PASSES, ASSUMED_PASSES).value
    other = 7 - passes  # 3 for 4, and 4 for 3
    mistakes = (
        (Fraction(other, passes), f"{other} passes instead of {passes} give it"),
        (Fraction(2**30, 10**9), "a size in units of 2**30 gives it"),
        (Fraction(10**9, 2**30), "a size divided by 2**30 instead of 10**9 gives it"),
    )
    for factor, name in mistakes:
        if judge(published, exactly(exact * factor)) is Verdict.ROUNDED:
            return name
    if _Q.STEP_TIME not in row.figures:
        return ""
    time = row.figures[_Q.STEP_TIME]
    return f"it needs a step time of {rounded(time.number * exact / published.number, time.decimals + 1)} s"


def _assumed(tables: Sequence[PublishedTable], computed: set[tuple[int, int]]) -> tuple[str, ...]:
    """The constants that nothing stated, for rows whose TFLOPs were computed."""
    assumed: dict[str, None] = {}
    for table in tables:
        for row in table.rows:
            if (table.line, row.line) not in computed:
                continue
            for quantity, fallback in ((_Q.SEQ_LEN, ASSUMED_SEQ_LEN), (_Q.PASSES, ASSUMED_PASSES)):
                needed = quantity is _Q.PASSES or not {_Q.TOKEN_RATE, _Q.TOKENS} & set(row.figures)
                if needed and constant(table, row, quantity, fallback) is fallback:
                    assumed[f"{quantity} {fallback.value} ({fallback.origin})"] = None
    return tuple(assumed)
