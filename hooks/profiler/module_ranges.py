"""Marks every forward of a module with its name while a window is open: ``nn.Module: transformer.h.0.mlp``.

torch.profiler's own ``with_modules`` supports TorchScript modules only, and names eager ones by class and number. The
call of a module is wrapped while a window is open: torch's hooks for all modules take four times as long, and do not
see modules that ``Module.compile`` compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Protocol

_PREFIX = "nn.Module: "


class HookHandle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None:
        """Take the hook away."""


class Module(Protocol):
    """The part of ``torch.nn.Module`` that is used here."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Every module below it, itself included, with its path."""


class ModuleRanges:
    """A wrapper around ``nn.Module.__call__`` that exists only between ``start`` and ``stop``."""

    def __init__(self) -> None:
        #: By ``id(module)``: a module itself may define equality or be unhashable.
        self._names: dict[int, str] = {}
        self._original: Callable[..., object] | None = None
        self._wrapper: Callable[..., object] | None = None
        self._is_open = False

    def start(self) -> None:
        """Begin to mark modules."""
        module_type = sys.modules["torch"].nn.Module
        self._original = module_type.__call__
        self._wrapper = self._wrap(module_type.__call__)
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
        ranges, names, is_compiling = self, self._names, sys.modules["torch"].compiler.is_compiling

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

    def _add_names(self, root: Module) -> str:
        """Name a module that is not inside a named one, and every module inside it."""
        for path, inner in root.named_modules():
            self._names.setdefault(id(inner), _PREFIX + (path or type(root).__name__))
        return self._names.setdefault(id(root), _PREFIX + type(root).__name__)


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
