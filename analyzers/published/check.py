"""Whether a published figure follows from the figures beside it.

Each TFLOPs, speed-up, efficiency, share-of-peak and change cell is computed again, exactly, from its own row and the
baseline. A cell is *rounded* if it is the exact value to its own digits, *truncated* if digits were cut off,
*from unrounded inputs* if it follows from an input that is itself printed rounded, and *wrong* if none of that is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from perfscope.analyzers.published.changes import check_changes
from perfscope.analyzers.published.derived import (
    ASSUMED_PASSES,
    ASSUMED_SEQ_LEN,
    NotComputable,
    exact_interval,
    find_baselines,
    find_constant,
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
from perfscope.tables.published import DERIVED, Figure, PublishedTable, Quantity, Row

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
