"""What hooks look up in the running interpreter; they never import torch themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_compiling() -> bool:
    """Whether torch.compile traces this call: then a wrapper must leave nothing in the graph."""
    compiler = getattr(sys.modules["torch"], "compiler", None)
    is_dynamo = getattr(compiler, "is_dynamo_compiling", None)
    if is_dynamo is not None:  # torch's is_compiling asks more, which takes longer than all of a hook
        return bool(is_dynamo() or getattr(compiler, "_is_compiling_flag", False))
    is_traced = getattr(compiler, "is_compiling", None)
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
