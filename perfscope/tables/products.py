"""The matrix products of a trace, by operator and shapes, and how often what is recomputed ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """Calls of one operator with the same shapes.

    Attributes:
        operator: Its name without ``aten::``.
        shapes: The shapes of its inputs; empty for an input that is no tensor.
        count: How many calls there were.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    count: int


@dataclass(frozen=True, slots=True)
class Products:
    """All products of a trace.

    Attributes:
        products: What was multiplied.
        without_shapes: Calls whose shapes the trace does not state.
        calls: Calls by operator, of products and of the activations and softmaxes that tell forward from backward.
    """

    products: Sequence[Product]
    without_shapes: int
    calls: Mapping[str, int]
