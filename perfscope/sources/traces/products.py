"""Finds the matrix products among the operators of a trace, by their shapes, which `--shapes` records.

Operators that multiply are collected with the operators that they call, so that each product is counted once.
Autograd's nodes are collected, too: a product inside one that autograd tracks is computed again.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from perfscope.sources.traces.columns import to_ns
from perfscope.sources.traces.layout import DoesNotFit
from perfscope.sources.traces.product_names import Meaning, find_meaning, needs_values
from perfscope.sources.traces.salvage import FAILURES, repair
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.products import Product, ProductCalls, Products, Scope, Scopes
from perfscope.tables.trace import ABSENT

#: A function in Python has a backward pass whose inputs are the gradients, and whose products may be no operators.
_SUFFIX = "Backward"
_FUNCTION = re.compile(rf"^\w*(?:Linear|MLP|Func\w*){_SUFFIX}$")
_TEXT = re.compile(rb'"([^"]*)"')
#: Times of older exporters are rounded to a quarter of a microsecond.
_ROUNDING_US = 0.5


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
    """

    __slots__ = ("is_backward", "meaning", "needs_sequence", "needs_values")

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self.is_backward = meaning.is_backward
        self.needs_values = needs_values(meaning.product)
        self.needs_sequence = numbers_count(meaning.product)


#: Thread, start and end in microseconds, as they are written.
Written: TypeAlias = tuple[bytes, float, float]


class ScopeColumns:
    """What tells passes apart, as columns: a thread, and times, of each."""

    def __init__(self) -> None:
        self._threads: dict[bytes, int] = {}
        self._scope, self._thread = array("b"), array("q")
        self._start_us, self._end_us = array("d"), array("d")

    def add(self, scope: Scope | None, times: Written, sequence: int) -> None:
        """Add a span, with its number in autograd or ABSENT; without a number it is a node, or does not count."""
        if scope is None or (sequence == ABSENT and scope > Scope.COMPILED_NODE):
            return
        thread, start_us, end_us = times
        self._scope.append(scope)
        self._thread.append(self._threads.setdefault(thread, len(self._threads)))
        self._start_us.append(start_us)
        self._end_us.append(end_us)

    def table(self) -> Scopes:
        """The spans."""
        ids = np.array([to_thread(written) for written in self._threads] or [ABSENT], np.int64)
        return Scopes(
            scope=np.frombuffer(self._scope, np.int8).astype(np.int64),
            start_ns=to_ns(np.frombuffer(self._start_us, np.float64)),
            end_ns=to_ns(np.frombuffer(self._end_us, np.float64)),
            thread=ids[np.frombuffer(self._thread, np.int64)],
        )


class ProductFinder:
    """Collects the products of a trace, text by text."""

    def __init__(self) -> None:
        self._calls = _Calls()
        self._scopes = ScopeColumns()
        self._operators: dict[str, _Operator | None] = {}

    def needs(self, name: str) -> bool:
        """Whether an operator of a name is to be added."""
        return self._operator(name) is not None

    def add(self, texts: Sequence[bytes]) -> None:
        """Decode events, mended where they must be.

        Raises:
            DoesNotFit: One cannot be read.
        """
        try:
            self.decode(b"[%b]" % b",".join(texts))
        except FAILURES:
            for text in texts:
                try:
                    self.decode(b"[%b]" % repair(text))
                except FAILURES:
                    raise DoesNotFit from None

    def decode(self, events: bytes) -> None:
        """Decode a list of events in JSON, of whatever layout.

        Raises:
            msgspec.MsgspecError: It cannot be read.
        """
        for event in msgspec.json.decode(events, type=list[_Event]):
            operator = self._operator(event.name) if event.cat == "cpu_op" else None
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

    def _operator(self, name: str) -> _Operator | None:
        """What is known of an operator; None where its name has no meaning."""
        try:
            return self._operators[name]
        except KeyError:
            meaning = find_meaning(name)
            operator = self._operators[name] = None if meaning is None else _Operator(meaning)
            return operator

    def products(self) -> Products:
        """The products."""
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


def to_thread(written: bytes) -> int:
    """The number of a thread, or ABSENT."""
    try:
        return int(written)
    except ValueError:
        return ABSENT


def numbers_count(operator: str) -> bool:
    """Whether an operator's number in autograd is needed: it is such a function, forward or backward.

    >>> numbers_count("_LinearBackward"), numbers_count("_LayerNormMLP"), numbers_count("mm")
    (True, True, False)
    """
    return bool(_FUNCTION.match(operator if operator.endswith(_SUFFIX) else operator + _SUFFIX))


def link_backward(
    products: Sequence[Product], calls: ProductCalls, sequence: Int64
) -> tuple[tuple[Product, ...], ProductCalls]:
    """The products with the inputs of their forward passes, and the calls with their products among them.

    A backward pass belongs to the last forward pass with its number before it. Where several threads have one, and
    these have different inputs, it is not told whose it is.

    Args:
        products: The products.
        calls: Their calls.
        sequence: The number of each call in autograd, or ABSENT.
    """
    numbered, column, whole = list(products), calls.product.copy(), calls.parent.copy()
    has_parts = np.isin(np.arange(len(calls)), calls.parent)
    is_backward = np.array([bool(_FUNCTION.match(product.operator)) for product in products], np.bool_)
    if not len(calls) or not is_backward.any():
        return tuple(products), calls
    forwards: dict[tuple[str, int], list[int]] = {}
    for row in np.flatnonzero((sequence != ABSENT) & ~is_backward[calls.product]).tolist():
        key = products[calls.product[row]].operator, int(sequence[row])
        forwards.setdefault(key, []).append(row)
    numbers: dict[Product, int] = {}
    for row in np.flatnonzero((sequence != ABSENT) & is_backward[calls.product]).tolist():
        operator = products[calls.product[row]].operator
        latest: dict[int, int] = {}
        for forward in forwards.get((operator.removesuffix(_SUFFIX), int(sequence[row])), ()):
            if calls.end_ns[forward] <= calls.start_ns[row]:
                thread = int(calls.thread[forward])
                if thread not in latest or calls.start_ns[forward] > calls.start_ns[latest[thread]]:
                    latest[thread] = forward
        inputs = {products[calls.product[forward]] for forward in latest.values()}
        if len(inputs) == 1:
            (forward_product,) = inputs
            product = Product(
                operator, forward_product.shapes, forward_product.elements, forward_product.values, of_forward=True
            )
            column[row] = numbers.setdefault(product, len(numbered))
            if column[row] == len(numbered):
                numbered.append(product)
            if not any(has_parts[forward] for forward in latest.values()):
                # Its products are no operators: what is inside it was not kept, and is computed again by a checkpoint.
                whole[calls.parent == row] = calls.parent[row]
    return tuple(numbered), replace(calls, product=column, whole=whole)
