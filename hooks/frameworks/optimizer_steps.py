"""Reports the outermost step of optimizers that are built from other optimizers.

ZeRO's, Megatron's and torchtitan's optimizers call the ``step`` of others, once or for each part of the weights. Only
the call that no other step encloses is reported.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from perfscope.hooks import introspection
from perfscope.hooks.timers import probes

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from perfscope.hooks.capture import Capture

    #: Called with an optimizer, what its step returned, and when, on the monotonic clock.
    Report: TypeAlias = Callable[[Any, Any, int], None]

    #: What a class reports to, and what is called before its steps.
    Watcher: TypeAlias = tuple[Report, Callable[[], None] | None]

#: The threads that are inside a step of an optimizer: a set is quicker than a variable of each thread.
stepping: set[int] = set()
#: Calls a report from compiled code; empty until torch._dynamo is loaded, because nothing is compiled before that.
exits_from_graphs: list[Callable[[int, Any, Any], None]] = []
#: By the numbers that wrappers have. Libraries pickle classes of a script by value, with all that a wrapper refers to:
#: it has its number, and reaches the rest by this module, which is pickled by its name.
watchers: dict[int, Watcher] = {}
here: Any = sys.modules[__name__]


def wrap_outermost_step(
    owner: Any, capture: Capture, report: Report | None = None, *, before: Callable[[], None] | None = None
) -> None:
    """Report each outermost ``step`` of a class when it returned, and call ``before()`` before it.

    Without a ``report``, the capture's ``on_optimizer_step`` is called, which may be another one at each step.
    """
    step = owner.step
    if getattr(step, "_perfscope", False):
        return
    number = len(watchers)

    def report_to_capture(optimizer: Any, result: Any, now_ns: int) -> None:
        capture.on_optimizer_step(optimizer, result, now_ns)  # to look it up any earlier would begin the capture

    watchers[number] = report or report_to_capture, before

    @functools.wraps(step)
    def reporting_step(self: Any, *args: object, **kwargs: object) -> Any:
        if introspection.COMPILER.is_tracing():
            result = step(self, *args, **kwargs)
            for leave_graph in here.exits_from_graphs:
                leave_graph(number, self, result)
            return result
        thread = threading.get_ident()
        if thread in here.stepping or number not in here.watchers:  # in another process nobody watches the class
            return step(self, *args, **kwargs)
        report, before = here.watchers[number]
        if before is not None:
            before()
        if probes.PROBES.is_on:
            probes.PROBES.on_update()
        here.stepping.add(thread)
        try:
            result = step(self, *args, **kwargs)
        finally:
            here.stepping.discard(thread)
        if probes.PROBES.is_on:
            probes.PROBES.on_update_end()
        report(self, result, time.monotonic_ns())
        return result

    # Versions of torch.compile replace a hooked step by its __wrapped__, which would take our wrapper off.
    reporting_step.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
    del reporting_step.__wrapped__
    reporting_step._perfscope = step  # type: ignore[attr-defined]
    owner.step = reporting_step


def report_compiled_steps(disable: Callable[[Any], Any]) -> None:
    """Let compiled steps report by a function that ``disable`` keeps torch.compile from.

    A compiled optimizer step breaks its graph in any case, around its own ``no_grad``.
    """

    def report_outermost(number: int, optimizer: Any, result: Any) -> None:
        if threading.get_ident() not in stepping and number in watchers:
            watchers[number][0](optimizer, result, time.monotonic_ns())

    exits_from_graphs[:] = [disable(report_outermost)]
