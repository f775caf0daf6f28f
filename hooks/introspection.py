"""What hooks look up in the running interpreter; they never import torch themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def is_traced_alone() -> bool:
    """Whether torch.export or a compiler runs this call with tensors that hold no values, outside any training."""
    return bool(getattr(getattr(sys.modules["torch"], "compiler", None), "_is_compiling_flag", False))


def _is_compiling() -> bool:
    is_traced = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None)
    return is_traced is not None and bool(is_traced())


class Compiler:
    """What wrappers ask of torch.compile, before and after each call of a step.

    Attributes:
        is_tracing: Whether torch.compile traces this call: then a wrapper must leave nothing in the graph.
    """

    def __init__(self) -> None:
        self.is_tracing: Callable[[], bool] = _is_compiling

    def use_torch(self) -> None:
        """Ask torch's own function from now on, where it has one: everything else takes longer than a whole hook."""
        compiler = getattr(sys.modules["torch"], "compiler", None)
        self.is_tracing = getattr(compiler, "is_dynamo_compiling", self.is_tracing)


COMPILER = Compiler()


def is_grad_enabled() -> bool:
    """Whether torch records gradients, as in training and not in an evaluation."""
    is_enabled: bool = sys.modules["torch"].is_grad_enabled()
    return is_enabled


def subclasses(parent: Any) -> Iterator[Any]:
    """Every class that is derived from a class, directly or not."""
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)
