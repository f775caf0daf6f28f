"""The figures and changes that the cell of a published table states, exactly as printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod

from perfscope.constants import (
    GIGA,
    KILO,
    MEGA,
    MS_PER_S,
    NS_PER_S,
    S_PER_DAY,
    S_PER_HOUR,
    S_PER_MINUTE,
    TERA,
    US_PER_S,
)
from perfscope.errors import UsageError
from perfscope.sources.published.markdown import Cell
from perfscope.tables.published import PrintedFigure, Quantity, StatedChange, TextSpan
from perfscope.units import parse_duration_ns

# Bounded, because a fraction of 10**999999999 is as long as it sounds.
_NUMBER = r"\d[\d,]{0,30}(?:\.\d{1,30})?(?:[eE][+-]?\d{1,2})?|\.\d{1,30}"
_END = r"(?![\d.]|[eE][+-]?\d)"  # a number that is longer is none
_ONE_NUMBER = re.compile(rf"[*_~`≈<>=\s+$]*(?P<number>{_NUMBER})(?![\d.])\s*(?P<rest>[^\d]*?)[*_~`\s]*")
_TIME_REST = re.compile(
    r"\(?(?P<unit>ns|us|µs|ms|s|sec|secs|seconds?|min|mins|minutes|h|hours?|d|days?)?\)?(\s*(/|per)\s*(it|iter|iteration|step))?"
)
_SIZE_REST = re.compile(r"(?P<unit>[KMBT]|billion|million|bn)?(\s*param(eter)?s?)?", re.IGNORECASE)
_COMPOUND_TIME = re.compile(r"\s*\d+ ?[dhm] ?\d")
_PAIR = re.compile(rf"(?P<first>{_NUMBER})\s*\((?P<second>{_NUMBER})\)")
_FOOTNOTES = re.compile(r"(\s*(\[\^?[\w-]+\]|<sup>[^<]*</sup>|[\u2020\u2021\u00a7]))+$")
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\([^)]*\)")
_CHANGE = re.compile(r"[(\uff08](?P<inside>[^()\uff08\uff09]*)[)\uff09]\s*$")
_CHANGE_PART = re.compile(
    r"(?P<before>[↓↑+\-\u2212]?)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<after>[↓↑]?)\s*(?P<percent>%?)\s*(?P<last>[↓↑]?)"
)

# Seconds in a unit of time: of short units by their whole name, of long ones by its first letters.
_SHORT_UNITS = {
    "ns": Fraction(1, NS_PER_S),
    "us": Fraction(1, US_PER_S),
    "µs": Fraction(1, US_PER_S),
    "ms": Fraction(1, MS_PER_S),
}
_LONG_UNITS = (("min", Fraction(S_PER_MINUTE)), ("h", Fraction(S_PER_HOUR)), ("d", Fraction(S_PER_DAY)))
_MULTIPLIERS = {"k": KILO, "m": MEGA, "million": MEGA, "b": GIGA, "bn": GIGA, "billion": GIGA, "t": TERA}
_SMALLEST_SIZE_WITHOUT_UNIT = MEGA
LARGEST_SHARE = 2  #: an efficiency of 88 without a sign is in percent
_PERCENT = Fraction(1, 100)


def leading_number(cell: Cell) -> PrintedFigure | None:
    """The number at the start of a cell, whatever follows it; None for ``1.2.3`` and for ``1e300``."""
    match = re.match(rf"[*_~`≈\s]*(?P<number>{_NUMBER}){_END}", cell.text)
    return _figure(cell, match, Fraction(1)) if match else None


def without_footnotes(cell: Cell) -> Cell:
    """The cell without the marks of footnotes at its end: ``661[^note]``, ``661<sup>1</sup>``; of a link, its text."""
    text, start = _FOOTNOTES.sub("", cell.text), cell.span.start
    link = _LINK.fullmatch(text)
    if link:
        text, start = link["text"], start + 1
    return Cell(text, TextSpan(cell.span.line, start, start + len(text))) if text != cell.text else cell


def split_pair(cell: Cell) -> tuple[Cell, Cell] | None:
    """The two cells that a cell with two values stands for, such as ``899 (738)``; None for any other."""
    match = _PAIR.fullmatch(cell.text)
    if match is None:
        return None
    line, start = cell.span.line, cell.span.start
    first, second = (
        Cell(match[name], TextSpan(line, start + match.start(name), start + match.end(name)))
        for name in ("first", "second")
    )
    return first, second


def read_changes(cell: Cell, column: int) -> tuple[StatedChange, ...]:
    """The changes against a reference row that a cell states in parentheses after its value."""
    match = _CHANGE.search(cell.text)
    value = leading_number(cell)
    if match is None or value is None or _COMPOUND_TIME.match(cell.text):
        return ()  # the hours of 15h34m are not its value
    if re.search(r"[\d%]", cell.text[value.span.end - cell.span.start : match.start()]):
        return ()  # the change of "24 vs 27 (-11%)" is of no other row, that of a share in points or in per cent
    changes = []
    position = match.start("inside")
    for part in match["inside"].split(","):
        offset = position + len(part) - len(part.lstrip())
        position += len(part) + 1
        stated = _CHANGE_PART.fullmatch(part.strip())
        marks = stated["before"] + stated["after"] + stated["last"] if stated else ""
        if stated is None or not marks:
            return ()  # a percentage without a direction can be a share of anything
        sign = -1 if set(marks) & set("↓-\u2212") else 1 if set(marks) & set("↑+") else 0
        figure = _figure(cell, stated, _PERCENT if stated["percent"] else Fraction(1), offset)
        changes.append(StatedChange(column, bool(stated["percent"]), sign, figure))
    return tuple(changes)


def read_figure(quantity: Quantity, cell: Cell, unit: str) -> PrintedFigure:
    """Read a cell as what its column states; the error can be shown after the name of the row."""
    figure = _READERS.get(quantity, _read_count)(cell, unit)
    if figure is None:
        raise UsageError(f"{cell.text!r} is not a valid {quantity}")
    return figure


def _figure(cell: Cell, match: re.Match[str], unit: Fraction, offset: int = 0) -> PrintedFigure:
    text = match["number"]
    start = cell.span.start + offset + match.start("number")
    digits = text.replace(",", "")
    mantissa, _, exponent = digits.lower().partition("e")
    decimals = max(len(mantissa.partition(".")[2]) - int(exponent or 0), 0)
    span = TextSpan(cell.span.line, start, start + len(text))
    return PrintedFigure(Fraction(digits) * unit, unit, decimals, text, span)


def _read_count(cell: Cell, _unit: str = "") -> PrintedFigure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    annotated = re.fullmatch(rf"(?P<number>{_NUMBER})\s*\([^\d]*\)", cell.text)
    match = match or annotated
    figure = _figure(cell, match, Fraction(1)) if match else None
    return figure if figure and figure.number > 0 and figure.number.denominator == 1 else None


def read_gpus(cell: Cell, _unit: str = "") -> PrintedFigure | None:
    """A number of GPUs: ``64``, ``8x A100``, ``2 V100 x 4 node`` or ``n2g8``."""
    count = _read_count(cell)
    if count is not None:
        return count
    by_node = re.fullmatch(r"n(\d+)g(\d+)|(\d+)n_?(\d+)g", cell.text.lower())
    if by_node:
        factors = [int(group) for group in by_node.groups() if group]
    else:
        parts = re.split(r"\s*[x\xd7]\s*", cell.text.strip())
        named = [re.fullmatch(r"(\d+)?\s*(nodes?|[A-Z][\w .-]*)?", part) for part in parts]
        if not any(match and match[2] for match in named) or not all(match and match[0] for match in named):
            return None
        factors = [int(match[1] or 1) for match in named if match]
    total = prod(factors)
    return PrintedFigure(Fraction(total), Fraction(1), 0, cell.text, cell.span) if total else None


def read_size(cell: Cell, unit: str) -> PrintedFigure | None:
    """A number of parameters or tokens, as ``52B``; None if the cell states none, or a small number without a unit."""
    match = _ONE_NUMBER.fullmatch(cell.text)
    rest = _SIZE_REST.fullmatch(match["rest"]) if match else None
    if match is None or rest is None:
        return None
    suffix = (rest["unit"] or "").lower()
    if not suffix and ("billion" in unit or unit == "b"):
        suffix = "b"
    figure = _figure(cell, match, Fraction(_MULTIPLIERS.get(suffix, 1)))
    if figure.number <= 0 or (not suffix and figure.number < _SMALLEST_SIZE_WITHOUT_UNIT):
        return None
    return figure


def _read_time(cell: Cell, unit: str) -> PrintedFigure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    rest = _TIME_REST.fullmatch(match["rest"]) if match else None
    if match is None or rest is None:
        return _read_compound_time(cell)
    name = (rest["unit"] or unit or "s").lower()
    short = _SHORT_UNITS.get(name, Fraction(1))
    scale = next((seconds for start, seconds in _LONG_UNITS if name.startswith(start)), short)
    figure = _figure(cell, match, scale)
    return figure if figure.number > 0 else None


def _read_compound_time(cell: Cell) -> PrintedFigure | None:
    """A time such as ``2m7s``, which is exact to the second."""
    try:
        nanoseconds = parse_duration_ns(cell.text)
    except UsageError:
        return None
    return PrintedFigure(Fraction(nanoseconds, NS_PER_S), Fraction(1), 0, cell.text, cell.span)


def _read_rate(cell: Cell, _unit: str) -> PrintedFigure | None:
    match = re.match(rf"[*_~`≈\s]*(?P<number>{_NUMBER}){_END}\s*(?P<scale>[KkM](?=[\s/]|$))?", cell.text)
    if match is None or re.match(r"\s*(ms|s|sec)\b", cell.text[match.end() :]):
        return None
    scale = _MULTIPLIERS[match["scale"].lower()] if match["scale"] else 1
    figure = _figure(cell, match, Fraction(scale))
    return figure if figure.number > 0 else None


def _read_number(cell: Cell, _unit: str) -> PrintedFigure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    return _figure(cell, match, Fraction(1)) if match and "%" not in match["rest"] else None


def _read_speedup(cell: Cell, _unit: str) -> PrintedFigure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    return _figure(cell, match, Fraction(1)) if match and match["rest"].strip().lower() in ("", "x", "\xd7") else None


def _read_share(cell: Cell, unit: str) -> PrintedFigure | None:
    match = _ONE_NUMBER.fullmatch(cell.text)
    if match is None or match["rest"].strip() not in ("", "%"):
        return None
    has_sign = "%" in match["rest"] + unit or "percent" in unit
    is_percent = has_sign or Fraction(match["number"].replace(",", "")) > LARGEST_SHARE
    return _figure(cell, match, _PERCENT if is_percent else Fraction(1))


_READERS: Mapping[Quantity, Callable[[Cell, str], PrintedFigure | None]] = {
    Quantity.GPUS: read_gpus,
    Quantity.PARAMETERS: read_size,
    Quantity.TOKENS: read_size,
    Quantity.SAVE_SPEED: _read_number,
    Quantity.MEMORY: _read_number,
    Quantity.MEMORY_TOTAL: _read_number,
    Quantity.MEMORY_SHARE: _read_share,
    Quantity.STEP_TIME: _read_time,
    Quantity.RATE: _read_rate,
    Quantity.TOKEN_RATE: _read_rate,
    Quantity.DEVICE_TOKEN_RATE: _read_rate,
    Quantity.TFLOPS: _read_number,
    Quantity.MODEL_TFLOPS: _read_number,
    Quantity.AGGREGATE_PFLOPS: _read_number,
    Quantity.PEAK_FRACTION: _read_share,
    Quantity.HARDWARE_FRACTION: _read_share,
    Quantity.EFFICIENCY: _read_share,
    Quantity.SPEEDUP: _read_speedup,
}
