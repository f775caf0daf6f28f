"""Marks every forward of a module with its name while a window is open: ``nn.Module: transformer.h.0.mlp``.

torch.profiler's own ``with_modules`` supports TorchScript modules only, and names eager ones by class and number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol


class HookHandle(Protocol):
    """What torch returns for a registered hook."""

    def remove(self) -> None:
        """Take the hook away."""


class Module(Protocol):
    """The part of ``torch.nn.Module`` that is used here."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Every module below it, itself included, with its path."""


class ModuleRanges:
    """Global forward hooks that exist only between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._handles: list[HookHandle] = []
        #: By ``id(module)``: a module itself may define equality or be unhashable.
        self._names: dict[int, str] = {}
        self._open_ranges: list[tuple[int, AbstractContextManager[object]]] = []

    def start(self) -> None:
        """Begin to mark modules."""
        modules = sys.modules["torch"].nn.modules.module
        self._handles = [
            modules.register_module_forward_pre_hook(self._on_forward),
            modules.register_module_forward_hook(self._on_forward_end, always_call=True),
        ]

    def stop(self) -> None:
        """Leave no hook and no open range behind."""
        self._remove_hooks()
        while self._open_ranges:
            self._open_ranges.pop()[1].__exit__(None, None, None)
        self._names.clear()

    def forget(self) -> None:
        """Mark nothing more in a forked child; the open ranges are its parent's."""
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _on_forward(self, module: Module, _inputs: object) -> None:
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling():
            return
        if id(module) not in self._names:
            self._add_names(module)
        span = torch.autograd.profiler.record_function(f"nn.Module: {self._names[id(module)]}")
        span.__enter__()
        self._open_ranges.append((id(module), span))

    def _on_forward_end(self, module: Module, _inputs: object, _output: object) -> None:
        """Close the module's range, and the ranges inside it that an exception left open."""
        if not any(module_id == id(module) for module_id, _ in self._open_ranges):
            return
        while self._open_ranges:
            module_id, span = self._open_ranges.pop()
            span.__exit__(None, None, None)
            if module_id == id(module):
                return

    def _add_names(self, root: Module) -> None:
        """Name a module that is not inside a named one, and every module inside it."""
        for path, inner in root.named_modules():
            self._names.setdefault(id(inner), path or type(root).__name__)
