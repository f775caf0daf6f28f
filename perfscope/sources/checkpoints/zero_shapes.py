"""The sizes of a model's parameters in files in which DeepSpeed stores their shapes (ZeRO 1 to 3)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from perfscope.sources.pickles import Call, entries, parse_shape


def parse_parameter_sizes(value: object) -> Iterator[tuple[str, int]]:
    """The names and numbers of elements in ``param_shapes``, which holds one dict per parameter group."""
    groups = entries(value).get("param_shapes")
    for group in groups if isinstance(groups, list | tuple) else [groups]:
        for name, shape in entries(group).items():
            elements = _elements(shape)
            if isinstance(name, str) and elements is not None:
                yield name, elements


def _elements(shape: object) -> int | None:
    sizes = parse_shape(shape) if isinstance(shape, Call) else None
    return None if sizes is None else prod(sizes)
