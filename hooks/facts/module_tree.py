"""The modules and parameters of a model, read from torch's own tables: a script may override the methods for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def named_modules(root: Any) -> Iterator[tuple[str, Any]]:
    """Each module inside a module, itself included, once, with the first of its names."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        name, module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        children = [(child_name, child) for child_name, child in module._modules.items() if child is not None]
        waiting += [(f"{name}.{child_name}" if name else child_name, child) for child_name, child in reversed(children)]


def named_parameters(root: Any) -> Iterator[tuple[str, Any]]:
    """Each parameter of a module once, with the first of its names."""
    seen: set[int] = set()
    for prefix, module in named_modules(root):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}.{name}" if prefix else name, parameter
