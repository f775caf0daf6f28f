"""Finds the matrix products among the operators of a trace, by their shapes, which `--shapes` records.

Only operators that multiply count, and of nested ones the innermost, so that each product is counted once; and those
whose backward pass has an operator of its own, because their order shows which ran forward twice. Two letters of every
operator's name are looked up first, so that all other operators cost next to nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec
import numpy as np

from perfscope.tables.columns import Int64
from perfscope.tables.products import Product, Products

_MULTIPLYING = (
    r"mm|addmm|_addmm_activation|bmm|baddbmm|_scaled_mm|_grouped_mm|_scaled_grouped_mm|"
    # Written out as products of its own where PyTorch has no kernel for it (_math).
    r"_scaled_dot_product_(?!attention_math)\w*attention\w*|_flash_attn_(?:varlen_)?(?:forward|backward)"
)
_IN_PASSES = r"_softmax(?:_backward_data)?|gelu(?:_backward)?|silu(?:_backward)?|relu|threshold_backward"
_OPERATOR = rf'(?:aten::|flash_attn::)(?:(?P<product>{_MULTIPLYING})|(?P<pass>{_IN_PASSES}))"'
_NAME = re.compile(_OPERATOR.encode())
#: Letters 7 to 10 of the names, behind ``aten::``.
_LETTERS = (
    b'mm",', b"addm", b"_add", b'bmm"', b"badd", b"_sca", b"_gro", b"attn", b"_sof", b"gelu", b"silu", b"relu", b"thre",
)  # fmt: skip
_BEFORE = len("aten::")
#: Which of those letters are looked up, and whether an operator whose name has them may count.
_KEY_LETTERS = 1, 3
_MAY_COUNT = np.zeros((256, 256), np.bool_)
_MAY_COUNT[tuple(np.array([[name[letter] for name in _LETTERS] for letter in _KEY_LETTERS]))] = True
#: Letters 1 and 6 of the category ``cpu_op``; ``cpu_instant_event`` has another one there.
_OF_OPERATORS = (0, ord("c")), (5, ord("p"))
_UNTIL_NAME = re.compile(rb'cpu_op",\s*"name":\s*"')
_LAST = re.compile(rb'"cat":\s*"' + _UNTIL_NAME.pattern)
_INPUTS = b'"Input '
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


class _Args(msgspec.Struct, gc=False, rename={"dims": "Input Dims", "elements": "Input type"}):
    """The arguments of an operator that are needed here."""

    dims: msgspec.Raw = msgspec.Raw(b"")
    elements: msgspec.Raw = msgspec.Raw(b"")


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
    operator: bytes
    dims: bytes
    elements: bytes


def _innermost(calls: Sequence[_Call]) -> Iterator[_Call]:
    """The calls that contain no other call: autocast calls the same operator again, with inputs that it has cast."""
    ordered = sorted(calls, key=attrgetter("end_us"), reverse=True)
    ordered.sort(key=itemgetter(0, 1))  # by thread and start: where these are equal, what ends last remains first
    for call, following in zip_longest(ordered, ordered[1:]):
        is_outer = (
            following is not None
            and following.thread == call.thread
            and following.end_us <= call.end_us + _ROUNDING_US
            and following.end_us - following.start_us < call.end_us - call.start_us
        )
        if not is_outer:
            yield call


class ProductFinder:
    """Collects the products of a trace, text by text."""

    def __init__(self) -> None:
        self._until_name: int | None = None
        self._calls: list[_Call] = []
        self._in_order: list[tuple[float, str]] = []
        self._without_shapes = 0
        self._fits = True
        self._inputs: dict[bytes, tuple[bytes, bytes]] = {}

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
        chosen = _MAY_COUNT[tuple(letters.take(names + _BEFORE + letter, mode="clip") for letter in _KEY_LETTERS)]
        for name, stop in zip(names[chosen].tolist(), stops[chosen].tolist(), strict=True):
            match = _NAME.match(text, name)
            if match is not None:
                self._add(text, match, stop)

    def scan_last(self, text: bytes) -> None:
        """Scan the last event and what follows it."""
        operator = _LAST.search(text)
        match = _NAME.match(text, operator.end()) if operator else None
        if match is not None:
            self._add(text, match, len(text))

    def decode(self, events: bytes) -> None:
        """Decode a list of events in JSON, of whatever layout.

        Raises:
            msgspec.MsgspecError: It cannot be read.
        """
        for event in msgspec.json.decode(events, type=list[_Event]):
            match = _NAME.match(event.name.encode() + b'"') if event.cat in _CATEGORIES else None
            if match is not None:
                args = event.args or _Args()
                start_us, thread = _number(event.ts), str(event.tid).encode()
                end_us = start_us + _number(event.dur)
                operator = match["product"] or b""
                call = _Call(thread, start_us, end_us, operator, bytes(args.dims), bytes(args.elements))
                self._count(match, call)

    def _add(self, text: bytes, match: re.Match[bytes], end: int) -> None:
        begin = match.end()
        in_order = _IN_ORDER.match(text, begin, end)
        if in_order:
            thread, start, duration = in_order.groups()
        else:
            thread, start, duration = (_search(pattern, text, begin, end) for pattern in (_THREAD, _START, _DURATION))
        operator = match["product"] or b""
        dims, elements = self._inputs_of(text, begin, end) if operator else (b"", b"")
        start_us = float(start or 0.0)
        self._count(match, _Call(thread, start_us, start_us + float(duration or 0.0), operator, dims, elements))

    def _inputs_of(self, text: bytes, begin: int, end: int) -> tuple[bytes, bytes]:
        """The shapes and the types of the inputs, as they are written; most calls have those of an earlier one."""
        first = text.find(_INPUTS, begin, end)
        if first < 0:
            return b"", b""
        inputs = text[first : text.rfind(b"]", first, end) + 1]
        if inputs not in self._inputs:
            dims, elements = _DIMS.search(inputs), _ELEMENTS.search(inputs)
            self._inputs[inputs] = dims[1] if dims else b"", elements[1] if dims and elements else b""
        return self._inputs[inputs]

    def _count(self, match: re.Match[bytes], call: _Call) -> None:
        if _has_backward_operator(match):
            self._in_order.append((call.start_us, (call.operator or match["pass"]).decode()))
        if call.operator and call.dims:
            self._calls.append(call)
        elif call.operator:
            self._without_shapes += 1

    def products(self) -> Products | None:
        """The products; absent where the events are written in another order than the finder expects."""
        if not self._fits:
            return None
        counts = Counter((call.operator, call.dims, call.elements) for call in _innermost(self._calls))
        return Products(
            products=tuple(
                Product(operator.decode(), _shapes(dims), count, _texts(elements))
                for (operator, dims, elements), count in counts.items()
            ),
            without_shapes=self._without_shapes,
            in_order=tuple(operator for _, operator in sorted(self._in_order, key=itemgetter(0))),
        )


def _has_backward_operator(match: re.Match[bytes]) -> bool:
    return match["product"] is None or b"attention" in match["product"] or b"attn" in match["product"]


def _search(pattern: re.Pattern[bytes], text: bytes, begin: int, end: int) -> bytes:
    match = pattern.search(text, begin, end)
    return match[1] if match else b""


def _number(time: float | str | None) -> float:
    return float(time or 0.0)


def _texts(elements: bytes) -> tuple[str, ...]:
    return tuple(text.decode() for text in _TEXT.findall(elements))


def _shapes(text: bytes) -> tuple[tuple[int, ...], ...]:
    """The shapes of the inputs; a list of tensors, which no product takes first, counts as none."""
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
        for shape in json.loads(text)
    )
