"""Whether the figures of a published table follow from each other.

Each TFLOPs, speed-up, efficiency, share-of-peak and change cell is computed again, exactly, from its own row and the
baseline. TFLOPs follow the BigScience convention. Speed-up is the rate over the baseline's. Efficiency is the speed-up
over the ratio of the GPUs. A save of mixed precision and Adam is 14 bytes/parameter.

A cell is *rounded* if it is the exact value to its own digits, and *truncated* if digits were cut off. It is *from
unrounded inputs* if it follows from an input that is itself printed rounded. Otherwise it is *wrong*. Figures by other
definitions are left: columns of TFLOPs of which all cells differ, speed-ups that are far from the row's own.

A row contradicts itself where a total is not the product of its factors. It does not show which column is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import NamedTuple

import msgspec

from perfscope.analyzers.checkpoint import bytes_per_parameter
from perfscope.constants import GIGA, KILO, TERA
from perfscope.models.conventions import FORWARD
from perfscope.tables.published import (
    DERIVED,
    Constant,
    PrintedFigure,
    PublishedRow,
    PublishedTable,
    Quantity,
    StatedChange,
    TextSpan,
)

_Q = Quantity
ASSUMED_SEQ_LEN = Constant(1024, "tokens")
ASSUMED_PASSES = Constant(4, "activations are recomputed")


class NotComputable(Exception):
    """A cell cannot be recomputed; the text gives the reason."""


class Interval(NamedTuple):
    """A computed value, and its bounds if every measured input was rounded, or cut off, to its last digit."""

    value: Fraction
    bounds: tuple[tuple[Fraction, Fraction], ...]

    def times(self, factor: Interval) -> Interval:
        """The product."""
        pairs = zip(self.bounds, factor.bounds, strict=True)
        return Interval(
            self.value * factor.value, tuple((one[0] * other[0], one[1] * other[1]) for one, other in pairs)
        )

    def over(self, divisor: Interval) -> Interval:
        """The quotient."""
        return self.times(Interval(1 / divisor.value, tuple((1 / high, 1 / low) for low, high in divisor.bounds)))


def exact_interval(value: Fraction) -> Interval:
    """The interval of an exact value."""
    return Interval(value, ((value, value),) * 2)


def measured_interval(figure: PrintedFigure) -> Interval:
    """The interval of a measured figure, by its printed digits."""
    number, digit = figure.number, figure.last_place
    low = number - digit / 2
    return Interval(number, ((low if low > 0 else number, number + digit / 2), (number, number + digit)))


def recompute(
    table: PublishedTable, row: PublishedRow, quantity: Quantity, baseline: PublishedRow | None, peak: Fraction | None
) -> Interval:
    """Compute a derived quantity of a row, in its base unit; ``NotComputable`` names an input that is missing."""
    if quantity in _FROM_THE_ROW:
        return _FROM_THE_ROW[quantity](table, row)
    if quantity is _Q.PEAK_FRACTION:
        if peak is None:
            raise NotComputable("the GPU's peak is not known: set --gpu")
        return measured_interval(_require(row, _Q.TFLOPS)).over(exact_interval(peak))
    if baseline is None:
        raise NotComputable("no row to compare with")
    if quantity is _Q.SPEEDUP:
        return _speedup(row, baseline)
    gpu_ratio = exact_interval(_gpus(row, table.constants) / _gpus(baseline, table.constants))
    if _Q.SPEEDUP in row.figures and not (_has_speed(row) and _has_speed(baseline)):
        return measured_interval(row.figures[_Q.SPEEDUP]).over(gpu_ratio)
    return _speedup(row, baseline).over(gpu_ratio)


def find_constant(table: PublishedTable, row: PublishedRow, quantity: Quantity, assumed: Constant) -> Constant:
    """A constant of a row: from its column, else from an option or the text, else assumed; two values are an error."""
    figure = row.figures.get(quantity)
    if figure is not None:
        return Constant(int(figure.number), "column")
    if quantity in table.constants:
        return table.constants[quantity]
    if quantity in table.ambiguous:
        raise NotComputable(f"{table.ambiguous[quantity]}: set it with an option")
    return assumed


def tflops(table: PublishedTable, row: PublishedRow) -> Interval:
    """TFLOPs per GPU by the BigScience convention."""
    parameters = _parameters(table, row)
    passes = find_constant(table, row, _Q.PASSES, ASSUMED_PASSES)
    seq_len = find_constant(table, row, _Q.SEQ_LEN, ASSUMED_SEQ_LEN)
    gpus = exact_interval(_gpus(row, table.constants))
    if _Q.TOKEN_RATE in row.figures:
        tokens = measured_interval(row.figures[_Q.TOKEN_RATE])
    elif _Q.RATE in row.figures:
        tokens = measured_interval(row.figures[_Q.RATE]).times(exact_interval(Fraction(seq_len.value)))
    elif _Q.TOKENS in row.figures and _Q.GLOBAL_BATCH not in row.figures:  # of the complete training, over its time
        tokens = exact_interval(row.figures[_Q.TOKENS].number).over(measured_interval(_require(row, _Q.STEP_TIME)))
    else:
        time = measured_interval(_require(row, _Q.STEP_TIME))
        tokens = exact_interval(_global_batch_or_stated(table, row) * seq_len.value).over(time)
    operations = FORWARD * parameters * passes.value
    return exact_interval(Fraction(operations, TERA)).times(tokens).over(gpus)


def _parameters(table: PublishedTable, row: PublishedRow) -> int:
    if _Q.PARAMETERS not in table.columns:
        return _stated(table, _Q.PARAMETERS)
    return int(_require(row, _Q.PARAMETERS).number)


def _global_batch_or_stated(table: PublishedTable, row: PublishedRow) -> Fraction:
    try:
        return _global_batch(row)
    except NotComputable:
        if _Q.GLOBAL_BATCH in table.columns:
            raise
        return Fraction(_stated(table, _Q.GLOBAL_BATCH))


def _stated(table: PublishedTable, quantity: Quantity) -> int:
    if quantity in table.constants:
        return table.constants[quantity].value
    if quantity in table.ambiguous:
        raise NotComputable(f"{table.ambiguous[quantity]}: set it with an option")
    raise NotComputable(f"no column states the {quantity}")


def _aggregate(table: PublishedTable, row: PublishedRow) -> Interval:
    """PFLOPs over all GPUs, from the published TFLOPs of one."""
    return measured_interval(_require(row, _Q.TFLOPS)).times(exact_interval(_gpus(row, table.constants) / KILO))


def _save_speed(_table: PublishedTable, row: PublishedRow) -> Interval:
    """GB/s of a save of all files."""
    saved = _require(row, _Q.PARAMETERS).number * bytes_per_parameter().total
    return exact_interval(saved / GIGA).over(measured_interval(_require(row, _Q.STEP_TIME)))


def _memory_share(_table: PublishedTable, row: PublishedRow) -> Interval:
    """Memory used over the GPU's; both columns are in one unit."""
    return measured_interval(_require(row, _Q.MEMORY)).over(measured_interval(_require(row, _Q.MEMORY_TOTAL)))


_FROM_THE_ROW: Mapping[Quantity, Callable[[PublishedTable, PublishedRow], Interval]] = {
    _Q.TFLOPS: tflops,
    _Q.AGGREGATE_PFLOPS: _aggregate,
    _Q.SAVE_SPEED: _save_speed,
    _Q.MEMORY_SHARE: _memory_share,
}


def _speedup(row: PublishedRow, baseline: PublishedRow) -> Interval:
    """The throughput over the baseline's; where no batch size is stated, only the times are compared."""
    if row is baseline:
        return exact_interval(Fraction(1))
    for quantity in (_Q.RATE, _Q.TOKEN_RATE):
        if quantity in row.figures and quantity in baseline.figures:
            return measured_interval(row.figures[quantity]).over(measured_interval(baseline.figures[quantity]))
    if _Q.STEP_TIME in row.figures and _Q.STEP_TIME in baseline.figures:
        time_ratio = measured_interval(baseline.figures[_Q.STEP_TIME]).over(
            measured_interval(row.figures[_Q.STEP_TIME])
        )
        if _Q.GLOBAL_BATCH in row.figures and _Q.GLOBAL_BATCH in baseline.figures:
            return time_ratio.times(exact_interval(_global_batch(row) / _global_batch(baseline)))
        return time_ratio
    raise NotComputable(_explain_absent(row, _Q.STEP_TIME if _Q.STEP_TIME in {*row.problems, *row.absent} else _Q.RATE))


def _global_batch(row: PublishedRow) -> Fraction:
    if _Q.GLOBAL_BATCH in row.figures:
        return row.figures[_Q.GLOBAL_BATCH].number
    parts = (_Q.MICRO_BATCH, _Q.ACCUMULATION, _Q.DATA_PARALLEL)
    if all(part in row.figures for part in parts):
        micro, accumulation, data_parallel = (row.figures[part].number for part in parts)
        return micro * accumulation * data_parallel
    raise NotComputable(_explain_absent(row, _Q.GLOBAL_BATCH))


def _gpus(row: PublishedRow, constants: Mapping[Quantity, Constant]) -> Fraction:
    if _Q.GPUS in row.figures:
        return row.figures[_Q.GPUS].number
    if _Q.GPUS_PER_NODE in row.figures:
        nodes = row.figures.get(_Q.NODES)
        return row.figures[_Q.GPUS_PER_NODE].number * (nodes.number if nodes else 1)
    if _Q.GPUS in constants:
        return Fraction(constants[_Q.GPUS].value)
    sizes = [_size_of(row, constants, part) for part in (_Q.TENSOR_PARALLEL, _Q.PIPELINE_PARALLEL, _Q.DATA_PARALLEL)]
    stated = [size for size in sizes if size is not None]
    if len(stated) == len(sizes):
        return Fraction(prod(stated))
    raise NotComputable(_explain_absent(row, _Q.GPUS))


def _size_of(row: PublishedRow, constants: Mapping[Quantity, Constant], quantity: Quantity) -> Fraction | None:
    if quantity in row.figures:
        return row.figures[quantity].number
    return Fraction(constants[quantity].value) if quantity in constants else None


def _require(row: PublishedRow, quantity: Quantity) -> PrintedFigure:
    if quantity in row.figures:
        return row.figures[quantity]
    raise NotComputable(_explain_absent(row, quantity))


def _explain_absent(row: PublishedRow, quantity: Quantity) -> str:
    problem = row.problems.get(quantity) or row.absent.get(quantity)
    return f"no {quantity}: {problem}" if problem else f"no column states the {quantity}"


def find_baselines(table: PublishedTable) -> list[PublishedRow | None]:
    """The baseline of each row's speed-up: the row of its group with the fewest GPUs or a published speed-up of 1.

    A group of one row has none. Neither has a group whose row of the fewest GPUs states another speed-up than 1: it is
    relative to something that is not shown. Of several (a table below a table) the last one above the row counts.
    """
    groups: dict[tuple[str, ...], list[PublishedRow]] = {}
    for row in table.rows:
        groups.setdefault(row.group, []).append(row)
    candidates = {group: _find_candidates(table, rows) for group, rows in groups.items()}
    lines = {group: {row.line for row in rows} for group, rows in candidates.items()}
    baselines: list[PublishedRow | None] = []
    latest: dict[tuple[str, ...], PublishedRow] = {}
    for row in table.rows:
        if row.line in lines[row.group]:
            latest[row.group] = row
        first = next(iter(candidates[row.group]), None)
        baselines.append(latest.get(row.group, first))
    return baselines


def _find_candidates(table: PublishedTable, rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    usable = [row for row in rows if _has_speed(row) or _Q.SPEEDUP in row.figures]
    if len(usable) <= 1:
        return [row for row in usable if _is_reference(row)]
    references = [row for row in usable if _is_reference(row)]
    sized = []
    for row in references or usable:
        try:
            sized.append((_gpus(row, table.constants), row))
        except NotComputable:
            continue
    fewest = min((gpus for gpus, _ in sized), default=None)
    first = [row for gpus, row in sized if gpus == fewest] or references
    unreadable = [row for row in first if _Q.SPEEDUP in row.absent or _Q.SPEEDUP in row.problems]
    return [row for row in first if row not in unreadable and (_Q.SPEEDUP not in row.figures or _is_reference(row))]


def _is_reference(row: PublishedRow) -> bool:
    return _Q.SPEEDUP in row.figures and row.figures[_Q.SPEEDUP].number == 1


def _has_speed(row: PublishedRow) -> bool:
    return any(quantity in row.figures for quantity in (_Q.RATE, _Q.TOKEN_RATE, _Q.STEP_TIME))


#: A change that is farther off was meant to be against something else, a speed-up is relative to something else.
_NEAR = Fraction(1, 5)
_FAR = Fraction(3, 2)
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
    """One derived cell; ``row`` is the label of its row, ``quantity`` a ``Quantity`` or a change.

    Attributes:
        published: The cell's digits; empty for an empty cell.
        recomputed: The exact value, in the unit of the printed digits.
        text: The recomputed value with as many decimals as the cell.
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


class Uncheckable(msgspec.Struct, frozen=True):
    """A cell that could not be recomputed, and why."""

    line: int
    row: str
    column: str
    reason: str


class Contradiction(msgspec.Struct, frozen=True):
    """A row whose columns cannot all be right."""

    table: str
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
    contradictions: tuple[Contradiction, ...]
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
    """Recompute every cell, a share of the peak only where that is known, and find rows that contradict themselves."""
    peak = Fraction(str(peak_tflops)) if peak_tflops else None
    results = [result for table in tables for result in _check_table(table, peak)]
    cells = tuple(result for result in results if isinstance(result, CheckedCell))
    return CheckedTables(
        cells,
        tuple(result for result in results if isinstance(result, Uncheckable)),
        tuple(
            Contradiction(table.title, row.line, row.label, problem)
            for table in tables
            for row in table.rows
            for problem in _contradictions(row, table.constants)
        ),
        (),
        _find_assumed(tables, {(cell.table_line, cell.line) for cell in cells if cell.quantity == _Q.TFLOPS}),
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
    return wrong if cells[0].quantity == _Q.TFLOPS and len(wrong) == len(cells) else []


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
    printed = _percent_change(value, old) if change.is_percent else exact_interval(abs(difference))
    verdict = CellVerdict.WRONG if change.sign * difference < 0 else judge(change.figure, printed)
    is_near = abs(change.figure.number / change.figure.unit - printed.value) <= _NEAR * printed.value
    if verdict is CellVerdict.WRONG and not is_near:
        return Uncheckable(row.line, row.label, table.headings[column], "it is of something else")
    name = "change in %" if change.is_percent else "change"
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
