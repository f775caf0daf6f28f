"""Notes when every forward of a module began and ended while a window is open, by name: ``transformer.h.0.mlp``.

torch.profiler's own ``with_modules`` supports TorchScript modules only, and names eager ones by class and number. The
call of a module is wrapped while a window is open: torch's hooks for all modules take four times as long, and do not
see modules that ``Module.compile`` compiled. The wrapper reads a clock before and behind the call. torch's ranges would
take several times as long, because CUPTI notes them, too; the trace gets its marks when it is written
(``trace_marks.py``).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from perfscope.constants import NS_PER_MS
from perfscope.hooks.messages import write_message
from perfscope.hooks.module_names import Module, ModuleNames

if TYPE_CHECKING:
    from perfscope.hooks.profiler.trace_marks import Mark

_PREFIX = "nn.Module: "
#: The wall clock and the monotonic one are slowed or hurried alike; by more than that they differ where one was set.
_MOST_OFFSET_NS = NS_PER_MS
_TRIES = 5


class HookHandle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None:
        """Take the hook away."""


class ModuleRanges:
    """A wrapper around ``nn.Module.__call__`` that exists only between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._names = ModuleNames(_PREFIX)
        self._marks: list[Mark] = []
        self._original: Callable[..., object] | None = None
        self._wrapper: Callable[..., object] | None = None
        self._is_open = False
        self._offset_ns = 0

    def start(self) -> None:
        """Begin to note the calls of modules that begin while a profiler records."""
        module_type = sys.modules["torch"].nn.Module
        self._original = module_type.__call__
        self._wrapper = self._wrap(module_type.__call__)
        self._is_open = True
        self._offset_ns = _read_offset_ns()
        module_type.__call__ = self._wrapper

    def stop(self) -> list[Mark]:
        """Take the wrapper away, and return the calls that have ended, the one that ended first first.

        Where another wrapper was put around it, it does nothing any more. Where the system's clock was set meanwhile,
        no call is returned: the profiler's times and these would no longer be of one clock.
        """
        self._is_open = False
        if self._wrapper is not None:
            module_type = sys.modules["torch"].nn.Module
            if module_type.__call__ is self._wrapper:
                module_type.__call__ = self._original
        self._wrapper = self._original = None
        self._names.clear()
        marks, self._marks = self._marks, []
        if marks and abs(_read_offset_ns() - self._offset_ns) > _MOST_OFFSET_NS:
            write_message("the modules of a window are lost: the system's clock was set in it")
            return []
        return marks

    def forget(self) -> None:
        """Note nothing more in a forked child."""
        self.stop()

    def _wrap(self, call: Callable[..., object]) -> Callable[..., object]:
        """The call of a module between two clocks; all is inline, because each call of Python would cost as much."""
        torch = sys.modules["torch"]
        ranges, names, is_compiling = self, self._names.by_number, torch.compiler.is_dynamo_compiling
        is_recording = torch.autograd._profiler_enabled
        add, now_ns, here = self._marks.append, time.time_ns, threading.local()

        def find_thread() -> int:
            number: int = threading.get_native_id()  # a call of the system, which is made once a thread
            here.thread = number
            return number

        # torch's recorder of stacks takes what is named ``self`` in the call of a module for that module.
        def call_marked(self: Module, *inputs: object, **options: object) -> object:
            # In this order, so that a graph does not depend on the window.
            if is_compiling() or not ranges._is_open or not is_recording():
                return call(self, *inputs, **options)
            name = names.get(id(self)) or ranges._add_names(self)
            began_ns = now_ns()
            try:
                return call(self, *inputs, **options)
            finally:
                add((name, began_ns, now_ns(), getattr(here, "thread", None) or find_thread()))

        return call_marked

    def _add_names(self, root: Module) -> str:
        """Name a module that is not inside a named one, and every module inside it."""
        return self._names.add(root, self._find_around(sys._getframe(1).f_back))

    def _find_around(self, frame: FrameType | None) -> str | None:
        """The name of the module in whose marked call a frame is."""
        code = getattr(self._wrapper, "__code__", None)
        while frame is not None:
            if frame.f_code is code:
                return self._names.by_number.get(id(frame.f_locals["self"]))
            frame = frame.f_back
        return None


def _read_offset_ns() -> int:
    """The wall clock less the monotonic one, from the quickest of a few looks at both."""
    looks = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_TRIES)]
    before_ns, wall_ns, _ = min(looks, key=lambda look: look[2] - look[0])
    return wall_ns - before_ns
