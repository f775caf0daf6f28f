"""A trace of millions of products takes a few numbers for each of them."""

from __future__ import annotations

import tracemalloc

from perfscope.sources.traces.products import ProductFinder

CALLS = 50_000
#: Four numbers a call, and what arrays keep free to grow.
MOST_BYTES_A_CALL = 64
EVENT = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": %d, "ts": %d.000, "dur": 5.000, "args": {%s}}'
SHAPES = '"Input type": ["float"], "Input Dims": [[8, 16], [16, 32]]'


def test_calls_are_collected_as_columns() -> None:
    names = "aten::mm", "aten::_scaled_dot_product_flash_attention", "aten::gelu"
    texts = [EVENT % (names[index % 3], index % 7, 10 * index, SHAPES) for index in range(CALLS)]
    finder = ProductFinder()
    tracemalloc.start()
    for first in range(0, CALLS, 1000):  # block by block
        finder.add([text.encode() for text in texts[first : first + 1000]])
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < MOST_BYTES_A_CALL * CALLS
    products = finder.products()
    assert len(products.calls) == len([index for index in range(CALLS) if index % 3 != 2])
    assert len(products.scopes) == 0  # an activation counts where autograd tracks it
    assert len(products.products) == 2
