"""Figures of a published table computed again, exactly, from their own row and its baseline.

TFLOPs of a size follow the BigScience convention. Speed-up is the rate over the baseline's. Efficiency is the speed-up
over the ratio of the GPUs. A save of mixed precision and Adam is 14 bytes/parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple

from perfscope.analyzers.checkpoint import bytes_per_parameter
from perfscope.analyzers.mfu import HEADLINE
from perfscope.constants import GIGA, KILO, TERA
from perfscope.errors import UsageError
from perfscope.models.conventions import FORWARD
from perfscope.regenerate.operations import count_operations
from perfscope.sources.published.subjects import DTYPE, GPU, MODEL
from perfscope.tables.published import Constant, PrintedFigure, PublishedRow, PublishedTable, Quantity

_Q = Quantity
MODEL_DEGREES = (_Q.TENSOR_PARALLEL, _Q.PIPELINE_PARALLEL)
ASSUMED_SEQ_LEN = Constant(1024, "tokens")
ASSUMED_PASSES = Constant(4, "activations are recomputed")
#: Publishers round the tokens/s or the step time that they computed a figure from.
TOLERANCE = Fraction(1, 100)
SHARES = (Quantity.PEAK_FRACTION, Quantity.HARDWARE_FRACTION)
#: What follows from a model that is known by its name.
COUNTED = (Quantity.TFLOPS, Quantity.MODEL_TFLOPS, *SHARES)


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


def recompute(table: PublishedTable, row: PublishedRow, quantity: Quantity, baseline: PublishedRow | None) -> Interval:
    """Compute a derived quantity of a row, in its base unit; ``NotComputable`` names an input that is missing."""
    if quantity in (_Q.MODEL_TFLOPS, _Q.HARDWARE_FRACTION):
        raise NotComputable(_explain_model(row))
    if quantity in _FROM_THE_ROW:
        return _FROM_THE_ROW[quantity](table, row)
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
    """TFLOPs per GPU by the BigScience convention; of a model known by its name alone as Megatron-core counts."""
    if row.subject.model is not None and _Q.PARAMETERS not in row.figures:
        return next(each.value for each in recompute_counted(table, row, _Q.TFLOPS) if each.name == HEADLINE)
    parameters = _parameters(table, row)
    passes = find_constant(table, row, _Q.PASSES, ASSUMED_PASSES)
    seq_len = find_constant(table, row, _Q.SEQ_LEN, ASSUMED_SEQ_LEN)
    operations = Fraction(FORWARD * parameters * passes.value, TERA)
    return exact_interval(operations).times(_device_token_rate(table, row, seq_len.value))


class Fault(StrEnum):
    """What a framework or an author counts wrongly."""

    TIED_TWICE = "counts the tied embedding twice"
    OTHER_PEAK = "over the peak of fp8"


class Counted(NamedTuple):
    """A derived cell by one convention, whose name says what is unusual in it: ``factor`` times ``rate``."""

    name: str
    reading: str
    factor: Fraction
    rate: Interval
    fault: Fault | None = None

    @property
    def estimate(self) -> float:
        """The cell's value, nearly."""
        return float(self.factor) * float(self.rate.value)

    @property
    def number(self) -> Fraction:
        """The cell's value."""
        return self.factor * self.rate.value

    @property
    def value(self) -> Interval:
        """The cell's value with its bounds."""
        return exact_interval(self.factor).times(self.rate)


def recompute_counted(table: PublishedTable, row: PublishedRow, quantity: Quantity) -> list[Counted]:
    """TFLOPs, MFU or HFU of a row with a model, by each convention; ``NotComputable`` names a missing input.

    The TFLOPs can be of all GPUs, or the tokens/s of one. The peak can be that of fp8, which is a fault in 16 bits.
    """
    seq_len = find_seq_len(table, row)
    rate = _device_token_rate(table, row, seq_len.value)
    scales = [("", Fraction(1))]
    if _Q.GPUS in row.figures and row.figures[_Q.GPUS].number > 1:
        scales.append((" x GPUs", row.figures[_Q.GPUS].number))
    peaks = _find_peaks(row) if quantity in SHARES else [_Peak("", Fraction(1))]
    counts_hardware = quantity in (_Q.TFLOPS, _Q.HARDWARE_FRACTION)
    found = []
    for count in count_operations(row, seq_len.value):
        if count.counts_recomputation and not counts_hardware:
            continue
        is_needed = quantity is _Q.HARDWARE_FRACTION and not count.counts_recomputation
        # Four passes of three where activations are recomputed; both where nothing says whether they are.
        kinds = (True, False) if row.subject.recomputes is None else (row.subject.recomputes,)
        passes = [Fraction(4, 3) if kind else Fraction(1) for kind in kinds if is_needed] or [Fraction(1)]
        for share, (of_all, scale), (of_peak, peak, other_peak) in product(passes, scales, peaks):
            factor = count.flops * share * scale / (peak * TERA)
            fault = Fault.TIED_TWICE if count.is_fault else other_peak
            found.append(Counted(f"{count.convention}{of_all}{of_peak}", count.reading, factor, rate, fault))
    return found


class _Peak(NamedTuple):
    name: str
    tflops: Fraction
    fault: Fault | None = None


def _find_peaks(row: PublishedRow) -> list[_Peak]:
    """The peak of the row's precision, and those of 16 bits and of fp8: some tables divide all rows by one of them."""
    own, gpu = find_peak(row), row.subject.gpu
    assert gpu is not None
    peaks = [_Peak("", own), _Peak(" over the 16-bit peak", Fraction(str(gpu.dense_16bit_tflops)))]
    if "fp8" in gpu.dense_tflops:
        fp8 = Fraction(str(gpu.dense_tflops["fp8"]))
        peaks.append(_Peak(" over the fp8 peak", fp8, Fault.OTHER_PEAK if fp8 > own and row.subject.dtype else None))
    return peaks


def find_seq_len(table: PublishedTable, row: PublishedRow) -> Constant:
    """The sequence length of a row with a model: stated, else by its rates and times, else of its pre-training."""
    if _Q.SEQ_LEN in row.problems:
        _require(row, _Q.SEQ_LEN)
    unknown = Constant(0, "")
    stated = find_constant(table, row, _Q.SEQ_LEN, unknown)
    if stated is not unknown:
        return stated
    inputs = [row.figures.get(quantity) for quantity in (_Q.TOKEN_RATE, _Q.STEP_TIME, _Q.GLOBAL_BATCH)]
    if all(inputs):
        rate, time, batch = (figure.number for figure in inputs if figure)
        tokens = rate * time / batch
        nearest = round(tokens / 512) * 512
        if nearest and abs(tokens / nearest - 1) <= TOLERANCE:
            return Constant(nearest, "tokens/s x step time / batch")
    model = row.subject.model
    if model is not None and model.seq_len:
        return Constant(model.seq_len, f"pre-training of {model.transformer.name}", is_assumed=True)
    raise NotComputable("no column, text or option states the sequence length")


def _device_token_rate(table: PublishedTable, row: PublishedRow, seq_len: int) -> Interval:
    """Tokens/s of one GPU."""
    for rate in (_Q.TOKEN_RATE, _Q.DEVICE_TOKEN_RATE):
        if rate in row.problems:
            _require(row, rate)
    if _Q.DEVICE_TOKEN_RATE in row.figures:
        return measured_interval(row.figures[_Q.DEVICE_TOKEN_RATE])
    gpus = exact_interval(_gpus(row, table.constants))
    if _Q.TOKEN_RATE in row.figures:
        tokens = measured_interval(row.figures[_Q.TOKEN_RATE])
    elif _Q.RATE in row.figures:
        tokens = measured_interval(row.figures[_Q.RATE]).times(exact_interval(Fraction(seq_len)))
    elif _Q.TOKENS in row.figures and _Q.GLOBAL_BATCH not in row.figures:  # of the complete training, over its time
        tokens = exact_interval(row.figures[_Q.TOKENS].number).over(measured_interval(_require(row, _Q.STEP_TIME)))
    else:
        time = measured_interval(_require(row, _Q.STEP_TIME))
        tokens = exact_interval(_global_batch_or_stated(table, row) * seq_len).over(time)
    return tokens.over(gpus)


def _peak_fraction(_table: PublishedTable, row: PublishedRow) -> Interval:
    """The published TFLOPs over the peak of the row's GPU."""
    stated = _Q.TFLOPS if _Q.TFLOPS in row.figures else _Q.MODEL_TFLOPS
    if stated not in row.figures:
        raise NotComputable(_explain_model(row))
    tflops, share = row.figures[stated].number, row.figures.get(_Q.PEAK_FRACTION)
    peaks = [each.tflops for each in _find_peaks(row) if each.fault is None]
    near = [peak for peak in peaks if share and abs(tflops / peak - share.number) <= TOLERANCE * share.number]
    if tflops > max(peaks):
        raise NotComputable(f"the {stated} are more than the peak of the GPU, {float(max(peaks)):g}")
    return measured_interval(row.figures[stated]).over(exact_interval((near or peaks)[0]))


def find_peak(row: PublishedRow) -> Fraction:
    """The dense peak of a row's GPU in its precision, in 16 bits where none is named; else ``NotComputable``."""
    subject = row.subject
    for unknown in (GPU, DTYPE):
        if unknown in subject.unknown:
            raise NotComputable(subject.unknown[unknown])
    assert subject.gpu is not None
    try:
        peak = subject.gpu.peak_tflops(subject.dtype) if subject.dtype else subject.gpu.dense_16bit_tflops
    except UsageError as error:
        raise NotComputable(error.problem) from None
    return Fraction(str(peak))


def _explain_model(row: PublishedRow) -> str:
    return row.subject.unknown.get(MODEL, "no column states the TFLOPs per GPU")


def _parameters(table: PublishedTable, row: PublishedRow) -> int:
    if _Q.PARAMETERS not in table.columns:
        try:
            return _stated(table, _Q.PARAMETERS)
        except NotComputable as error:
            raise NotComputable(f"{error}, and {_explain_model(row)}") from None
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
    _Q.PEAK_FRACTION: _peak_fraction,
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
    sizes = [_size_of(row, constants, part) for part in (*MODEL_DEGREES, _Q.DATA_PARALLEL)]
    stated = [size for size in sizes if size is not None]
    if len(stated) == len(sizes):
        return Fraction(prod(stated)) * (_size_of(row, constants, _Q.CONTEXT_PARALLEL) or 1)
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
    first_rows = {id(row) for rows in candidates.values() for row in rows}
    baselines: list[PublishedRow | None] = []
    latest: dict[tuple[str, ...], PublishedRow] = {}
    for row in table.rows:
        if id(row) in first_rows:
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
