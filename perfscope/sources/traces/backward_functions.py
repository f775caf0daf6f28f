"""Links the backward passes of functions that multiply to their forward passes, whose inputs say what they multiply.

A function in Python has a backward pass whose inputs are the gradients alone, and whose products, as those of
Transformer Engine, may be no operators of their own. Autograd gives both the same number: each thread counts its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.tables.columns import Int64
from perfscope.tables.products import Product, ProductCalls
from perfscope.tables.trace import ABSENT

_SUFFIX = "Backward"
_FUNCTION = re.compile(rf"^\w*(?:Linear|MLP|Func\w*){_SUFFIX}$")


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
