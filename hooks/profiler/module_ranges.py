"""Marks every forward of a module with its name while a window is open: ``nn.Module: transformer.h.0.mlp``.

torch.profiler's own ``with_modules`` knows TorchScript modules only, and names eager ones by class and number.
"""

from __future__ import annotations

from typing import Any


class ModuleRanges:
    """Global forward hooks that exist only between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._names: dict[int, str] = {}
        self._open: list[tuple[int, Any]] = []

    def start(self) -> None:
        """Begin to mark modules."""
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Leave no hook and no open range behind."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)
        self._names.clear()

    def _enter(self, module: Any, _inputs: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        if id(module) not in self._names:
            self._learn_names(module)
        span = torch.autograd.profiler.record_function(f"nn.Module: {self._names[id(module)]}")
        span.__enter__()
        self._open.append((id(module), span))

    def _leave(self, module: Any, _inputs: Any, _output: Any) -> None:
        """Close the module's range, and those inside it that an exception left open."""
        if not any(identity == id(module) for identity, _ in self._open):
            return
        while self._open:
            identity, span = self._open.pop()
            span.__exit__(None, None, None)
            if identity == id(module):
                return

    def _learn_names(self, root: Any) -> None:
        """Name everything below a module that is called from outside every module known so far."""
        for path, inner in root.named_modules():
            self._names.setdefault(id(inner), path or type(root).__name__)
