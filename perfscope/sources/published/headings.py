"""The quantity that a column states, by its heading.

Headings are matched as people write them: ``Glob-BS``, ``GBS`` and ``global batch size`` are one quantity. If a heading
names no unit ("Speed"), the cells decide whether it is a time or a rate.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfscope.sources.published.cells import read_gpus, read_size
from perfscope.sources.published.markdown import Cell
from perfscope.tables.published import Quantity

_Q = Quantity

# Matched against the whole heading in lower case, without markup, "_" and "-", and without its parentheses.
_HEADINGS: tuple[tuple[Quantity, str], ...] = (
    (_Q.GPUS_PER_NODE, r"(num )?(gpus?|devices?)( num)?( per |/)node|gpus per node"),
    (_Q.NODES, r"((num|number of|n|no\.? of) )?n?nodes?( num)?"),
    (
        _Q.GPUS,
        r"((num|number of|n|no\.? of|total) |# ?)?(gpus?|devices?)( num| count)?|gpus? type( ?& ?| and )num|world size",
    ),
    (_Q.MICRO_BATCH, r"mbs|bsz|mic(ro)? ?(bs|batch)( ?size)?|(bs|batch( ?size)?)( per |/)(gpu|device)"),
    (_Q.GLOBAL_BATCH, r"gbs|glob(al)? ?(bs|batch)( ?size)?|batch( ?size)?|bs"),
    (_Q.ACCUMULATION, r"gas|pp chunks|micro ?batches|(num )?(grad(ient)? ?)?acc(um(ulation)?)?( steps)?"),
    (_Q.DATA_PARALLEL, r"dp|dp size|data parallel( size)?"),
    (_Q.TENSOR_PARALLEL, r"tp|mp|tp size|tensor( model)? parallel( size)?|model parallel size"),
    (_Q.PIPELINE_PARALLEL, r"pp|pp (size|stages)|pipeline( model)? parallel( size)?"),
    (_Q.SEQ_LEN, r"seq|seq(uence)? ?len(gth)?|sequence"),
    (_Q.TOKENS, r"(training )?tokens"),
    (_Q.MEMORY_TOTAL, r"(total|gpu) memory|memory (of|per) (a )?gpu|memory total"),
    (_Q.MEMORY_SHARE, r"memory (share|used of total)|share of memory"),
    (_Q.MEMORY, r"(peak )?memory( used)?"),
    (_Q.PASSES, r"passes"),
    (_Q.SAVE_SPEED, r"(save|checkpoint) (speed|gb/s)|gb/s of a save"),
    (_Q.PARAMETERS, r"(model ?)?size|m ?size|params?|parameters|(number of|num|#|n) ?(params|parameters)|model"),
    (_Q.AGGREGATE_PFLOPS, r".*\b(aggregate|total)\b.*\b(peta|p) ?flop.*|(peta|p) ?flops? aggreg(ate)?"),
    (_Q.PEAK_FRACTION, r".*(percent|%|share|fraction).*\bpeak\b.*|(tera|t) ?flops? %|mfu"),
    (_Q.TFLOPS, r"(?!.*(aggregate|total|peak|%))(?!.*\bpercent).*\b(tera|t) ?flops?\b.*"),
    (_Q.SPEEDUP, r"speed ?ups?|acceleration|scaling factor"),
    (_Q.EFFICIENCY, r"((scaling|parallel|weak|strong) )?(scaling )?efficiency"),
    (_Q.TOKEN_RATE, r"(tokens?|tks?)( ?/ ?| per )s(ec(onds?)?)?|token throughput"),
    (_Q.RATE, r"(samples?|sequences?|seqs?|sentences?|images?|imgs?|examples?)( ?/ ?| per )s(ec(onds?)?)?"),
    (
        _Q.STEP_TIME,
        r"(elapsed )?time( per | ?/ ?)?(it(er(ation)?)?|step)?|(it(er(ation)?)?|step) time|lat?n?tency.*"
        r"|s(ec(ond)?s?)?(/| per )it(er(ation)?)?",
    ),
)
_UNITLESS_SPEED = re.compile(r"speed|through?t?put|thr?outhput|perf(ormance)?")
_RATE_UNIT = re.compile(r"(samples?|sequences?|seqs?|imgs?|images?|examples?|sentences?|it)\s*/\s*s(ec(ond)?)?")
_TOKEN_UNIT = re.compile(r"\b(tokens?|tks?|t)\s*/\s*s(ec(ond)?)?")
# They count attention, too, which the parameters do not give.
_MODEL_FLOPS = re.compile(r"model (tera|t) ?flops?(/s)?")
_PER_DEVICE = re.compile(r"(per|/) ?(gpu|device|rank)")
_TOKENS = ("t", "tokens")
_TIME_UNITS = ("ns", "us", "µs", "ms", "s", "sec", "seconds")
_ID_HEADINGS = ("id", "run", "case", "test case", "test num", "test", "name", "experiment")
_GROUP_HEADINGS = re.compile(
    r"dtype|precision|fp16|amp|framework|model|network|dataset|zero( stage)?|opt offl|par offl|xla|clip|batch.*|mbs|bsz"
    r"|mode|scaling"
)


@dataclass(frozen=True, slots=True)
class ColumnMeaning:
    """What a column states; the quantity is None for anything else.

    Attributes:
        unit: The unit in the parentheses of its heading, in lower case; empty without one.
        is_label: Its cells name the row.
        is_group: Rows that differ in it have no common baseline.
    """

    quantity: Quantity | None
    unit: str
    is_label: bool
    is_group: bool


def describe_columns(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[ColumnMeaning]:
    """Find what each column of a table states."""
    columns = [_describe_column(heading) for heading in headings]
    has_tflops = any(column.quantity is _Q.TFLOPS for column in columns)
    for index, heading in enumerate(headings):
        is_speed = _UNITLESS_SPEED.fullmatch(_simplify(heading)[0]) and not _PER_DEVICE.search(columns[index].unit)
        if is_speed and columns[index].quantity is None:
            cells = [row[index].text for row in rows if index < len(row) and row[index].text]
            quantity = _decide_speed(cells, has_tflops=has_tflops)
            columns[index] = replace(columns[index], quantity=quantity)
        sizes = [read_size(row[index], columns[index].unit) for row in rows if index < len(row)]
        if columns[index].quantity is _Q.PARAMETERS and not any(sizes):
            columns[index] = replace(columns[index], quantity=None)  # "Model" is often a name
    stated = {index for index, column in enumerate(columns) if column.quantity is _Q.PARAMETERS}
    loose = {index for index in stated if "param" not in headings[index].lower()}
    if loose == stated:
        loose = set()  # no heading names parameters
    kinds = {
        index
        for index, column in enumerate(columns)
        if column.quantity is _Q.GPUS and _are_names([row[index] for row in rows if index < len(row)])
    }
    return [
        replace(column, quantity=None, is_group=True) if index in loose | kinds else column
        for index, column in enumerate(columns)
    ]


def _are_names(cells: Sequence[Cell]) -> bool:
    """Whether the cells name kinds of GPUs (``h100_80gb``), not a number of them."""
    return any(re.search(r"[A-Za-z]\d", cell.text) for cell in cells) and not any(read_gpus(cell) for cell in cells)


def _describe_column(heading: str) -> ColumnMeaning:
    plain, unit = _simplify(heading)
    is_label = plain in _ID_HEADINGS
    is_group = _GROUP_HEADINGS.fullmatch(plain) is not None
    if _PER_DEVICE.search(plain) and re.search(r"/ ?s|per s", plain) and "flop" not in plain:
        return ColumnMeaning(None, unit, is_label, is_group)  # the rate of one device is not the rate of the job
    if re.search(r"(/|per) ?s(ec(ond)?)?\b", unit) and not _PER_DEVICE.search(unit) and _UNITLESS_SPEED.search(plain):
        return ColumnMeaning(_Q.TOKEN_RATE if _TOKEN_UNIT.search(unit) else _Q.RATE, unit, is_label, is_group)
    if _MODEL_FLOPS.fullmatch(plain):
        return ColumnMeaning(None, unit, is_label, is_group)
    if unit in _TIME_UNITS and _UNITLESS_SPEED.fullmatch(plain):
        return ColumnMeaning(_Q.STEP_TIME, unit, is_label, is_group)
    for quantity, pattern in _HEADINGS:
        if re.fullmatch(pattern, plain) and not (quantity is _Q.GLOBAL_BATCH and unit in _TOKENS):
            return ColumnMeaning(quantity, unit, is_label, is_group)
    return ColumnMeaning(None, unit, is_label, is_group)


def _simplify(heading: str) -> tuple[str, str]:
    """A heading in lower case without markup, and the unit that it names in parentheses."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = (
        re.sub(r"<[^>]*>", " ", text)
        .translate({ord(c): " " for c in "_-*`~"})
        .replace("\uff08", "(")
        .replace("\uff09", ")")
    )
    units = re.findall(r"\(([^()]*)\)", text)
    text = re.sub(r"\([^()]*\)", " ", text)
    return " ".join(text.lower().split()), " ".join(" ".join(units).lower().split())


def _decide_speed(cells: Sequence[str], *, has_tflops: bool) -> Quantity:
    """The quantity of a speed without a unit: by the unit of its cells, else a time if there is a column of TFLOPs."""
    if any(_TOKEN_UNIT.search(cell) for cell in cells):
        return _Q.TOKEN_RATE
    if any(_RATE_UNIT.search(cell) or re.search(r"\d\s*/\s*s\b", cell) for cell in cells):
        return _Q.RATE
    if has_tflops or any(re.search(r"\d\s*(m?s|secs?|min)\b", cell) for cell in cells):
        return _Q.STEP_TIME
    return _Q.RATE
