"""Puts a range around every forward of a module while a window is open: ``nn.Module: transformer.h.0.mlp``.

torch.profiler's own ``with_modules`` supports TorchScript modules only, and names eager ones by class and number. The
call of a module is wrapped while a window is open: torch's hooks for all modules do not see modules that
``Module.compile`` compiled.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from perfscope.hooks.guard import value_or_none
from perfscope.hooks.introspection import TRACERS
from perfscope.hooks.module_names import ModuleNames

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PREFIX = "nn.Module: "


class ModuleRanges:
    """A wrapper around ``nn.Module.__call__`` that exists only between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._names = ModuleNames(_PREFIX)
        self._original: Callable[..., object] | None = None
        self._wrapper: Callable[..., object] | None = None

    def start(self) -> None:
        """Begin to mark the calls of modules that begin while a profiler records."""
        module_type = sys.modules["torch"].nn.Module
        self._original = module_type.__call__
        self._wrapper = module_type.__call__ = self._wrap(module_type.__call__)

    def stop(self) -> None:
        """Take the wrapper away; where another one was put around it, it does nothing any more."""
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            module_type = sys.modules["torch"].nn.Module
            if module_type.__call__ is wrapper:
                module_type.__call__ = self._original
        self._original = None
        self._names.clear()

    def _wrap(self, call: Callable[..., object]) -> Callable[..., object]:
        torch = sys.modules["torch"]
        ranges, names, is_compiling = self, self._names.by_number, torch.compiler.is_dynamo_compiling
        is_recording, record_function = torch.autograd._profiler_enabled, torch.autograd.profiler.record_function

        # torch's recorder of stacks takes what is named ``self`` in the call of a module for that module.
        def call_in_range(self: object, *inputs: object, **options: object) -> object:
            # In this order, so that a graph does not depend on the window.
            if is_compiling() or ranges._wrapper is None or not is_recording() or TRACERS.are_active():
                return call(self, *inputs, **options)
            with record_function(names.get(id(self)) or ranges._add_names(self, sys._getframe().f_back)):
                return call(self, *inputs, **options)

        return call_in_range

    def _add_names(self, root: object, caller: FrameType | None) -> str:
        """Name a module that is not inside a named one, and every module inside it."""
        return value_or_none(lambda: self._names.add(root, self._find_around(caller))) or _PREFIX + type(root).__name__

    def _find_around(self, frame: FrameType | None) -> str | None:
        """The name of the module in whose marked call a frame is."""
        code = getattr(self._wrapper, "__code__", None)
        while frame is not None:
            if frame.f_code is code:
                return self._names.by_number.get(id(frame.f_locals["self"]))
            frame = frame.f_back
        return None
