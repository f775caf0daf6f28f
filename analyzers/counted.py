"""Operations counted from the shapes of a trace, beside what a formula says.

A product of m x k and k x n is 2 m n k operations. Attention is counted over the whole matrix, forward once and
backward twice, as the formulas count it; what a kernel recomputes inside is not. Layers that ran forward twice for one
backward pass were recomputed, which the calls of attention tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.errors import MissingInput
from perfscope.tables.products import Product, Products

EXPLAINED = 0.02
_ATTENTION = "_scaled_dot_product"
_BACKWARD = "_backward"


@dataclass(frozen=True, slots=True)
class Counted:
    """What a trace's shapes add up to.

    Attributes:
        flops_per_step: Operations of one step on this rank.
        attention_share: The share of attention in them.
        recomputed: Whether layers ran forward more often than backward; absent where no attention operator tells.
        without_shapes: Products that could not be counted.
    """

    flops_per_step: float
    attention_share: float
    recomputed: bool | None
    without_shapes: int


def count(products: Products) -> Counted:
    """Add up the products of a trace.

    Raises:
        MissingInput: The trace states no shapes.
    """
    if not products.products:
        raise MissingInput(f"{products.path} states no shapes: profile with `--shapes`")
    attention = [product for product in products.products if product.operator.startswith(_ATTENTION)]
    total = sum(product.count * flops(product) for product in products.products)
    of_attention = sum(product.count * flops(product) for product in attention)
    backward = sum(product.count for product in attention if _BACKWARD in product.operator)
    forward = sum(product.count for product in attention) - backward
    return Counted(
        flops_per_step=total / products.steps,
        attention_share=of_attention / total if total else 0.0,
        recomputed=forward > backward if backward else None,
        without_shapes=products.without_shapes,
    )


def flops(product: Product) -> int:
    """Operations of one call; 0 where its shapes are not those of a product."""
    shapes = product.shapes
    if product.operator.startswith(_ATTENTION):
        is_backward = _BACKWARD in product.operator
        operands = shapes[1:4] if is_backward else shapes[:3]
        return (2 if is_backward else 1) * _attention(operands)
    left, right = shapes[1:3] if product.operator in ("addmm", "baddbmm") else shapes[:2]
    if len(left) < 2 or len(right) < 2:  # noqa: PLR2004 - rows and columns
        return 0
    batch = left[0] if len(left) > 2 else 1  # noqa: PLR2004 - as above
    return 2 * batch * left[-2] * left[-1] * right[-1]


def _attention(operands: tuple[tuple[int, ...], ...]) -> int:
    """Both products of attention: queries by keys, and weights by values."""
    query, key, value = operands
    *outer, queries, dimensions = query
    heads = 1
    for size in outer:
        heads *= size
    return 2 * heads * queries * key[-2] * (dimensions + value[-1])
