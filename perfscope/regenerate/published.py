"""Whether the figures of a published table follow from each other.

Each TFLOPs, speed-up, efficiency, share-of-peak and change cell is computed again from its own row and the baseline.
TFLOPs, MFU and HFU of a model that is known by its name follow, within 1 %, the convention of most cells under their
heading. The peak is of the row's GPU and precision.

A cell is *rounded* if it is the exact value to its own digits, and *truncated* if digits were cut off. It is *from
unrounded inputs* if it follows from an input that is itself printed rounded. Otherwise it is *wrong*. Figures by other
definitions are left: columns of TFLOPs of which all cells differ, speed-ups that are far from the row's own.

A row contradicts itself where a total is not the product of its factors. It does not show which column is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Annotated, NamedTuple

import msgspec

from perfscope.regenerate.recomputation import (
    ASSUMED_PASSES,
    ASSUMED_SEQ_LEN,
    COUNTED,
    MODEL_DEGREES,
    SHARES,
    TOLERANCE,
    Counted,
    Fault,
    Interval,
    NotComputable,
    exact_interval,
    find_baselines,
    find_constant,
    find_seq_len,
    measured_interval,
    recompute,
    recompute_counted,
)
from perfscope.result import Doc, Figures, figure
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
#: A change that is farther off was meant to be against something else, a speed-up is relative to something else.
_NEAR = Fraction(1, 5)
_FAR = Fraction(3, 2)
#: What rates that are rounded to 32 tokens/s, or times to seconds, can change.
_ROUNDED_INPUTS = Fraction(1, 20)
#: A total, its factors, and those that a table may leave out: the total is then a multiple of the others.
_PRODUCTS: tuple[tuple[Quantity, tuple[Quantity, ...], tuple[Quantity, ...]], ...] = (
    (_Q.GPUS, (_Q.NODES, _Q.GPUS_PER_NODE), ()),
    (_Q.GPUS, (*MODEL_DEGREES, _Q.CONTEXT_PARALLEL, _Q.DATA_PARALLEL), (_Q.PIPELINE_PARALLEL,)),
    (_Q.GPUS, (*MODEL_DEGREES, _Q.CONTEXT_PARALLEL, _Q.DATA_PARALLEL), (_Q.DATA_PARALLEL,)),
    (_Q.GLOBAL_BATCH, (_Q.ACCUMULATION, _Q.MICRO_BATCH, _Q.DATA_PARALLEL), (_Q.ACCUMULATION,)),
)
_SHORT = {
    _Q.GLOBAL_BATCH: "GBS",
    _Q.ACCUMULATION: "GAS",
    _Q.MICRO_BATCH: "MBS",
    _Q.DATA_PARALLEL: "DP",
    _Q.TENSOR_PARALLEL: "TP",
    _Q.PIPELINE_PARALLEL: "PP",
    _Q.CONTEXT_PARALLEL: "CP",
    _Q.EXPERT_PARALLEL: "EP",
    _Q.GPUS: "GPUs",
    _Q.NODES: "nodes",
    _Q.GPUS_PER_NODE: "GPUs per node",
}


class CellVerdict(StrEnum):
    """How a published figure compares with the recomputed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    FROM_UNROUNDED = "from unrounded inputs"
    WITHIN = "within 1 %"
    WRONG = "wrong"
    CONVENTION = "other convention"
    TIED_TWICE = Fault.TIED_TWICE
    OTHER_PEAK = Fault.OTHER_PEAK
    MISSING = "missing"


class CheckedCell(Figures, frozen=True):
    """One derived cell, its exact value in the unit of the printed digits, and where it is in the file."""

    table: Annotated[str, Doc("Title of the table.")]
    table_line: Annotated[int, Doc("Line of the table.")]
    line: Annotated[int, Doc("Line of the row.")]
    row: Annotated[str, Doc("Label of the row.")]
    column: Annotated[str, Doc("Heading of the column.")]
    quantity: Annotated[str, Doc("A ``Quantity``, or a change.")]
    published: Annotated[str | None, Doc("The cell's digits; None for an empty cell.")]
    text: Annotated[str, Doc("The recomputed value with as many decimals as the cell.")]
    verdict: Annotated[CellVerdict, Doc("How the two compare.")]
    exact: Fraction
    span: TextSpan

    @figure
    def recomputed(self) -> float:
        """The recomputed value."""
        return float(self.exact)

    @property
    def is_right(self) -> bool:
        """Whether the cell is what its row gives."""
        return self.verdict in (CellVerdict.ROUNDED, CellVerdict.WITHIN)

    @property
    def agrees(self) -> bool:
        """Whether the cell follows from its row, or may follow from it by another convention."""
        return self.is_right or self.verdict is CellVerdict.CONVENTION


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
        followed: The convention of each heading whose cells were computed for models that are known by their name.
        products: How many totals were compared with their factors.
        assumed: Constants that neither the file nor an option states: ``sequence length 1024 (tokens)``.
    """

    cells: tuple[CheckedCell, ...]
    uncheckable: tuple[Uncheckable, ...]
    contradictions: tuple[Contradiction, ...]
    followed: tuple[str, ...]
    assumed: tuple[str, ...]
    products: int
    conventions: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was compared with anything."""
        return not self.products and all(cell.verdict is CellVerdict.CONVENTION for cell in self.cells)

    @property
    def differences(self) -> tuple[CheckedCell, ...]:
        """The cells that do not follow from their rows."""
        return tuple(cell for cell in self.cells if not cell.agrees)

    @property
    def unfounded(self) -> tuple[CheckedCell, ...]:
        """The differences that no input before it was rounded can explain: what such an input gives may be right."""
        return tuple(cell for cell in self.differences if cell.verdict is not CellVerdict.FROM_UNROUNDED)


def check_tables(tables: Sequence[PublishedTable]) -> CheckedTables:
    """Recompute every cell, and find rows that contradict themselves."""
    counted, described = _count_cells(tables)
    results = [result for table in tables for result in _check_table(table, counted)]
    cells = tuple(result for result in results if isinstance(result, CheckedCell))
    products = [
        (table, row, problem)
        for table in tables
        for row in table.rows
        if not row.is_second  # it may share cells with the first
        for problem in (*_check_products(row, table.constants), *_check_shares(row))
    ]
    return CheckedTables(
        cells,
        tuple(result for result in results if isinstance(result, Uncheckable)),
        tuple(Contradiction(table.title, row.line, row.label, problem) for table, row, problem in products if problem),
        described,
        _find_assumed(tables, {(cell.table_line, cell.line) for cell in cells if cell.quantity in COUNTED}),
        len(products),
    )


_Key = tuple[int, Quantity]


@dataclass(frozen=True, slots=True)
class _CountedCell:
    """A cell of a row with a model, by the convention of its column.

    ``verdict`` is absent where the cell follows it.
    """

    nearest: Counted
    verdict: CellVerdict | None


def _count_cells(tables: Sequence[PublishedTable]) -> tuple[dict[_Key, _CountedCell | str], tuple[str, ...]]:
    """Each cell by the convention that most cells under its heading follow, or why it has none; what columns follow.

    A cell that differs is wrong only where half of the cells of its model follow the convention.
    """
    found: dict[_Key, _CountedCell | str] = {}
    columns: dict[str, list[_Candidates]] = {}
    for table in tables:
        for row in table.rows:
            for quantity in COUNTED:
                if quantity not in row.figures or row.subject.model is None:
                    continue
                try:
                    ways = recompute_counted(table, row, quantity)
                except NotComputable as error:
                    found[id(row), quantity] = str(error)
                else:
                    heading = table.headings[table.columns[quantity]]
                    followed = _find_followed(row.figures[quantity], ways)
                    columns.setdefault(heading, []).append(_Candidates(row, quantity, ways, followed))
    described = []
    for heading, cells in columns.items():
        best = Counter(name for cell in cells for name in cell.followed).most_common(1)
        name = best[0][0] if best else ""
        following = [cell for cell in cells if name in cell.followed]
        of_model = Counter(cell.model for cell in cells)
        models = {
            model for model, count in Counter(cell.model for cell in following).items() if 2 * count >= of_model[model]
        }
        is_mixed = any(cell.followed[name].fault is None for cell in following)
        for cell in cells:
            found[id(cell.row), cell.quantity] = cell.choose(name, is_known=cell.model in models, is_mixed=is_mixed)
        readings = Counter(cell.followed[name].reading for cell in following)
        said = ", ".join(f"{number} {reading}" for reading, number in readings.items() if reading)
        which = f"`{name}`{said and f' ({said})'}" if name else "a known convention"
        described.append(f"{heading}: {len(following)} of {len(cells)} cells follow {which}")
    return found, tuple(described)


class _Candidates(NamedTuple):
    """A published figure of a row with a model, what it would be by each convention, and those that it follows."""

    row: PublishedRow
    quantity: Quantity
    ways: Sequence[Counted]
    followed: Mapping[str, Counted]

    @property
    def model(self) -> tuple[str, bool]:
        """The model, and whether all of it is trained."""
        model = self.row.subject.model
        assert model is not None
        return model.transformer.name, self.row.subject.is_adapter

    def choose(self, name: str, *, is_known: bool, is_mixed: bool) -> _CountedCell:
        """The cell by a convention; ``is_known``: its model follows it, ``is_mixed``: some cells do without fault."""
        figure = self.row.figures[self.quantity].number
        followed = self.followed.get(name)
        if followed is not None and followed.fault is None and is_known:
            return _CountedCell(followed, None)
        sound = [way for way in self.ways if way.fault is None]
        ways = [way for way in sound if way.name == name] or [way for way in sound if name.startswith(way.name)]
        nearest = min(ways or sound, key=lambda way: abs(way.number - figure))
        if not is_known:
            return _CountedCell(nearest, CellVerdict.CONVENTION)
        if followed is not None and followed.fault is not None:
            return _CountedCell(nearest, CellVerdict(followed.fault) if is_mixed else CellVerdict.CONVENTION)
        is_near = abs(nearest.number - figure) <= _ROUNDED_INPUTS * figure
        return _CountedCell(nearest, CellVerdict.FROM_UNROUNDED if is_near else CellVerdict.WRONG)


def _find_followed(figure: PrintedFigure, ways: Sequence[Counted]) -> dict[str, Counted]:
    """What a figure follows, by the names of conventions: a fault only where it follows nothing else of that name."""
    half = figure.last_place / 2
    nearly = float(_NEAR * figure.number + half)
    found: dict[str, Counted] = {}
    for way in ways:
        is_known = way.name in found and (way.fault or not found[way.name].fault)
        if is_known or abs(way.estimate - figure.number) > nearly:  # exact fractions are slow
            continue
        is_within = abs(way.number - figure.number) <= TOLERANCE * figure.number + half
        if is_within or judge(figure, way.value.over(exact_interval(figure.unit))) is not CellVerdict.WRONG:
            found[way.name] = way
    return found


def _check_shares(row: PublishedRow) -> Iterator[str]:
    for quantity in SHARES:
        share = row.figures.get(quantity)
        if share is not None and share.number > 1:
            yield f"{quantity} {share.text} is more than the peak"


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
        msgspec.structs.replace(cell, verdict=CellVerdict.CONVENTION) if (cell.line, cell.span.start) in left else cell
        for cell in checked.cells
    )
    return replace(checked, cells=judged, conventions=tuple(described))


def _others(cells: Sequence[CheckedCell]) -> list[CheckedCell]:
    """The wrong cells of a column that follow another definition."""
    wrong = [cell for cell in cells if cell.verdict is CellVerdict.WRONG and cell.exact]
    if cells[0].quantity in (_Q.SPEEDUP, _Q.EFFICIENCY):
        ratios = [Fraction((cell.published or "0").replace(",", "")) / cell.exact for cell in wrong]
        return [cell for cell, ratio in zip(wrong, ratios, strict=True) if not 1 / _FAR <= ratio <= _FAR]
    return wrong if cells[0].quantity == _Q.TFLOPS and len(wrong) == len(cells) else []


def _check_table(
    table: PublishedTable, counted: Mapping[_Key, _CountedCell | str]
) -> Iterator[CheckedCell | Uncheckable | None]:
    derived = [quantity for quantity in DERIVED if quantity in table.columns]
    for index, (row, baseline) in enumerate(zip(table.rows, find_baselines(table), strict=True)):
        for quantity in derived:
            cell = _check_cell(table, row, quantity, baseline, counted.get((id(row), quantity)))
            if row.is_second and isinstance(cell, CheckedCell) and not cell.agrees:
                yield Uncheckable(row.line, row.label, cell.column, "the row does not say what its second value is of")
            else:
                yield cell
        for change in row.changes:
            yield _check_change(table, index, change)


def _check_cell(
    table: PublishedTable,
    row: PublishedRow,
    quantity: Quantity,
    baseline: PublishedRow | None,
    counted: _CountedCell | str | None,
) -> CheckedCell | Uncheckable | None:
    """Check one cell; None if it has no figure and needs none, as in a row with OOM."""
    published = row.figures.get(quantity)
    blank = row.blanks.get(quantity)
    column = table.columns[quantity]
    if published is not None and isinstance(counted, _CountedCell):
        printed = counted.nearest.value.over(exact_interval(published.unit))
        is_rounded = judge(published, printed) is CellVerdict.ROUNDED
        verdict = counted.verdict or (CellVerdict.ROUNDED if is_rounded else CellVerdict.WITHIN)
        return _make_cell(table, row, column, published, str(quantity), printed.value, verdict)
    try:
        exact = recompute(table, row, quantity, baseline)
    except NotComputable as error:
        if published is None and not row.problems:
            return None
        reason = row.problems.get(quantity) or counted or str(error)
        return Uncheckable(row.line, row.label, table.headings[column], str(reason))
    if published is not None:
        printed = exact.over(exact_interval(published.unit))
        verdict = judge(published, printed)
        near = quantity in SHARES and abs(exact.value - published.number) <= TOLERANCE * published.number
        if near and verdict is not CellVerdict.ROUNDED:  # publishers round the peak, too
            verdict = CellVerdict.WITHIN
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
        table=table.title,
        table_line=table.line,
        line=row.line,
        row=row.label,
        column=table.headings[column],
        quantity=quantity,
        published=published.text or None,
        exact=value,
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
    """The constants that nothing states, for rows whose TFLOPs, MFU or HFU were computed."""
    assumed: dict[str, None] = {}
    for table in tables:
        for row in table.rows:
            if (table.line, row.line) not in computed:
                continue
            if row.subject.model is not None:
                with suppress(NotComputable):
                    length = find_seq_len(table, row)
                    if length.is_assumed:
                        assumed[f"sequence length {length.value} ({length.origin})"] = None
                if row.subject.dtype is None and any(quantity in row.figures for quantity in SHARES):
                    assumed["16-bit products (precision)"] = None
                continue
            for quantity, fallback in ((_Q.SEQ_LEN, ASSUMED_SEQ_LEN), (_Q.PASSES, ASSUMED_PASSES)):
                needed = quantity is _Q.PASSES or not {_Q.TOKEN_RATE, _Q.DEVICE_TOKEN_RATE, _Q.TOKENS} & set(
                    row.figures
                )
                with suppress(NotComputable):
                    if needed and find_constant(table, row, quantity, fallback) is fallback:
                        assumed[f"{quantity} {fallback.value} ({fallback.origin})"] = None
    return tuple(assumed)


def _check_products(row: PublishedRow, constants: Mapping[Quantity, Constant]) -> Iterator[str | None]:
    """Each product that the row states, as the problem with it; None where it is right.

    Some tables count expert parallelism in DP, others apart from it: a row is right by either.
    """
    values = {quantity: figure.number for quantity, figure in row.figures.items()}
    texts = {
        quantity: f"{_SHORT[quantity]} {figure.text}" for quantity, figure in row.figures.items() if quantity in _SHORT
    }
    for quantity in (_Q.TENSOR_PARALLEL, _Q.GPUS):
        if quantity not in values and quantity in constants:
            values[quantity] = Fraction(constants[quantity].value)
            texts[quantity] = f"{_SHORT[quantity]} {constants[quantity].value} ({constants[quantity].origin})"
    experts = values.get(_Q.EXPERT_PARALLEL, Fraction(1))
    for total, factors, optional in _PRODUCTS:
        present = [factor for factor in factors if factor in values]
        absent = set(factors) - set(present) - {_Q.CONTEXT_PARALLEL}
        if total not in values or not absent <= set(optional) or (not absent and _Q.DATA_PARALLEL in optional):
            continue
        value = prod((values[factor] for factor in present), start=Fraction(1))
        written = " x ".join(texts[factor] for factor in present)
        if absent:
            yield f"{texts[total]} is not a multiple of {written} = {value}" if values[total] % value else None
        else:
            with_experts = f", x EP {experts} = {value * experts}" if experts > 1 else ""
            is_right = values[total] in (value, value * experts)
            yield None if is_right else f"{texts[total]}, but {written} = {value}{with_experts}"
        if _Q.DATA_PARALLEL in absent and _Q.CONTEXT_PARALLEL in present and not values[total] % value:
            values[_Q.DATA_PARALLEL] = values[total] / value
            texts[_Q.DATA_PARALLEL] = f"DP {values[total] / value}"


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
