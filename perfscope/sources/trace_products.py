"""The matrix products of a trace; their shapes are there where it was taken with ``--shapes``.

Only operators that multiply are looked at, and of nested ones the innermost, so that each product is found once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.sources.inflate import read_blocks
from perfscope.tables.products import Product, Products

_NAME = re.compile(
    rb'"name":\s*"aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_scaled_dot_product_\w*attention\w*)"|'
    rb'"name":\s*"ProfilerStep#(\d+)"'
)
_DIMS = re.compile(rb'"Input Dims":\s*(\[[\d\s,\[\]]*\])')
_NEXT_EVENT = re.compile(rb'"ph"\s*:')


def read_products(path: Path) -> Products:
    """Read the products of a trace.

    Raises:
        SourceError: The file cannot be read, or holds no training step.
    """
    damage: list[str] = []
    text = b"".join(read_blocks(str(path), damage))
    steps: set[int] = set()
    found: Counter[tuple[str, tuple[tuple[int, ...], ...]]] = Counter()
    without = 0
    for match in _NAME.finditer(text):
        if match[2]:
            steps.add(int(match[2]))
            continue
        following = _NEXT_EVENT.search(text, match.end())
        dims = _DIMS.search(text, match.end(), following.start() if following else len(text))
        if dims is None:
            without += 1
        else:
            found[match[1].decode(), _shapes(dims[1])] += 1
    if not steps:
        raise SourceError(path, "holds no ProfilerStep, so how many steps it counts is not known")
    products = tuple(Product(operator, shapes, count) for (operator, shapes), count in found.items())
    return Products(str(path), len(steps), products, without)


def _shapes(text: bytes) -> tuple[tuple[int, ...], ...]:
    """The shapes of the inputs; a list of tensors, which no product takes first, counts as none."""
    return tuple(
        tuple(size for size in shape if isinstance(size, int)) if isinstance(shape, list) else ()
        for shape in json.loads(text)
    )
