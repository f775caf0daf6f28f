"""The matrix products of a trace, by operator and shapes, and the order in which layers ran forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """Calls of one operator with the same shapes.

    Attributes:
        operator: Its name without ``aten::``.
        shapes: The shapes of its inputs; empty for an input that is no tensor.
        count: How many calls there were.
        elements: The types of its inputs' elements, as the profiler names them; empty where they are not stated.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    count: int
    elements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Products:
    """All products of a trace.

    Attributes:
        products: The products.
        without_shapes: Calls whose shapes the trace does not state.
        in_order: Calls that distinguish forward from backward passes (attention, softmaxes, activations), in the order
            of their start.
        steps: How many training steps they are of; absent where they are of the trace's own steps.
    """

    products: Sequence[Product]
    without_shapes: int
    in_order: Sequence[str]
    steps: int | None = None
