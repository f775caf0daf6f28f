"""Finds the matrix products among the operators of a trace, by their shapes, which `--shapes` records.

Collected are operators that multiply, with those that they call in turn, so that each product can be counted once; and
the nodes of autograd, because a product inside one that autograd tracks is computed again. A few letters of every
operator's name are looked up first, so that all other operators cost next to nothing.
"""

from __future__ import annotations

import json
import re
from array import array
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from perfscope.sources.traces.backward_functions import link_backward, numbers_count
from perfscope.sources.traces.product_names import Meaning, find_meaning, may_mean, needs_values
from perfscope.sources.traces.scope_columns import ScopeColumns, Written, to_ns, to_thread
from perfscope.tables.columns import Bool, Float64, Int64
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
_SEQUENCE = re.compile(rb'"Sequence number":\s*(\d+)')
#: The three of them behind the name, in the order in which most exporters write them.
_IN_ORDER = re.compile(
    rb'\s*,\s*"pid":[^",{}]+,\s*' + _THREAD.pattern + rb'"?\s*,\s*' + _START.pattern + rb'"?\s*,\s*' + _DURATION.pattern
)
#: Times of older exporters are rounded to a quarter of a microsecond.
_ROUNDING_US = 0.5


_CATEGORIES = ("cpu_op", "Operator")


class _Args(msgspec.Struct, gc=False, rename={
    "dims": "Input Dims", "elements": "Input type", "values": "Concrete Inputs", "sequence": "Sequence number",
}):  # fmt: skip
    """The arguments of an operator that are needed here."""

    dims: msgspec.Raw = msgspec.Raw(b"")
    elements: msgspec.Raw = msgspec.Raw(b"")
    values: msgspec.Raw = msgspec.Raw(b"")
    sequence: int | None = None


class _Inputs(NamedTuple):
    """The inputs of a call, as they are written: their shapes, their types, and those that are numbers."""

    dims: bytes
    elements: bytes
    values: bytes


#: Thread, start and end in microseconds, and operator of a call.
_Times: TypeAlias = tuple[int, float, float, int]


class _Event(msgspec.Struct, gc=False):
    """The fields of one event that are needed here."""

    cat: str = ""
    name: str = ""
    ts: float | str | None = None
    dur: float | str | None = None
    tid: int | str | None = None
    args: _Args | None = None


class _Operator:
    """What is known of an operator from earlier calls.

    Attributes:
        meaning: What its name says.
        is_backward: Whether it is the backward pass of a function.
        needs_values: Whether the inputs that are numbers count.
        needs_sequence: Whether its number in autograd counts, besides that there is one.
        numbers: The number of each of its products, by its inputs as they are written.
    """

    __slots__ = ("is_backward", "meaning", "needs_sequence", "needs_values", "numbers")

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self.is_backward = meaning.is_backward
        self.needs_values = needs_values(meaning.product)
        self.needs_sequence = numbers_count(meaning.product)
        self.numbers: dict[bytes, int] = {}


class ProductFinder:
    """Collects the products of a trace, text by text."""

    def __init__(self) -> None:
        self._until_name: int | None = None
        self._calls = _Calls()
        self._scopes = ScopeColumns()
        self._fits = True
        self._operators: dict[bytes, _Operator | None] = {}

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
            operator = self._operator(event.name.encode()) if event.cat in _CATEGORIES else None
            if operator is not None:
                args = event.args or _Args()
                start_us, sequence = _number(event.ts), ABSENT if args.sequence is None else args.sequence
                times = str(event.tid).encode(), start_us, start_us + _number(event.dur)
                if operator.meaning.product:
                    values = bytes(args.values) if operator.needs_values else b""
                    inputs = _Inputs(bytes(args.dims), bytes(args.elements) if args.dims else b"", values)
                    self._calls.add(operator, self._calls.number(operator.meaning.product, inputs), times, sequence)
                else:
                    self._scopes.add(operator.meaning.scope, times, sequence)

    def _operator(self, name: bytes) -> _Operator | None:
        """What is known of an operator; None where its name has no meaning."""
        try:
            return self._operators[name]
        except KeyError:
            meaning = find_meaning(name.decode("utf-8", "replace"))
            operator = self._operators[name] = None if meaning is None else _Operator(meaning)
            return operator

    def _look(self, text: bytes, name: int, stop: int) -> None:
        """Look at the operator whose name begins at a position."""
        begin = text.find(b'"', name, stop)
        operator = self._operator(text[name:begin])
        if operator is None:
            return
        in_order = _IN_ORDER.match(text, begin + 1, stop)
        if in_order:
            thread, start, duration = in_order.groups()
        else:
            thread, start, duration = (_search(pattern, text, begin, stop) for pattern in (_THREAD, _START, _DURATION))
        start_us = float(start or 0.0)
        times = thread, start_us, start_us + float(duration or 0.0)
        written = _search(_SEQUENCE, text, begin, stop)
        sequence = int(written) if written else ABSENT
        if operator.meaning.product:
            self._calls.add(operator, self._number_of(operator, text, begin, stop), times, sequence)
        else:
            self._scopes.add(operator.meaning.scope, times, sequence)

    def _number_of(self, operator: _Operator, text: bytes, begin: int, end: int) -> int:
        """The number of a product; most calls have the inputs of an earlier one."""
        first = text.find(_INPUTS, begin, end)
        if first >= 0 and operator.needs_values:
            values = text.find(_VALUES, begin, end)
            first = values if 0 <= values < first else first
        written = text[first : text.rfind(b"]", first, end) + 1] if first >= 0 else b""
        try:
            return operator.numbers[written]
        except KeyError:
            inputs = _read_inputs(written, with_values=operator.needs_values)
            number = operator.numbers[written] = self._calls.number(operator.meaning.product, inputs)
            return number

    def products(self) -> Products | None:
        """The products; absent where the events are written in another order than the finder expects."""
        if not self._fits:
            return None
        calls, sequence = self._calls.table()
        products, calls = link_backward(
            [
                Product(operator, _shapes(inputs.dims), _texts(inputs.elements), _texts(inputs.values))
                for operator, inputs in self._calls.numbers
            ],
            calls,
            sequence,
        )
        return Products(
            products=products,
            calls=calls,
            scopes=self._scopes.table(),
        )


class _Calls:
    """The calls of operators that multiply, as columns: a trace may have millions of them.

    Attributes:
        numbers: Each distinct operator with its inputs, and its number.
    """

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, _Inputs], int] = {}
        self._threads: dict[bytes, int] = {}
        self._number, self._thread, self._sequence = array("q"), array("q"), array("q")
        self._start_us, self._end_us = array("d"), array("d")
        self._is_tracked = array("b")

    def number(self, operator: str, inputs: _Inputs) -> int:
        """The number of a product."""
        return self.numbers.setdefault((operator, inputs), len(self.numbers))

    def add(self, operator: _Operator, number: int, times: Written, sequence: int) -> None:
        """Add a call, with its number in autograd or ABSENT."""
        thread, start_us, end_us = times
        self._sequence.append(sequence if operator.needs_sequence else ABSENT)
        self._is_tracked.append(sequence != ABSENT and not operator.is_backward)
        self._number.append(number)
        self._thread.append(self._threads.setdefault(thread, len(self._threads)))
        self._start_us.append(start_us)
        self._end_us.append(end_us)

    def table(self) -> tuple[ProductCalls, Int64]:
        """The calls by thread and start, and their numbers in autograd.

        Of those that begin together, the one that ends last stands first.
        """
        number, thread = (np.frombuffer(column, np.int64) for column in (self._number, self._thread))
        start_us, end_us = (np.frombuffer(column, np.float64) for column in (self._start_us, self._end_us))
        order = np.lexsort((-end_us, start_us, thread))
        number, thread, start_us, end_us = number[order], thread[order], start_us[order], end_us[order]
        ids = np.array([to_thread(written) for written in self._threads], np.int64)
        calls = ProductCalls(
            product=number,
            parent=self._find_parents(number, thread, start_us, end_us),
            start_ns=to_ns(start_us),
            end_ns=to_ns(end_us),
            thread=ids[thread] if len(thread) else thread,
            is_tracked=np.frombuffer(self._is_tracked, np.bool_)[order],
        )
        return calls, np.frombuffer(self._sequence, np.int64)[order]

    def _find_parents(self, number: Int64, thread: Int64, start_us: Float64, end_us: Float64) -> Int64:
        """For each call the row of the innermost one around it, or ABSENT.

        Two that have the same times are nested where they are different operators: one calls the other.
        """
        parents = np.full(len(number), ABSENT, np.int64)
        rows = np.flatnonzero(_may_nest(thread, start_us, end_us))
        if not len(rows):
            return parents
        operators: dict[str, int] = {}
        by_number = np.array([operators.setdefault(name, len(operators)) for name, _ in self.numbers], np.int64)
        columns = thread, start_us, end_us, by_number[number]
        calls = list(zip(*(column[rows].tolist() for column in columns), strict=True))
        around: list[int] = []
        for index, call in enumerate(calls):
            while around and not _contains(calls[around[-1]], call):
                around.pop()
            if around:
                parents[rows[index]] = rows[around[-1]]
            around.append(index)
        return parents


def _may_nest(thread: Int64, start_us: Float64, end_us: Float64) -> Bool:
    """Which of the calls, by thread and start, may be around another one or inside one: most are neither."""
    is_apart = np.ones(len(thread) + 1, np.bool_)
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(thread)) + 1).tolist(), len(thread)]):
        begins, ends = start_us[first:last], end_us[first:last]
        reach = np.maximum.accumulate(ends)[:-1]
        is_apart[first + 1 : last] = (begins[1:] > reach) | ((begins[1:] == reach) & (ends[1:] > begins[1:]))
    return np.asarray(~(is_apart[:-1] & is_apart[1:]))


def _contains(outer: _Times, inner: _Times) -> bool:
    thread, outer_start, outer_end, outer_operator = outer
    inner_thread, start, end, operator = inner
    begins_inside = start < outer_end or (start, end) == (outer_start, outer_end)
    is_inside = inner_thread == thread and begins_inside and end <= outer_end + _ROUNDING_US
    return is_inside and (end - start < outer_end - outer_start or operator != outer_operator)


def _read_inputs(written: bytes, *, with_values: bool) -> _Inputs:
    """The inputs of a call, from the text of its arguments."""
    dims, elements, numbers = (pattern.search(written) for pattern in (_DIMS, _ELEMENTS, _NUMBERS))
    return _Inputs(
        dims[1] if dims else b"",
        elements[1] if dims and elements else b"",
        numbers[1] if numbers and with_values else b"",
    )


def _search(pattern: re.Pattern[bytes], text: bytes, begin: int, end: int) -> bytes:
    match = pattern.search(text, begin, end)
    return match[1] if match else b""


def _number(time: float | str | None) -> float:
    return float(time or 0.0)


def _texts(written: bytes) -> tuple[str, ...]:
    return tuple(text.decode() for text in _TEXT.findall(written))


def _shapes(text: bytes) -> tuple[tuple[int, ...], ...]:
    """The shapes of the inputs; a list of tensors, which no product takes first, counts as none."""
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
        for shape in json.loads(text or b"[]")
    )
