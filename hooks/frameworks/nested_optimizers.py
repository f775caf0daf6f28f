"""Reports the outermost step of optimizers that are built from other optimizers.

ZeRO's, Megatron's and torchtitan's optimizers call the ``step`` of others, once or for each part of the weights. Only
the call that no other step encloses is reported.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Report = Callable[[Any, Any], None]

_inside = threading.local()
#: Reports from compiled code; torch._dynamo gives it when it is loaded, because nothing is compiled before that.
_report_outside_the_graph: Any = None


def wrap_outermost(owner: Any, report: Report, *, before: Callable[[], None] | None = None) -> None:
    """Call ``report(optimizer, result)`` after each outermost ``step`` of a class, and ``before()`` before it."""
    step = owner.step
    if getattr(step, "_perfscope", False):
        return

    @functools.wraps(step)
    def reporting_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            result = step(self, *args, **kwargs)
            if _report_outside_the_graph is not None:
                _report_outside_the_graph(report, self, result)
            return result
        depth = getattr(_inside, "depth", 0)
        if before is not None and depth == 0:
            before()
        _inside.depth = depth + 1
        try:
            result = step(self, *args, **kwargs)
        finally:
            _inside.depth = depth
        if depth == 0:
            report(self, result)
        return result

    # Versions of torch.compile replace a hooked step by its __wrapped__, which would take our wrapper off.
    reporting_step.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
    del reporting_step.__wrapped__
    reporting_step._perfscope = step  # type: ignore[attr-defined]
    owner.step = reporting_step


def reach_out_of_graphs(disable: Callable[[Any], Any]) -> None:
    """Let compiled steps report, too: by a function that torch.compile leaves alone, as ``disable`` makes it.

    A compiled optimizer step breaks its graph in any case, around its own ``no_grad``.
    """
    global _report_outside_the_graph  # noqa: PLW0603 - torch has one compiler

    def run(report: Report, optimizer: Any, result: Any) -> None:
        if getattr(_inside, "depth", 0) == 0:
            report(optimizer, result)

    _report_outside_the_graph = disable(run)


def compiling() -> bool:
    """Whether torch.compile traces this call: then the wrapper must not leave a mark in the graph."""
    ask = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", None)
    return ask is not None and bool(ask())
