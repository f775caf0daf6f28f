"""Reports the outermost step of optimizers that are built from other optimizers.

ZeRO's, Megatron's and torchtitan's optimizers call the ``step`` of others, once or for each part of the weights. Only
the call that no other step encloses is reported.
"""

from __future__ import annotations

import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any

from perfscope.hooks.introspection import is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Report: TypeAlias = Callable[[Any, Any], None]


class _Thread(threading.local):
    """What a thread is doing.

    Attributes:
        depth: How many steps of optimizers it is inside of.
    """

    depth = 0


_thread = _Thread()
#: Calls a report from compiled code; empty until torch._dynamo is loaded, because nothing is compiled before that.
_exits_from_graphs: list[Callable[[Report, Any, Any], None]] = []


def wrap_outermost_step(owner: Any, report: Report, *, before: Callable[[], None] | None = None) -> None:
    """Call ``report(optimizer, result)`` after each outermost ``step`` of a class, and ``before()`` before it."""
    step = owner.step
    if getattr(step, "_perfscope", False):
        return

    @functools.wraps(step)
    def reporting_step(self: Any, *args: object, **kwargs: object) -> Any:
        if is_compiling():
            result = step(self, *args, **kwargs)
            for leave_graph in _exits_from_graphs:
                leave_graph(report, self, result)
            return result
        depth = _thread.depth
        if before is not None and depth == 0:
            before()
        _thread.depth = depth + 1
        try:
            result = step(self, *args, **kwargs)
        finally:
            _thread.depth = depth
        if depth == 0:
            report(self, result)
        return result

    # Versions of torch.compile replace a hooked step by its __wrapped__, which would take our wrapper off.
    reporting_step.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
    del reporting_step.__wrapped__
    reporting_step._perfscope = step  # type: ignore[attr-defined]
    owner.step = reporting_step


def report_compiled_steps(disable: Callable[[Any], Any]) -> None:
    """Let compiled steps report, too: by a function that torch.compile leaves alone, as ``disable`` makes it.

    A compiled optimizer step breaks its graph in any case, around its own ``no_grad``.
    """

    def report_outermost(report: Report, optimizer: Any, result: Any) -> None:
        if _thread.depth == 0:
            report(optimizer, result)

    _exits_from_graphs[:] = [disable(report_outermost)]
