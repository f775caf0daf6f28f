"""Whether the figures of a published table follow from each other.

Each TFLOPs, speed-up, efficiency, share-of-peak and change cell is computed again, exactly, from its own row and the
baseline. A cell is *rounded* if it is the exact value to its own digits, and *truncated* if digits were cut off. It is
*from unrounded inputs* if it follows from an input that is itself printed rounded. Otherwise it is *wrong*.

Figures by another definition are left as they are. Of TFLOPs these are columns of which nearly all cells differ. A
speed-up that is far from the row's own is relative to something that the table does not show.

A row contradicts itself where a global batch is not accumulation x micro batch x DP. So does one whose GPUs are not
TP x PP x DP or nodes x GPUs per node. It does not show which of its columns is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import prod

from perfscope.regenerate.published.derived import (
    ASSUMED_PASSES,
    ASSUMED_SEQ_LEN,
    Interval,
    NotComputable,
    exact_interval,
    find_baselines,
    find_constant,
    measured_interval,
    recompute,
)
from perfscope.tables.published import (
    DERIVED,
    ChangeKind,
    Constant,
    PrintedFigure,
    PublishedRow,
    PublishedTable,
    Quantity,
    StatedChange,
    TextSpan,
)

_Q = Quantity
#: A change that is farther off was meant to be against something else, a speed-up is relative to something else.
_NEAR = Fraction(1, 5)
_FAR = Fraction(3, 2)
_SHARE_DIFFERENT = 0.8
#: A total, its factors, and the factor that a table may leave out.
_PRODUCTS: tuple[tuple[Quantity, tuple[Quantity, ...], Quantity | None], ...] = (
    (_Q.GLOBAL_BATCH, (_Q.ACCUMULATION, _Q.MICRO_BATCH, _Q.DATA_PARALLEL), _Q.ACCUMULATION),
    (_Q.GPUS, (_Q.TENSOR_PARALLEL, _Q.PIPELINE_PARALLEL, _Q.DATA_PARALLEL), _Q.PIPELINE_PARALLEL),
    (_Q.GPUS, (_Q.NODES, _Q.GPUS_PER_NODE), None),
)
_SHORT = {
    _Q.GLOBAL_BATCH: "GBS",
    _Q.ACCUMULATION: "GAS",
    _Q.MICRO_BATCH: "MBS",
    _Q.DATA_PARALLEL: "DP",
    _Q.TENSOR_PARALLEL: "TP",
    _Q.PIPELINE_PARALLEL: "PP",
    _Q.GPUS: "GPUs",
    _Q.NODES: "nodes",
    _Q.GPUS_PER_NODE: "GPUs per node",
}


class CellVerdict(StrEnum):
    """How a published figure compares with the recomputed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    FROM_UNROUNDED = "from unrounded inputs"
    WRONG = "wrong"
    CONVENTION = "other convention"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """One derived cell of a row of a table.

    Attributes:
        row: The label of the row.
        quantity: What the cell states: a ``Quantity``, or a change.
        published: The cell's digits; empty for an empty cell.
        recomputed: The exact value, in the unit of the printed digits.
        text: The recomputed value with as many decimals as the cell.
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
    verdict: CellVerdict
    span: TextSpan

    @property
    def agrees(self) -> bool:
        """Whether the cell follows from its row, or may follow from it by another convention."""
        return self.verdict in (CellVerdict.ROUNDED, CellVerdict.CONVENTION)


@dataclass(frozen=True, slots=True)
class Uncheckable:
    """A cell that could not be recomputed, and why."""

    line: int
    row: str
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A row whose columns cannot all be right."""

    table_title: str
    line: int
    row: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckedTables:
    """The derived cells of a file's tables.

    Attributes:
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
        return tuple(cell for cell in self.differences if cell.verdict is not CellVerdict.FROM_UNROUNDED)


def check_tables(tables: Sequence[PublishedTable], peak_tflops: float | None = None) -> CheckedTables:
    """Recompute every derived cell; without the GPU's dense peak not those with a share of it."""
    peak = Fraction(str(peak_tflops)) if peak_tflops else None
    results = [result for table in tables for result in _check_table(table, peak)]
    cells = tuple(result for result in results if isinstance(result, CheckedCell))
    return CheckedTables(
        cells,
        tuple(result for result in results if isinstance(result, Uncheckable)),
        (),
        _find_assumed(tables, {(cell.table_line, cell.line) for cell in cells if cell.quantity == _Q.TFLOPS}),
    )


def find_contradictions(tables: Sequence[PublishedTable]) -> tuple[Contradiction, ...]:
    """List every row that contradicts itself."""
    return tuple(
        Contradiction(table.title, row.line, row.label, problem)
        for table in tables
        for row in table.rows
        for problem in _contradictions(row, table.constants)
    )


def leave_conventions(checked: CheckedTables) -> CheckedTables:
    """Give the figures that follow another convention that verdict, and say so once for a column."""
    columns: dict[tuple[int, str], list[CheckedCell]] = {}
    for cell in checked.cells:
        if cell.published:
            columns.setdefault((cell.table_line, cell.column), []).append(cell)
    left: set[tuple[int, int]] = set()
    described: list[str] = []
    for (line, column), cells in columns.items():
        others = _others(cells)
        if not others:
            continue
        left |= {(cell.line, cell.span.start) for cell in others}
        described.append(
            f"line {line}: {len(others)} of {len(cells)} cells of {column} may follow another convention, or a log: "
            "they are left as they are"
        )
    judged = tuple(
        replace(cell, verdict=CellVerdict.CONVENTION) if (cell.line, cell.span.start) in left else cell
        for cell in checked.cells
    )
    return replace(checked, cells=judged, conventions=tuple(described))


def _others(cells: Sequence[CheckedCell]) -> list[CheckedCell]:
    """The wrong cells of a column that follow another definition."""
    wrong = [cell for cell in cells if cell.verdict is CellVerdict.WRONG and cell.recomputed]
    if cells[0].quantity in (_Q.SPEEDUP, _Q.EFFICIENCY):
        return [cell for cell in wrong if not 1 / _FAR <= _ratio(cell) <= _FAR]
    return wrong if cells[0].quantity == _Q.TFLOPS and len(wrong) >= _SHARE_DIFFERENT * len(cells) else []


def _ratio(cell: CheckedCell) -> Fraction:
    return Fraction(cell.published.replace(",", "")) / cell.recomputed if cell.recomputed else Fraction(0)


def _check_table(table: PublishedTable, peak: Fraction | None) -> Iterator[CheckedCell | Uncheckable | None]:
    derived = [quantity for quantity in DERIVED if quantity in table.columns]
    for index, (row, baseline) in enumerate(zip(table.rows, find_baselines(table), strict=True)):
        for quantity in derived:
            yield _check_cell(table, row, quantity, baseline, peak)
        for change in row.changes:
            yield _check_change(table, index, change)


def _check_cell(
    table: PublishedTable, row: PublishedRow, quantity: Quantity, baseline: PublishedRow | None, peak: Fraction | None
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
        printed = exact.over(exact_interval(published.unit))
        verdict = judge(published, printed)
        if verdict is CellVerdict.WRONG and quantity is _Q.EFFICIENCY and _is_of_printed_speedup(table, row, baseline):
            verdict = CellVerdict.FROM_UNROUNDED
        return _make_cell(table, row, column, published, str(quantity), printed.value, verdict)
    if blank is not None:
        decimals = _usual_decimals(table, quantity)
        empty = PrintedFigure(exact.value, Fraction(1), decimals, "", blank)
        return _make_cell(table, row, column, empty, str(quantity), exact.value, CellVerdict.MISSING)
    reason = row.absent.get(quantity) or row.problems.get(quantity, "")
    return Uncheckable(row.line, row.label, table.headings[column], reason)


def _make_cell(
    table: PublishedTable,
    row: PublishedRow,
    column: int,
    published: PrintedFigure,
    quantity: str,
    value: Fraction,
    verdict: CellVerdict,
) -> CheckedCell:
    return CheckedCell(
        table_line=table.line,
        table_title=table.title,
        line=row.line,
        row=row.label,
        column=table.headings[column],
        quantity=quantity,
        published=published.text,
        recomputed=value,
        text=format_rounded(value, published.decimals),
        verdict=verdict,
        span=published.span,
    )


def _is_of_printed_speedup(table: PublishedTable, row: PublishedRow, baseline: PublishedRow | None) -> bool:
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
    return judge(speedup, exact) is not CellVerdict.WRONG and judge(efficiency, printed) is CellVerdict.ROUNDED


def _usual_decimals(table: PublishedTable, quantity: Quantity) -> int:
    printed = [row.figures[quantity].decimals for row in table.rows if quantity in row.figures]
    return max(set(printed), key=printed.count) if printed else 1


def _check_change(table: PublishedTable, index: int, change: StatedChange) -> CheckedCell | Uncheckable:
    """A change is against the nearest row above that states none of its own; one that is far off is of another."""
    row, column = table.rows[index], change.column
    value, old = row.numbers[column], None
    for above in reversed(table.rows[:index]):
        number = above.numbers[column] if column < len(above.numbers) else None
        if number and number.number and all(other.column != column for other in above.changes):
            old = number
            break
    if value is None or old is None:
        return Uncheckable(row.line, row.label, table.headings[column], "no row above to compare with")
    difference = value.number - old.number
    is_percent = change.kind is ChangeKind.PERCENT
    printed = _percent_change(value, old) if is_percent else exact_interval(abs(difference))
    verdict = CellVerdict.WRONG if change.sign * difference < 0 else judge(change.figure, printed)
    is_near = abs(change.figure.number / change.figure.unit - printed.value) <= _NEAR * printed.value
    if verdict is CellVerdict.WRONG and not is_near:
        return Uncheckable(row.line, row.label, table.headings[column], "it is of something else")
    name = "change in %" if is_percent else "change"
    return _make_cell(table, row, column, change.figure, name, printed.value, verdict)


def _percent_change(value: PrintedFigure, reference: PrintedFigure) -> Interval:
    ratio = measured_interval(value).over(measured_interval(reference))
    bounds = []
    for low, high in ratio.bounds:
        smaller, larger = sorted((abs(low - 1) * 100, abs(high - 1) * 100))
        bounds.append((Fraction(0) if low < 1 < high else smaller, larger))
    return Interval(abs(ratio.value - 1) * 100, tuple(bounds))


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


def _contradictions(row: PublishedRow, constants: Mapping[Quantity, Constant]) -> Iterator[str]:
    values = {quantity: figure.number for quantity, figure in row.figures.items()}
    texts = {
        quantity: f"{_SHORT[quantity]} {figure.text}" for quantity, figure in row.figures.items() if quantity in _SHORT
    }
    for quantity in (_Q.TENSOR_PARALLEL, _Q.GPUS):
        if quantity not in values and quantity in constants:
            values[quantity] = Fraction(constants[quantity].value)
            texts[quantity] = f"{_SHORT[quantity]} {constants[quantity].value} ({constants[quantity].origin})"
    for total, factors, optional in _PRODUCTS:
        present = [factor for factor in factors if factor in values]
        if total not in values or not set(factors) - {optional} <= set(present):
            continue
        value = prod((values[factor] for factor in present), start=Fraction(1))
        written = " x ".join(texts[factor] for factor in present)
        if len(present) == len(factors) and values[total] != value:
            yield f"{texts[total]}, but {written} = {value}"
        elif values[total] % value:  # without the optional factor it must at least be a multiple of the others
            yield f"{texts[total]} is not a multiple of {written} = {value}"


def judge(published: PrintedFigure, printed: Interval) -> CellVerdict:
    """Compare a published figure with the computed value, both in the unit of the printed digits."""
    stated = published.number / published.unit
    last_place = Fraction(1, 10**published.decimals)
    half = last_place / 2
    if abs(printed.value - stated) <= half:
        return CellVerdict.ROUNDED
    if stated <= printed.value < stated + last_place:
        return CellVerdict.TRUNCATED
    if any(low <= stated + half and high >= stated - half for low, high in printed.bounds):
        return CellVerdict.FROM_UNROUNDED
    return CellVerdict.WRONG


def format_rounded(value: Fraction, decimals: int) -> str:
    """Write a fraction with a number of decimals, halves to even."""
    digits = round(value * 10**decimals)
    sign = "-" if digits < 0 else ""
    whole, part = divmod(abs(digits), 10**decimals)
    return f"{sign}{whole}.{part:0{decimals}d}" if decimals else f"{sign}{whole}"
