"""Finds the matrix products among the operators of a trace, by their shapes, which `--shapes` records.

Names tell which operators multiply: PyTorch's own, and those of libraries. They are collected with the operators that
they call, so that each product is counted once. So are autograd's nodes: a product inside one that autograd tracks is
computed again.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from perfscope.constants import NS_PER_US
from perfscope.models.data_files import read_data
from perfscope.sources.traces.columns import LARGEST_US, decode_list, to_ns
from perfscope.sources.traces.stream import FAILURES, DoesNotFit, list_decoder, repair
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.products import ROUNDING_NS, Product, ProductCalls, Products, Scope, Scopes
from perfscope.tables.trace import ABSENT

_NAMES = {key: "|".join(patterns) for key, patterns in read_data("operators")["products"].items()}
_NAME = re.compile(
    rf"(?:aten::(?:(?P<pytorch>{_NAMES['pytorch']})|(?P<cheap>{_NAMES['cheap']}))|flash_attn::(?P<flash>{_NAMES['flash']})|"
    rf"(?P<library>(?!aten::|autograd::|torch::)\w+::(?=.*(?:{_NAMES['libraries']}))(?!.*(?:{_NAMES['helpers']})).*)|"
    rf"(?P<function>{_NAMES['functions']})|autograd::engine::evaluate_function: (?P<node>.*)|(?P<other_function>\w+))\Z"
)
_BACKWARD = re.compile(r"Backward\d*\Z")
_COMPILED = "CompiledFunction"
_NEEDS_VALUES = re.compile(r"convolution|(?:flash|efficient|cudnn)_attention_|varlen|\bfwd|\bbwd")
#: A function in Python has a backward pass whose inputs are the gradients, and whose products may be no operators.
_SUFFIX = "Backward"
_FUNCTION = re.compile(rf"^\w*(?:Linear|MLP|Func\w*){_SUFFIX}$")
_TEXT = re.compile(rb'"([^"]*)"')


class _Args(msgspec.Struct, gc=False, rename={
    "dims": "Input Dims", "elements": "Input type", "values": "Concrete Inputs", "sequence": "Sequence number",
}):  # fmt: skip
    dims: msgspec.Raw = msgspec.Raw(b"")
    elements: msgspec.Raw = msgspec.Raw(b"")
    values: msgspec.Raw = msgspec.Raw(b"")
    sequence: int | None = None


class _Event(msgspec.Struct, gc=False):
    cat: str = ""
    name: str = ""
    ts: float | None = None
    dur: float | None = None
    tid: int | str | None = None
    args: _Args | None = None


class Meaning(NamedTuple):
    """What an operator's name says.

    Attributes:
        product: The operator without ``aten::``; empty where it does not multiply.
        scope: What it is to autograd; absent where it multiplies.
        needs_values: Whether its operations depend on inputs that are numbers: strides, or the lengths of sequences.
    """

    product: str = ""
    scope: Scope | None = None
    needs_values: bool = False


@lru_cache(1 << 16)  # names of generated kernels have no end
def find_meaning(name: str) -> Meaning | None:
    """What an operator's name says; None where it neither multiplies nor tells passes apart.

    >>> find_meaning("aten::mm")
    Meaning(product='mm', scope=None, needs_values=False)
    >>> find_meaning("autograd::engine::evaluate_function: MmBackward0").scope, find_meaning("CompiledFunction").scope
    (<Scope.NODE: 0>, <Scope.COMPILED: 4>)
    >>> find_meaning("vllm::unified_attention_with_output").product
    'vllm::unified_attention_with_output'
    """
    match = _NAME.match(name)
    if match is None:
        return None
    product = match["pytorch"] or match["flash"] or match["library"] or match["function"]
    if product:
        return Meaning(product, needs_values=bool(_NEEDS_VALUES.search(product)))
    if match["node"]:
        is_function, is_compiled = match["node"].endswith(_SUFFIX), match["node"].startswith(_COMPILED)
        scope = Scope.COMPILED_NODE if is_compiled else Scope.FUNCTION_NODE if is_function else Scope.NODE
        return Meaning(scope=scope)
    if match["cheap"]:
        return Meaning(scope=Scope.CHEAP)
    if not match["other_function"] or _BACKWARD.search(match["other_function"]):
        return None
    return Meaning(scope=Scope.COMPILED if match["other_function"] == _COMPILED else Scope.FUNCTION)


class _Inputs(NamedTuple):
    """An operator with its inputs as they are written: shapes, types, and those that are numbers."""

    operator: str
    dims: bytes
    elements: bytes
    values: bytes

    def product(self) -> Product:
        """The same, parsed; a list of tensors, which no product takes first, counts as no input."""
        shapes = tuple(
            tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
            for shape in decode_list(self.dims)
        )
        elements, values = (tuple(text.decode() for text in _TEXT.findall(of)) for of in (self.elements, self.values))
        return Product(self.operator, shapes, elements, values)


class _Spans:
    """Spans of threads as columns: a trace may have millions. Their kind is a Scope, or the number of a product."""

    def __init__(self) -> None:
        self._integers, self._times_us = array("q"), array("d")

    def add(self, kind: int, event: _Event, sequence: int) -> None:
        start_us = event.ts or 0.0
        end_us = start_us + (event.dur or 0.0)
        if not -LARGEST_US < start_us <= end_us < LARGEST_US:
            return
        thread = event.tid if isinstance(event.tid, int) and abs(event.tid) < 1 << 63 else ABSENT
        self._integers.extend((kind, thread, sequence if abs(sequence) < 1 << 63 else ABSENT))
        self._times_us.extend((start_us, end_us))

    def columns(self) -> tuple[Int64, Int64, Int64, Float64, Float64]:
        """Kind, thread, number in autograd or ABSENT, start and end in microseconds."""
        kind, thread, sequence = np.frombuffer(self._integers, np.int64).reshape(-1, 3).T
        start_us, end_us = np.frombuffer(self._times_us, np.float64).reshape(-1, 2).T
        return kind, thread, sequence, start_us, end_us


class ProductFinder:
    """Collects the products of a trace, text by text."""

    def __init__(self) -> None:
        self._calls, self._scopes = _Spans(), _Spans()
        self._numbers: dict[_Inputs, int] = {}
        self._decode_list = list_decoder(_Event)

    def add(self, texts: Sequence[bytes]) -> None:
        """Decode events, mended where they must be; DoesNotFit where one cannot be read."""
        try:
            self.decode(b"[%b]" % b",".join(texts))
        except FAILURES:
            for text in texts:
                try:
                    self.decode(b"[%b]" % repair(text))
                except FAILURES:
                    raise DoesNotFit from None

    def decode(self, events: bytes) -> None:
        """Decode a list of events in JSON, of whatever layout; a msgspec.MsgspecError where it cannot be read."""
        for event in self._decode_list(events):
            meaning = find_meaning(event.name) if event.cat == "cpu_op" else None
            if meaning is None:
                continue
            args = event.args or _Args()
            sequence = ABSENT if args.sequence is None else args.sequence
            if meaning.scope is None:
                values = bytes(args.values) if meaning.needs_values else b""
                elements = bytes(args.elements) if args.dims else b""
                inputs = _Inputs(meaning.product, bytes(args.dims), elements, values)
                self._calls.add(self._numbers.setdefault(inputs, len(self._numbers)), event, sequence)
            elif sequence != ABSENT or meaning.scope <= Scope.COMPILED_NODE:  # others count where autograd tracks them
                self._scopes.add(meaning.scope, event, sequence)

    def products(self) -> Products:
        """The products; a call that contains others stands before them."""
        scope, of_scope, _, start_us, end_us = self._scopes.columns()
        scopes = Scopes(scope, to_ns(start_us), to_ns(end_us), of_scope)
        number, thread, sequence, start_us, end_us = self._calls.columns()
        order = np.lexsort((-end_us, start_us, thread))
        number, thread, sequence = number[order], thread[order], sequence[order]
        start_us, end_us = start_us[order], end_us[order]
        operators = [inputs.operator for inputs in self._numbers]
        is_backward = np.array([bool(_BACKWARD.search(operator)) for operator in operators], np.bool_)
        calls = ProductCalls(
            product=number,
            parent=_find_parents([operators[product] for product in number.tolist()], thread, start_us, end_us),
            start_ns=to_ns(start_us),
            end_ns=to_ns(end_us),
            thread=thread,
            is_tracked=(sequence != ABSENT) & ~is_backward[number],
        )
        products, calls = link_backward([inputs.product() for inputs in self._numbers], calls, sequence)
        return Products(products=products, calls=calls, scopes=scopes)


def _find_parents(operators: Sequence[str], thread: Int64, start_us: Float64, end_us: Float64) -> Int64:
    """For each call, by thread and start, the row of the innermost one around it, or ABSENT.

    Two that have the same times are nested where they are different operators: one calls the other.
    """
    parents = np.full(len(thread), ABSENT, np.int64)
    calls = list(zip(thread.tolist(), start_us.tolist(), end_us.tolist(), operators, strict=True))
    around: list[int] = []
    for row, (of_thread, start, end, operator) in enumerate(calls):
        while around:
            outer_thread, outer_start, outer_end, outer_operator = calls[around[-1]]
            begins_inside = start < outer_end or (start, end) == (outer_start, outer_end)
            is_inside = of_thread == outer_thread and begins_inside and end <= outer_end + ROUNDING_NS / NS_PER_US
            if is_inside and (end - start < outer_end - outer_start or operator != outer_operator):
                parents[row] = around[-1]
                break
            around.pop()
        around.append(row)
    return parents


def link_backward(
    products: Sequence[Product], calls: ProductCalls, sequence: Int64
) -> tuple[tuple[Product, ...], ProductCalls]:
    """The products with the inputs of their forward passes, and the calls with their products among them.

    A backward pass belongs to the last forward pass with its number before it. Where several threads have one, and
    these have different inputs, it is not told whose it is. ``sequence`` is the number of each call, or ABSENT.
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
        latest = _latest(calls, row, forwards.get((operator.removesuffix(_SUFFIX), int(sequence[row])), ()))
        inputs = {products[calls.product[forward]] for forward in latest.values()}
        if len(inputs) == 1:
            product = replace(inputs.pop(), operator=operator, of_forward=True)
            column[row] = numbers.setdefault(product, len(numbered))
            if column[row] == len(numbered):
                numbered.append(product)
            if not any(has_parts[forward] for forward in latest.values()):
                # Its products are no operators: what is inside it was not kept, and is computed again by a checkpoint.
                whole[calls.parent == row] = calls.parent[row]
    return tuple(numbered), replace(calls, product=column, whole=whole)


def _latest(calls: ProductCalls, row: int, forwards: Sequence[int]) -> Mapping[int, int]:
    """Of each thread the last of some calls that ended before another one began."""
    latest: dict[int, int] = {}
    for forward in forwards:
        thread = int(calls.thread[forward])
        if calls.end_ns[forward] <= calls.start_ns[row] and (
            thread not in latest or calls.start_ns[forward] > calls.start_ns[latest[thread]]
        ):
            latest[thread] = forward
    return latest
