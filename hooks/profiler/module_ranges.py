"""Marks every forward of a module with its name while a window is open: ``nn.Module: transformer.h.0.mlp``.

torch.profiler's own ``with_modules`` supports TorchScript modules only, and names eager ones by class and number. The
call of a module is wrapped while a window is open: torch's hooks for all modules take four times as long, and do not
see modules that ``Module.compile`` compiled. Of torch's ways to open a range it takes the fastest that is written as an
annotation: an operator's range is faster still, but readers would take it for work.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Protocol

from perfscope.hooks.module_names import Module, ModuleNames

_PREFIX = "nn.Module: "
#: The first torch whose fast range can be an annotation. It reads this option only where inputs are recorded.
_FIRST_WITH_SCOPE = (2, 10)
_ANNOTATION = {"scope": "user_scope"}


class HookHandle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None:
        """Take the hook away."""


class Range(Protocol):
    """A range of torch's profiler."""

    def __enter__(self) -> object:
        """Open it."""

    def __exit__(self, *error: object) -> object:
        """Close it."""


class ModuleRanges:
    """A wrapper around ``nn.Module.__call__`` that exists only between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._names = ModuleNames(_PREFIX)
        self._original: Callable[..., object] | None = None
        self._wrapper: Callable[..., object] | None = None
        self._is_open = False

    def start(self, *, records_shapes: bool = False) -> None:
        """Begin to mark modules; ``records_shapes`` says whether the open profiler records the inputs of operators."""
        torch = sys.modules["torch"]
        module_type = torch.nn.Module
        self._original = module_type.__call__
        make_range = _find_fast_ranges(torch) if records_shapes else None
        self._wrapper = self._wrap(module_type.__call__) if make_range is None else self._wrap_fast(make_range)
        self._is_open = True
        module_type.__call__ = self._wrapper

    def stop(self) -> None:
        """Take the wrapper away; where another one was put around it, it does nothing any more."""
        self._is_open = False
        if self._wrapper is not None:
            module_type = sys.modules["torch"].nn.Module
            if module_type.__call__ is self._wrapper:
                module_type.__call__ = self._original
        self._wrapper = self._original = None
        self._names.clear()

    def forget(self) -> None:
        """Mark nothing more in a forked child."""
        self.stop()

    def _wrap(self, call: Callable[..., object]) -> Callable[..., object]:
        """The call of a module inside a range with its name."""
        begin, end = _range_functions()
        ranges, names, is_compiling = self, self._names.by_number, sys.modules["torch"].compiler.is_compiling

        # torch's recorder of stacks takes what is named ``self`` in the call of a module for that module.
        def call_marked(self: Module, *inputs: object, **options: object) -> object:
            if is_compiling() or not ranges._is_open:  # in this order, so that a graph does not depend on the window
                return call(self, *inputs, **options)
            span = begin(names.get(id(self)) or ranges._add_names(self))
            try:
                return call(self, *inputs, **options)
            finally:
                end(span)

        return call_marked

    def _wrap_fast(self, make_range: Callable[..., Range]) -> Callable[..., object]:
        """The same with a range that takes half the time; its code is inline, because each call would cost as much."""
        torch = sys.modules["torch"]
        call, no_inputs, annotation = torch.nn.Module.__call__, (), _ANNOTATION
        ranges, names, is_compiling = self, self._names.by_number, torch.compiler.is_compiling
        is_recording = torch.autograd._profiler_enabled  # such a range fails where recording began inside it

        def call_marked(self: Module, *inputs: object, **options: object) -> object:
            if is_compiling() or not ranges._is_open or not is_recording():
                return call(self, *inputs, **options)
            span = make_range(names.get(id(self)) or ranges._add_names(self), no_inputs, annotation)
            span.__enter__()
            try:
                return call(self, *inputs, **options)
            finally:
                span.__exit__(None, None, None)

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


def _find_fast_ranges(torch: ModuleType) -> Callable[..., Range] | None:
    """The type of a range that is made and closed in half the time; None where it cannot be an annotation."""
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < _FIRST_WITH_SCOPE:
        return None
    make_range: Callable[..., Range] | None = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    return make_range


def _range_functions() -> tuple[Callable[[str], object], Callable[[object], object]]:
    """What opens a range and closes it: the way that takes a third of the time, where this torch has it."""
    torch = sys.modules["torch"]
    functions = getattr(torch._C, "_autograd", None)
    begin = getattr(functions, "_record_function_with_args_enter", None)
    end = getattr(functions, "_record_function_with_args_exit", None)
    if begin is not None and end is not None:
        return begin, end

    def open_range(name: str) -> object:
        span = torch.autograd.profiler.record_function(name)
        span.__enter__()
        return span

    def close_range(span: object) -> object:
        return span.__exit__(None, None, None)  # type: ignore[attr-defined]

    return open_range, close_range
