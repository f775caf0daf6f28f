"""What hooks look up in the running interpreter; they never import torch themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_compiling() -> bool:
    """Whether torch.compile traces this call: then a wrapper must leave nothing in the graph."""
    is_traced = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None)
    return is_traced is not None and bool(is_traced())


def is_grad_enabled() -> bool:
    """Whether torch records gradients, as in training and not in an evaluation."""
    is_enabled: bool = sys.modules["torch"].is_grad_enabled()
    return is_enabled


def subclasses(parent: Any) -> Iterator[Any]:
    """Every class that is derived from a class, directly or not."""
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)
