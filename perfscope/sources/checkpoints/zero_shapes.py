"""The shapes of a model's parameters where DeepSpeed keeps shapes instead of weights (ZeRO 1 to 3)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from perfscope.sources.checkpoints.pickles import Made, Pairs


def parameter_shapes(value: object) -> Iterator[tuple[str, int]]:
    """The names and sizes in ``param_shapes``: one dict a parameter group."""
    groups = _entries(value, "param_shapes")
    for group in groups if isinstance(groups, list | tuple) else [groups]:
        for name, shape in group.items if isinstance(group, Pairs | Made) else ():
            elements = _elements(shape)
            if isinstance(name, str) and elements is not None:
                yield name, elements


def _entries(value: object, key: str) -> object:
    if isinstance(value, Pairs):
        return value.get(key)
    if isinstance(value, Made):
        return next((child for name, child in value.items if name == key), None)
    return None


def _elements(shape: object) -> int | None:
    if isinstance(shape, Made) and isinstance(shape.arguments, tuple) and len(shape.arguments) == 1:
        parts = shape.arguments[0]
        if isinstance(parts, tuple | list) and all(isinstance(part, int) and part >= 0 for part in parts):
            return prod(parts)
    return None
