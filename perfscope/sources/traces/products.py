"""Finds the matrix products among the operators of a trace, by their shapes, which `--shapes` records.

Collected are operators that multiply, with those that they call in turn, so that each product can be counted once; and
the order of those whose backward pass has an operator of its own, because it shows which ran forward twice. A few
letters of every operator's name are looked up first, so that all other operators cost next to nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec
import numpy as np

from perfscope.constants import NS_PER_US
from perfscope.sources.traces.product_names import Meaning, find_meaning, may_mean, needs_values
from perfscope.tables.columns import Int64
from perfscope.tables.products import Product, ProductCalls, Products
from perfscope.tables.trace import ABSENT

#: Letters 1 and 6 of the category ``cpu_op``; ``cpu_instant_event`` has another one there.
_OF_OPERATORS = (0, ord("c")), (5, ord("p"))
_UNTIL_NAME = re.compile(rb'cpu_op",\s*"name":\s*"')
_LAST = re.compile(rb'"cat":\s*"' + _UNTIL_NAME.pattern)
_INPUTS = b'"Input '
_VALUES = b'"Concrete Inputs"'
_NUMBERS = re.compile(rb'"Concrete Inputs":\s*(\[(?:\s*"(?:[^"\\]|\\.)*"\s*,?)*\s*\])')
_DIMS = re.compile(rb'"Input Dims":\s*(\[[\d\s,\[\]]*\])')
_ELEMENTS = re.compile(rb'"Input type":\s*(\[[^\[\]]*)')
_TEXT = re.compile(rb'"([^"]*)"')
_START = re.compile(rb'"ts":\s*"?([\d.]+)')
_DURATION = re.compile(rb'"dur":\s*"?([\d.]+)')
_THREAD = re.compile(rb'"tid":\s*"?([^",}\s]+)')
#: The three of them behind the name, in the order in which most exporters write them.
_IN_ORDER = re.compile(
    rb'\s*,\s*"pid":[^",{}]+,\s*' + _THREAD.pattern + rb'"?\s*,\s*' + _START.pattern + rb'"?\s*,\s*' + _DURATION.pattern
)
#: Times of older exporters are rounded to a quarter of a microsecond.
_ROUNDING_US = 0.5


_CATEGORIES = ("cpu_op", "Operator")


class _Args(msgspec.Struct, gc=False, rename={
    "dims": "Input Dims", "elements": "Input type", "values": "Concrete Inputs",
}):  # fmt: skip
    """The arguments of an operator that are needed here."""

    dims: msgspec.Raw = msgspec.Raw(b"")
    elements: msgspec.Raw = msgspec.Raw(b"")
    values: msgspec.Raw = msgspec.Raw(b"")


class _Inputs(NamedTuple):
    """The inputs of a call, as they are written: their shapes, their types, and those that are numbers."""

    dims: bytes
    elements: bytes
    values: bytes


_NOTHING = _Inputs(b"", b"", b"")


class _Event(msgspec.Struct, gc=False):
    """The fields of one event that are needed here."""

    cat: str = ""
    name: str = ""
    ts: float | str | None = None
    dur: float | str | None = None
    tid: int | str | None = None
    args: _Args | None = None


class _Call(NamedTuple):
    """A call of an operator that multiplies: its thread, its times, and its inputs as they are written."""

    thread: bytes
    start_us: float
    end_us: float
    operator: str
    inputs: _Inputs


class ProductFinder:
    """Collects the products of a trace, text by text."""

    def __init__(self) -> None:
        self._until_name: int | None = None
        self._calls: list[_Call] = []
        self._in_order: list[tuple[float, str]] = []
        self._fits = True
        self._inputs: dict[bytes, _Inputs] = {}
        self._meanings: dict[bytes, Meaning | None] = {}

    def scan(self, text: bytes, categories: Int64, stops: Int64) -> None:
        """Scan events: the positions of the first letters of their categories, and of their ends."""
        if not self._fits or not len(categories):
            return
        letters = np.frombuffer(text, np.uint8)
        for offset, letter in _OF_OPERATORS:
            chosen = letters.take(categories + offset, mode="clip") == letter
            categories, stops = categories[chosen], stops[chosen]
        if not len(categories):
            return
        if self._until_name is None:
            match = _UNTIL_NAME.match(text, int(categories[0]))
            if match is None:
                self._fits = False
                return
            # An exporter writes every event alike.
            self._until_name = len(match[0])
        names = categories + self._until_name
        chosen = may_mean(letters, names)
        for name, stop in zip(names[chosen].tolist(), stops[chosen].tolist(), strict=True):
            self._look(text, name, stop)

    def scan_last(self, text: bytes) -> None:
        """Scan the last event and what follows it."""
        operator = _LAST.search(text)
        if operator:
            self._look(text, operator.end(), len(text))

    def decode(self, events: bytes) -> None:
        """Decode a list of events in JSON, of whatever layout.

        Raises:
            msgspec.MsgspecError: It cannot be read.
        """
        for event in msgspec.json.decode(events, type=list[_Event]):
            meaning = find_meaning(event.name) if event.cat in _CATEGORIES else None
            if meaning is not None:
                args = event.args or _Args()
                start_us, thread = _number(event.ts), str(event.tid).encode()
                values = bytes(args.values) if needs_values(meaning.product) else b""
                inputs = _Inputs(bytes(args.dims), bytes(args.elements) if args.dims else b"", values)
                self._add(meaning, _Call(thread, start_us, start_us + _number(event.dur), meaning.product, inputs))

    def _look(self, text: bytes, name: int, stop: int) -> None:
        """Look at the operator whose name begins at a position."""
        begin = text.find(b'"', name, stop)
        written = text[name:begin]
        try:
            meaning = self._meanings[written]
        except KeyError:
            meaning = self._meanings[written] = find_meaning(written.decode("utf-8", "replace"))
        if meaning is None:
            return
        in_order = _IN_ORDER.match(text, begin + 1, stop)
        if in_order:
            thread, start, duration = in_order.groups()
        else:
            thread, start, duration = (_search(pattern, text, begin, stop) for pattern in (_THREAD, _START, _DURATION))
        inputs = self._inputs_of(text, begin, stop, meaning.product) if meaning.product else _NOTHING
        start_us = float(start or 0.0)
        self._add(meaning, _Call(thread, start_us, start_us + float(duration or 0.0), meaning.product, inputs))

    def _inputs_of(self, text: bytes, begin: int, end: int, operator: str) -> _Inputs:
        """The inputs of a call, as they are written; most calls have those of an earlier one."""
        first = text.find(_INPUTS, begin, end)
        if first < 0:
            return _NOTHING
        if needs_values(operator):
            values = text.find(_VALUES, begin, end)
            first = values if 0 <= values < first else first
        inputs = text[first : text.rfind(b"]", first, end) + 1]
        if inputs not in self._inputs:
            dims, elements, numbers = (pattern.search(inputs) for pattern in (_DIMS, _ELEMENTS, _NUMBERS))
            self._inputs[inputs] = _Inputs(
                dims[1] if dims else b"",
                elements[1] if dims and elements else b"",
                numbers[1] if numbers and needs_values(operator) else b"",
            )
        return self._inputs[inputs]

    def _add(self, meaning: Meaning, call: _Call) -> None:
        if meaning.in_passes:
            self._in_order.append((call.start_us, meaning.in_passes))
        if call.operator:
            self._calls.append(call)

    def products(self) -> Products | None:
        """The products; absent where the events are written in another order than the finder expects."""
        if not self._fits:
            return None
        numbers: dict[tuple[str, _Inputs], int] = {}
        calls = sorted(self._calls, key=attrgetter("end_us"), reverse=True)
        calls.sort(key=itemgetter(0, 1))  # by thread and start: where these are equal, what ends last remains first
        rows = [numbers.setdefault((call.operator, call.inputs), len(numbers)) for call in calls]
        return Products(
            products=tuple(
                Product(operator, _shapes(inputs.dims), _texts(inputs.elements), _texts(inputs.values))
                for operator, inputs in numbers
            ),
            calls=ProductCalls(
                product=np.array(rows, np.int64),
                parent=np.array(_find_parents(calls), np.int64),
                start_ns=_to_ns([call.start_us for call in calls]),
                end_ns=_to_ns([call.end_us for call in calls]),
                thread=np.array([_thread(call.thread) for call in calls], np.int64),
            ),
            in_order=tuple(operator for _, operator in sorted(self._in_order, key=itemgetter(0))),
        )


def _find_parents(calls: Sequence[_Call]) -> list[int]:
    """For each call, of those by thread and start, the row of the innermost one around it, or ABSENT.

    Two that have the same times are nested where they are different operators: one calls the other.
    """
    parents: list[int] = []
    around: list[int] = []
    for row, call in enumerate(calls):
        while around and not _contains(calls[around[-1]], call):
            around.pop()
        parents.append(around[-1] if around else ABSENT)
        around.append(row)
    return parents


def _contains(outer: _Call, inner: _Call) -> bool:
    have_same_times = (inner.start_us, inner.end_us) == (outer.start_us, outer.end_us)
    begins_inside = inner.start_us < outer.end_us or have_same_times
    is_inside = outer.thread == inner.thread and begins_inside and inner.end_us <= outer.end_us + _ROUNDING_US
    is_shorter = inner.end_us - inner.start_us < outer.end_us - outer.start_us
    return is_inside and (is_shorter or inner.operator != outer.operator)


def _search(pattern: re.Pattern[bytes], text: bytes, begin: int, end: int) -> bytes:
    match = pattern.search(text, begin, end)
    return match[1] if match else b""


def _number(time: float | str | None) -> float:
    return float(time or 0.0)


def _to_ns(times_us: Sequence[float]) -> Int64:
    """Microseconds as nanoseconds, to the precision of a double."""
    times = np.array(times_us, np.float64)
    whole = np.floor(times)
    return np.asarray(whole.astype(np.int64) * NS_PER_US + np.rint((times - whole) * NS_PER_US).astype(np.int64))


def _thread(written: bytes) -> int:
    try:
        return int(written)
    except ValueError:
        return ABSENT


def _texts(written: bytes) -> tuple[str, ...]:
    return tuple(text.decode() for text in _TEXT.findall(written))


def _shapes(text: bytes) -> tuple[tuple[int, ...], ...]:
    """The shapes of the inputs; a list of tensors, which no product takes first, counts as none."""
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
        for shape in json.loads(text or b"[]")
    )
