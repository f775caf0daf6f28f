"""What a derived cell must be, from the other cells of its row and its baseline row, exactly.

TFLOPs follow the BigScience convention; speed-up is the rate over the baseline's; efficiency is the speed-up over the
ratio of the GPUs; a save of mixed precision and Adam is 14 bytes a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from perfscope.analyzers.checkpoints.plan import bytes_per_parameter
from perfscope.constants import GIGA, TERA
from perfscope.tables.published import Constant, Figure, PublishedTable, Quantity, Row

#: One multiplication and one addition a parameter and token: see perfscope.models.conventions.bigscience.
_OPERATIONS_A_PASS = 2
_Q = Quantity
ASSUMED_SEQ_LEN = Constant(1024, "tokens")
ASSUMED_PASSES = Constant(4, "activations are recomputed")


class CannotTell(Exception):
    """A cell cannot be recomputed; the text says why."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A computed value, with the least and the most that it can be where its inputs are printed with few digits.

    Attributes:
        value: From the inputs as printed.
        nearest: Its ends where every measured input was rounded to its last place.
        cut: Its ends where every measured input was cut off after its last place.
    """

    value: Fraction
    nearest: tuple[Fraction, Fraction]
    cut: tuple[Fraction, Fraction]

    def __mul__(self, other: Interval) -> Interval:
        return Interval(self.value * other.value, _times(self.nearest, other.nearest), _times(self.cut, other.cut))

    def __truediv__(self, other: Interval) -> Interval:
        return Interval(self.value / other.value, _over(self.nearest, other.nearest), _over(self.cut, other.cut))


def _times(left: tuple[Fraction, Fraction], right: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    return left[0] * right[0], left[1] * right[1]


def _over(left: tuple[Fraction, Fraction], right: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    return left[0] / right[1], left[1] / right[0]


def exactly(value: Fraction) -> Interval:
    """A value that is known exactly."""
    return Interval(value, (value, value), (value, value))


def measured(figure: Figure) -> Interval:
    """A measured figure as it is printed."""
    place = figure.last_place
    low = figure.number - place / 2
    nearest = (low if low > 0 else figure.number, figure.number + place / 2)
    return Interval(figure.number, nearest, (figure.number, figure.number + place))


def recompute(
    table: PublishedTable, row: Row, quantity: Quantity, baseline: Row | None, peak: Fraction | None
) -> Interval:
    """Compute a derived quantity of a row, in its base unit.

    Raises:
        CannotTell: An input is missing; the text says which.
    """
    if quantity in _FROM_THE_ROW:
        return _FROM_THE_ROW[quantity](table, row)
    if quantity is _Q.PEAK_FRACTION:
        if peak is None:
            raise CannotTell("the GPU's peak is not known: give --gpu")
        return measured(_need(row, _Q.TFLOPS)) / exactly(peak)
    if baseline is None:
        raise CannotTell("no row to compare with")
    if quantity is _Q.SPEEDUP:
        return _speedup(row, baseline)
    more = exactly(_gpus(row, table.constants) / _gpus(baseline, table.constants))
    if _Q.SPEEDUP in row.figures and not (_timed(row) and _timed(baseline)):
        return measured(row.figures[_Q.SPEEDUP]) / more
    return _speedup(row, baseline) / more


def constant(table: PublishedTable, row: Row, quantity: Quantity, assumed: Constant) -> Constant:
    """A constant of a row: from its column, else from an option or the text, else assumed.

    Raises:
        CannotTell: The text states it more than once.
    """
    figure = row.figures.get(quantity)
    if figure is not None:
        return Constant(int(figure.number), "column")
    if quantity in table.constants:
        return table.constants[quantity]
    if quantity in table.ambiguous:
        raise CannotTell(f"{table.ambiguous[quantity]}: give it by an option")
    return assumed


def tflops(table: PublishedTable, row: Row) -> Interval:
    """TFLOPs per GPU by the BigScience convention."""
    parameters = _parameters(table, row)
    passes = constant(table, row, _Q.PASSES, ASSUMED_PASSES)
    seq_len = constant(table, row, _Q.SEQ_LEN, ASSUMED_SEQ_LEN)
    gpus = exactly(_gpus(row, table.constants))
    if _Q.TOKEN_RATE in row.figures:
        tokens = measured(row.figures[_Q.TOKEN_RATE])
    elif _Q.RATE in row.figures:
        tokens = measured(row.figures[_Q.RATE]) * exactly(Fraction(seq_len.value))
    elif _Q.TOKENS in row.figures and _Q.GLOBAL_BATCH not in row.figures:  # of the whole training, over its time
        tokens = exactly(row.figures[_Q.TOKENS].number) / measured(_need(row, _Q.STEP_TIME))
    else:
        time = measured(_need(row, _Q.STEP_TIME))
        tokens = exactly(_batch_of(table, row) * seq_len.value) / time
    operations = _OPERATIONS_A_PASS * parameters * passes.value
    return exactly(Fraction(operations, TERA)) * tokens / gpus


def _parameters(table: PublishedTable, row: Row) -> int:
    if _Q.PARAMETERS not in table.columns:
        return _stated(table, _Q.PARAMETERS)
    return int(_need(row, _Q.PARAMETERS).number)


def _batch_of(table: PublishedTable, row: Row) -> Fraction:
    """The row's global batch; the text's where no column has one."""
    try:
        return _global_batch(row)
    except CannotTell:
        if _Q.GLOBAL_BATCH in table.columns:
            raise
        return Fraction(_stated(table, _Q.GLOBAL_BATCH))


def _stated(table: PublishedTable, quantity: Quantity) -> int:
    if quantity in table.constants:
        return table.constants[quantity].value
    if quantity in table.ambiguous:
        raise CannotTell(f"{table.ambiguous[quantity]}: give it by an option")
    raise CannotTell(f"no column states the {quantity}")


def _aggregate(table: PublishedTable, row: Row) -> Interval:
    """PFLOPs over all GPUs, from the published TFLOPs of one."""
    return measured(_need(row, _Q.TFLOPS)) * exactly(_gpus(row, table.constants) / 1000)


def _save_speed(table: PublishedTable, row: Row) -> Interval:  # noqa: ARG001 - the formulas share a signature
    """GB/s of a save of all files."""
    saved = _need(row, _Q.PARAMETERS).number * bytes_per_parameter().total
    return exactly(saved / GIGA) / measured(_need(row, _Q.STEP_TIME))


def _memory_share(table: PublishedTable, row: Row) -> Interval:  # noqa: ARG001 - as above
    """Memory used over the GPU's; both columns are in one unit."""
    return measured(_need(row, _Q.MEMORY)) / measured(_need(row, _Q.MEMORY_TOTAL))


_FROM_THE_ROW: Mapping[Quantity, Callable[[PublishedTable, Row], Interval]] = {
    _Q.TFLOPS: tflops,
    _Q.AGGREGATE_PFLOPS: _aggregate,
    _Q.SAVE_SPEED: _save_speed,
    _Q.MEMORY_SHARE: _memory_share,
}


def _speedup(row: Row, baseline: Row) -> Interval:
    """How many times the baseline's work a second; the time alone counts where no batch size is stated."""
    if row is baseline:
        return exactly(Fraction(1))
    for quantity in (_Q.RATE, _Q.TOKEN_RATE):
        if quantity in row.figures and quantity in baseline.figures:
            return measured(row.figures[quantity]) / measured(baseline.figures[quantity])
    if _Q.STEP_TIME in row.figures and _Q.STEP_TIME in baseline.figures:
        faster = measured(baseline.figures[_Q.STEP_TIME]) / measured(row.figures[_Q.STEP_TIME])
        if _Q.GLOBAL_BATCH in row.figures and _Q.GLOBAL_BATCH in baseline.figures:
            return faster * exactly(_global_batch(row) / _global_batch(baseline))
        return faster
    raise CannotTell(_why_not(row, _Q.STEP_TIME if _Q.STEP_TIME in {*row.problems, *row.absent} else _Q.RATE))


def _global_batch(row: Row) -> Fraction:
    if _Q.GLOBAL_BATCH in row.figures:
        return row.figures[_Q.GLOBAL_BATCH].number
    parts = (_Q.MICRO_BATCH, _Q.ACCUMULATION, _Q.DATA_PARALLEL)
    if all(part in row.figures for part in parts):
        micro, accumulation, data_parallel = (row.figures[part].number for part in parts)
        return micro * accumulation * data_parallel
    raise CannotTell(_why_not(row, _Q.GLOBAL_BATCH))


def _gpus(row: Row, constants: Mapping[Quantity, Constant]) -> Fraction:
    if _Q.GPUS in row.figures:
        return row.figures[_Q.GPUS].number
    if _Q.GPUS_PER_NODE in row.figures:
        nodes = row.figures.get(_Q.NODES)
        return row.figures[_Q.GPUS_PER_NODE].number * (nodes.number if nodes else 1)
    if _Q.GPUS in constants:
        return Fraction(constants[_Q.GPUS].value)
    sizes = [_size_of(row, constants, part) for part in (_Q.TENSOR_PARALLEL, _Q.PIPELINE_PARALLEL, _Q.DATA_PARALLEL)]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return Fraction(prod(known))
    raise CannotTell(_why_not(row, _Q.GPUS))


def _size_of(row: Row, constants: Mapping[Quantity, Constant], quantity: Quantity) -> Fraction | None:
    if quantity in row.figures:
        return row.figures[quantity].number
    return Fraction(constants[quantity].value) if quantity in constants else None


def _need(row: Row, quantity: Quantity) -> Figure:
    if quantity in row.figures:
        return row.figures[quantity]
    raise CannotTell(_why_not(row, quantity))


def _why_not(row: Row, quantity: Quantity) -> str:
    problem = row.problems.get(quantity) or row.absent.get(quantity)
    return f"no {quantity}: {problem}" if problem else f"no column states the {quantity}"


def baselines(table: PublishedTable) -> list[Row | None]:
    """The row that each row's speed-up is against: the one of its group with the fewest GPUs, or published as 1.

    Where a group holds several (a table below a table), the last one above counts.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in table.rows:
        groups.setdefault(row.group, []).append(row)
    firsts = {group: _candidates(table, rows) for group, rows in groups.items()}
    lines = {group: {row.line for row in candidates} for group, candidates in firsts.items()}
    chosen: list[Row | None] = []
    latest: dict[tuple[str, ...], Row] = {}
    for row in table.rows:
        candidates = firsts[row.group]
        if row.line in lines[row.group]:
            latest[row.group] = row
        chosen.append(latest.get(row.group, candidates[0] if candidates else None))
    return chosen


def _candidates(table: PublishedTable, rows: Sequence[Row]) -> list[Row]:
    """The rows of a group that can be a baseline."""
    usable = [row for row in rows if _timed(row) or _Q.SPEEDUP in row.figures]
    ones = [row for row in usable if _Q.SPEEDUP in row.figures and row.figures[_Q.SPEEDUP].number == 1]
    sized = []
    for row in ones or usable:
        try:
            sized.append((_gpus(row, table.constants), row))
        except CannotTell:
            continue
    fewest = min((gpus for gpus, _ in sized), default=None)
    return [row for gpus, row in sized if gpus == fewest] or ones


def _timed(row: Row) -> bool:
    return any(quantity in row.figures for quantity in (_Q.RATE, _Q.TOKEN_RATE, _Q.STEP_TIME))
