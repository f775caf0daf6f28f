"""Remembers when each module's forward pass begins and ends, so that allocations inside can be named by module."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from perfscope.hooks.module_names import ModuleNames
from perfscope.wire.memory import BEGIN, END, STEP

if TYPE_CHECKING:
    from perfscope.hooks.module_names import Module
    from perfscope.hooks.profiler.module_ranges import HookHandle

#: A run of very many small modules is marked up to here only.
_MOST_MARKS = 2_000_000


class ModuleMarks:
    """Global forward hooks between ``start`` and ``stop``; each costs two calls and no synchronisation.

    Attributes:
        times_ns: The wall clock at each mark.
        signs: What each mark is: ``>``, ``<`` or ``|``.
        names: The module's path, or the number of the step, of each mark.
    """

    def __init__(self) -> None:
        self.times_ns: list[int] = []
        self.signs: list[str] = []
        self.names: list[str] = []
        self._handles: list[HookHandle] = []
        self._paths = ModuleNames()
        self._open: list[str] = []

    def start(self, step: int, *, with_modules: bool = True) -> None:
        """Begin to mark modules, at the begin of a training step."""
        if with_modules:
            modules = sys.modules["torch"].nn.modules.module
            self._handles = [
                modules.register_module_forward_pre_hook(self._on_forward),
                modules.register_module_forward_hook(self._on_forward_end, always_call=True),
            ]
        self.add_step(step)

    def stop(self) -> None:
        """Leave no hook behind."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._paths.clear()
        self._open.clear()

    def add_step(self, step: int) -> None:
        """A training step begins."""
        self._add(STEP, str(step))

    def _add(self, sign: str, name: str) -> None:
        if len(self.times_ns) < _MOST_MARKS:
            self.times_ns.append(time.time_ns())
            self.signs.append(sign)
            self.names.append(name)

    def _on_forward(self, module: Module, _inputs: object) -> None:
        if sys.modules["torch"].compiler.is_compiling():
            return
        path = self._paths.by_number.get(id(module)) or self._paths.add(module, self._open[-1] if self._open else None)
        self._open.append(path)
        self._add(BEGIN, path)

    def _on_forward_end(self, module: Module, _inputs: object, _output: object) -> None:
        path = self._paths.by_number.get(id(module))
        if path is not None and not sys.modules["torch"].compiler.is_compiling():
            if self._open:
                self._open.pop()
            self._add(END, path)
