"""The exact value of a derived cell, from the other cells of its row and of its baseline row.

TFLOPs follow the BigScience convention. Speed-up is the rate over the baseline's. Efficiency is the speed-up over the
ratio of the GPUs. A save of mixed precision and Adam is 14 bytes/parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import NamedTuple

from perfscope.analyzers.checkpoint.plan import bytes_per_parameter
from perfscope.constants import GIGA, KILO, TERA
from perfscope.tables.published import Constant, PrintedFigure, PublishedRow, PublishedTable, Quantity

#: One multiplication and one addition per parameter and token: see perfscope.models.conventions.bigscience.
_OPERATIONS_PER_PASS = 2
_FEWEST_OF_A_GROUP = 2
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
    """Compute a derived quantity of a row, in its base unit.

    Raises:
        NotComputable: An input is missing; the text names it.
    """
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
    """A constant of a row: from its column, else from an option or the text, else assumed.

    Raises:
        NotComputable: The text states it more than once.
    """
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
    operations = _OPERATIONS_PER_PASS * parameters * passes.value
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
    if len(usable) < _FEWEST_OF_A_GROUP:
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
