"""What a column's heading means and what its cells state.

Headings are matched by what people write: ``Glob-BS``, ``GBS`` and ``global batch size`` are one quantity. A heading
that names no unit ("Speed") is a time or a rate by what its cells say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from perfscope.errors import UsageError
from perfscope.sources.published.markdown import Cell
from perfscope.tables.published import Change, ChangeKind, Figure, Quantity, Span
from perfscope.units import parse_duration_ns

_Q = Quantity

# Fullmatched against the heading in lower case, without markup, "_" and "-", and without what stands in parentheses.
_HEADINGS: tuple[tuple[Quantity, str], ...] = (
    (_Q.GPUS_PER_NODE, r"(num )?(gpus?|devices?)( num)?( per |/)node|gpus per node"),
    (_Q.NODES, r"((num|number of|n|no\.? of) )?n?nodes?( num)?"),
    (
        _Q.GPUS,
        r"((num|number of|n|no\.? of|total) |#)?(gpus?|devices?)( num| count)?|gpus? type( ?& ?| and )num|world size",
    ),
    (_Q.MICRO_BATCH, r"mbs|bsz|mic(ro)? ?(bs|batch)( ?size)?|(bs|batch( ?size)?)( per |/)(gpu|device)"),
    (_Q.GLOBAL_BATCH, r"gbs|glob(al)? ?(bs|batch)( ?size)?|batch( ?size)?|bs"),
    (_Q.ACCUMULATION, r"gas|pp chunks|micro ?batches|(num )?(grad(ient)? )?acc(umulation)?( steps)?"),
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
_TOKEN_UNIT = re.compile(r"(tokens?|tks?)\s*/\s*s(ec(ond)?)?")
_EACH = re.compile(r"(per|/) ?(gpu|device|rank)")
_ID_HEADINGS = ("id", "run", "case", "test case", "test num", "test", "name", "experiment")
_GROUP_HEADINGS = re.compile(
    r"dtype|precision|fp16|amp|framework|model|network|dataset|zero( stage)?|opt offl|par offl|xla|clip|batch.*|mbs|bsz"
    r"|mode|scaling"
)

# Bounded, because a fraction of 10**999999999 is as long as it sounds.
_NUMBER = r"\d[\d,]{0,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?|\.\d{1,30}"
_ONE_NUMBER = re.compile(rf"[*_~`≈<>=\s+$]*(?P<number>{_NUMBER})(?![\d.])\s*(?P<rest>[^\d]*?)[*_~`\s]*")
_TIME_REST = re.compile(
    r"\(?(?P<unit>ns|us|µs|ms|s|sec|secs|seconds?|min|mins|minutes|h|hours?|d|days?)?\)?(\s*(/|per)\s*(it|iter|iteration|step))?"
)
_SIZE_REST = re.compile(r"(?P<unit>[KMBT]|billion|million|bn)?(\s*param(eter)?s?)?", re.IGNORECASE)
_CHANGE = re.compile(r"[(\uff08](?P<inside>[^()\uff08\uff09]*)[)\uff09]\s*$")
_CHANGE_PART = re.compile(
    r"(?P<before>[↓↑+\-\u2212]?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<after>[↓↑]?)\s*(?P<percent>%?)\s*(?P<last>[↓↑]?)"
)

_TIME_UNITS = {"ns": 9, "us": 6, "µs": 6, "ms": 3}
_SIZE_UNITS = {"k": 3, "m": 6, "million": 6, "b": 9, "bn": 9, "billion": 9, "t": 12}
_SMALLEST_BARE_SIZE = 10**6
_LARGEST_SHARE = 2  # an efficiency of 88 without a sign is per cent


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds.

    Attributes:
        quantity: What it states; None for anything else.
        unit: The unit that its heading names in parentheses, in lower case; empty where it names none.
        is_label: Its cells name the row.
        is_group: Rows that differ in it have no common baseline.
    """

    quantity: Quantity | None
    unit: str
    is_label: bool
    is_group: bool


def understand(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[Column]:
    """Say what each column of a table states."""
    columns = [_understand_heading(heading) for heading in headings]
    has_tflops = any(column.quantity is _Q.TFLOPS for column in columns)
    for index, heading in enumerate(headings):
        if _UNITLESS_SPEED.fullmatch(_plain(heading)[0]) and columns[index].quantity is None:
            cells = [row[index].text for row in rows if index < len(row) and row[index].text]
            quantity = _speed(cells, has_tflops=has_tflops)
            columns[index] = replace(columns[index], quantity=quantity)
        sizes = [_size(row[index], columns[index].unit) for row in rows if index < len(row)]
        if columns[index].quantity is _Q.PARAMETERS and not any(sizes):
            columns[index] = replace(columns[index], quantity=None)  # "Model" is as often a name
    return columns


def _understand_heading(heading: str) -> Column:
    plain, unit = _plain(heading)
    is_label = plain in _ID_HEADINGS
    is_group = _GROUP_HEADINGS.fullmatch(plain) is not None
    if _EACH.search(plain) and re.search(r"/ ?s|per s", plain) and "flop" not in plain:
        return Column(None, unit, is_label, is_group)  # a rate of one device is no rate of the job
    if re.search(r"(/|per) ?s(ec(ond)?)?\b", unit) and not _EACH.search(unit) and _UNITLESS_SPEED.search(plain):
        return Column(_Q.TOKEN_RATE if _TOKEN_UNIT.search(unit) else _Q.RATE, unit, is_label, is_group)
    if unit in {*_TIME_UNITS, "s", "sec", "seconds"} and _UNITLESS_SPEED.fullmatch(plain):
        return Column(_Q.STEP_TIME, unit, is_label, is_group)
    for quantity, pattern in _HEADINGS:
        if re.fullmatch(pattern, plain):
            return Column(quantity, unit, is_label, is_group)
    return Column(None, unit, is_label, is_group)


def _plain(heading: str) -> tuple[str, str]:
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


def _speed(cells: Sequence[str], *, has_tflops: bool) -> Quantity:
    """Decide what an unnamed speed is: its cells' unit, else a time where TFLOPs stand beside it."""
    if any(_TOKEN_UNIT.search(cell) for cell in cells):
        return _Q.TOKEN_RATE
    if any(_RATE_UNIT.search(cell) or re.search(r"\d\s*/\s*s\b", cell) for cell in cells):
        return _Q.RATE
    if has_tflops or any(re.search(r"\d\s*(m?s|secs?|min)\b", cell) for cell in cells):
        return _Q.STEP_TIME
    return _Q.RATE


def leading_number(cell: Cell) -> Figure | None:
    """The number that a cell begins with, whatever follows it; None where it begins with none, or with ``1.2.3``."""
    match = re.match(rf"[*_~`≈\s]*(?P<number>{_NUMBER})(?![\d.])", cell.text)
    return _figure(cell, match, Fraction(1)) if match else None


def changes(cell: Cell, column: int) -> tuple[Change, ...]:
    """The changes against a reference row that a cell states in parentheses behind its value."""
    match = _CHANGE.search(cell.text)
    if match is None or leading_number(cell) is None:
        return ()
    found = []
    position = match.start("inside")
    for part in match["inside"].split(","):
        offset = position + len(part) - len(part.lstrip())
        position += len(part) + 1
        stated = _CHANGE_PART.fullmatch(part.strip())
        marks = stated["before"] + stated["after"] + stated["last"] if stated else ""
        if stated is None or not (stated["percent"] or marks):
            return ()
        kind = ChangeKind.PERCENT if stated["percent"] else ChangeKind.DIFFERENCE
        sign = -1 if set(marks) & set("↓-\u2212") else 1 if set(marks) & set("↑+") else 0
        figure = _figure(cell, stated, Fraction(1, 100) if kind is ChangeKind.PERCENT else Fraction(1), offset)
        found.append(Change(column, kind, sign, figure))
    return tuple(found)


def read_figure(quantity: Quantity, cell: Cell, unit: str) -> Figure:
    """Read a cell as what its column states.

    Raises:
        UsageError: It does not state that; the problem is put so that it can follow the row's name.
    """
    figure = _READERS.get(quantity, _count)(cell, unit)
    if figure is None:
        raise UsageError(f"{cell.text!r} is no {_SINGULAR.get(quantity, str(quantity))}")
    return figure


def _figure(cell: Cell, match: re.Match[str], unit: Fraction, offset: int = 0) -> Figure:
    text = match["number"]
    start = cell.span.start + offset + match.start("number")
    digits = text.replace(",", "")
    mantissa, _, exponent = digits.lower().partition("e")
    decimals = max(len(mantissa.partition(".")[2]) - int(exponent or 0), 0)
    span = Span(cell.span.line, start, start + len(text))
    return Figure(Fraction(digits) * unit, unit, decimals, text, span)


def _count(cell: Cell, unit: str) -> Figure | None:  # noqa: ARG001 - readers share a signature
    match = _ONE_NUMBER.fullmatch(cell.text)
    annotated = re.fullmatch(rf"(?P<number>{_NUMBER})\s*\([^\d]*\)", cell.text)
    match = match or annotated
    figure = _figure(cell, match, Fraction(1)) if match else None
    return figure if figure and figure.number > 0 and figure.number.denominator == 1 else None


def _gpus(cell: Cell, unit: str) -> Figure | None:
    """A number of GPUs: ``64``, ``8x A100``, ``2 V100 x 4 node`` or ``n2g8``."""
    plain = _count(cell, unit)
    if plain is not None:
        return plain
    by_node = re.fullmatch(r"n(\d+)g(\d+)|(\d+)n_?(\d+)g", cell.text.lower())
    if by_node:
        factors = [int(group) for group in by_node.groups() if group]
    else:
        parts = re.split(r"\s*[x\xd7]\s*", cell.text.strip())
        named = [re.fullmatch(r"(\d+)?\s*(nodes?|[A-Z][\w .-]*)?", part) for part in parts]
        if not any(match and match[2] for match in named) or not all(match and match[0] for match in named):
            return None
        factors = [int(match[1] or 1) for match in named if match]
    total = 1
    for factor in factors:
        total *= factor
    return Figure(Fraction(total), Fraction(1), 0, cell.text, cell.span) if total else None


def _size(cell: Cell, unit: str) -> Figure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    rest = _SIZE_REST.fullmatch(match["rest"]) if match else None
    if match is None or rest is None:
        return None
    suffix = (rest["unit"] or "").lower()
    if not suffix and ("billion" in unit or unit == "b"):
        suffix = "b"
    figure = _figure(cell, match, Fraction(10 ** _SIZE_UNITS.get(suffix, 0)))
    if figure.number <= 0 or (not suffix and figure.number < _SMALLEST_BARE_SIZE):
        return None
    return figure


def _time(cell: Cell, unit: str) -> Figure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    rest = _TIME_REST.fullmatch(match["rest"]) if match else None
    if match is None or rest is None:
        return _compound_time(cell)
    name = (rest["unit"] or unit or "s").lower()
    if name.startswith("min"):
        scale = Fraction(60)
    elif name.startswith("h"):
        scale = Fraction(3600)
    elif name.startswith("d"):
        scale = Fraction(86400)
    else:
        scale = Fraction(1, 10 ** _TIME_UNITS.get(name, 0))
    figure = _figure(cell, match, scale)
    return figure if figure.number > 0 else None


def _compound_time(cell: Cell) -> Figure | None:
    """A time such as ``2m7s``; it is known to the second."""
    try:
        nanoseconds = parse_duration_ns(cell.text)
    except UsageError:
        return None
    return Figure(Fraction(nanoseconds, 10**9), Fraction(1), 0, cell.text, cell.span)


def _rate(cell: Cell, unit: str) -> Figure | None:  # noqa: ARG001 - as above
    match = re.match(rf"[*_~`≈\s]*(?P<number>{_NUMBER})(?![\d.])\s*(?P<scale>[KkM](?=[\s/]|$))?", cell.text)
    if match is None or re.match(r"\s*(ms|s|sec)\b", cell.text[match.end() :]):
        return None
    scale = 10 ** _SIZE_UNITS[match["scale"].lower()] if match["scale"] else 1
    figure = _figure(cell, match, Fraction(scale))
    return figure if figure.number > 0 else None


def _plain_number(cell: Cell, unit: str) -> Figure | None:  # noqa: ARG001 - as above
    match = _ONE_NUMBER.fullmatch(cell.text)
    return _figure(cell, match, Fraction(1)) if match and "%" not in match["rest"] else None


def _speedup(cell: Cell, unit: str) -> Figure | None:  # noqa: ARG001 - as above
    match = _ONE_NUMBER.fullmatch(cell.text)
    return _figure(cell, match, Fraction(1)) if match and match["rest"].strip().lower() in ("", "x", "\xd7") else None


def _share(cell: Cell, unit: str) -> Figure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    if match is None or match["rest"].strip() not in ("", "%"):
        return None
    percent = (
        "%" in match["rest"] + unit or "percent" in unit or Fraction(match["number"].replace(",", "")) > _LARGEST_SHARE
    )
    return _figure(cell, match, Fraction(1, 100) if percent else Fraction(1))


_READERS: Mapping[Quantity, Callable[[Cell, str], Figure | None]] = {
    _Q.GPUS: _gpus,
    _Q.PARAMETERS: _size,
    _Q.TOKENS: _size,
    _Q.SAVE_SPEED: _plain_number,
    _Q.MEMORY: _plain_number,
    _Q.MEMORY_TOTAL: _plain_number,
    _Q.MEMORY_SHARE: _share,
    _Q.STEP_TIME: _time,
    _Q.RATE: _rate,
    _Q.TOKEN_RATE: _rate,
    _Q.TFLOPS: _plain_number,
    _Q.AGGREGATE_PFLOPS: _plain_number,
    _Q.PEAK_FRACTION: _share,
    _Q.EFFICIENCY: _share,
    _Q.SPEEDUP: _speedup,
}
_SINGULAR = {
    _Q.GPUS: "number of GPUs",
    _Q.NODES: "number of nodes",
    _Q.PARAMETERS: "model size (write 52B, 7.5B or 125M)",
    _Q.STEP_TIME: "time",
    _Q.RATE: "rate",
    _Q.TOKEN_RATE: "rate",
    _Q.TFLOPS: "number",
    _Q.AGGREGATE_PFLOPS: "number",
}
