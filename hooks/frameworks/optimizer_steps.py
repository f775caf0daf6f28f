"""Reports the outermost step of optimizers that are built from other optimizers.

ZeRO's, Megatron's and torchtitan's optimizers call the ``step`` of others, once or for each part of the weights. Only
the call that no other step encloses is reported.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from typing import TYPE_CHECKING, Any

from perfscope.hooks.introspection import COMPILER
from perfscope.hooks.timers.probes import PROBES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from perfscope.hooks.capture import Capture

    #: Called with an optimizer, what its step returned, and when, on the monotonic clock.
    Report: TypeAlias = Callable[[Any, Any, int], None]

_clock, _get_ident = time.monotonic_ns, threading.get_ident
#: The threads that are inside a step of an optimizer: a set is quicker than a variable of each thread.
_stepping: set[int] = set()
#: Calls a report from compiled code; empty until torch._dynamo is loaded, because nothing is compiled before that.
_exits_from_graphs: list[Callable[[Report, Any, Any], None]] = []


def wrap_outermost_step(
    owner: Any, capture: Capture, report: Report | None = None, *, before: Callable[[], None] | None = None
) -> None:
    """Report each outermost ``step`` of a class when it returned, and call ``before()`` before it.

    Without a ``report``, the capture's ``on_optimizer_step`` is called, which may be another one at each step.
    """
    step = owner.step
    if getattr(step, "_perfscope", False):
        return

    def report_compiled(optimizer: Any, result: Any, now_ns: int) -> None:
        (report or capture.on_optimizer_step)(optimizer, result, now_ns)

    @functools.wraps(step)
    def reporting_step(self: Any, *args: object, **kwargs: object) -> Any:
        if COMPILER.is_tracing():
            result = step(self, *args, **kwargs)
            for leave_graph in _exits_from_graphs:
                leave_graph(report_compiled, self, result)
            return result
        thread = _get_ident()
        if thread in _stepping:
            return step(self, *args, **kwargs)
        if before is not None:
            before()
        if PROBES.is_on:
            PROBES.on_update()
        _stepping.add(thread)
        try:
            result = step(self, *args, **kwargs)
        finally:
            _stepping.discard(thread)
        if PROBES.is_on:
            PROBES.on_update_end()
        (report or capture.on_optimizer_step)(self, result, _clock())
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
        if _get_ident() not in _stepping:
            report(optimizer, result, _clock())

    _exits_from_graphs[:] = [disable(report_outermost)]
