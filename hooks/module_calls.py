"""Does something around every call of a module, with its name: the path in the module that was called around it.

The call of modules is wrapped between a start and a stop only. torch's hooks for all modules do not see modules that
``Module.compile`` compiled, and have compiled models compiled again.

The first module that is called is named by its class, and those inside it by their paths alone: ``blocks.0.mlp``.
Another first module may have a path of the same name, as the second network of a GAN or the next part of a pipeline.
All paths in it then begin with its name: ``Discriminator.blocks.0.mlp``, ``Net#2.blocks.0.mlp``. A module that belongs
to none of them, as one that a forward makes and throws away, is named below the module that calls it:
``blocks.0.mlp.Softmax``.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.guard import value_or_none
from perfscope.hooks.introspection import TRACERS, named_modules

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import FrameType


class ModuleNames:
    """The names of the modules that were called, by ``id(module)``: a module may define equality or be unhashable.

    A module that is gone is taken out, because its number may become another's.
    """

    def __init__(self, prefix: str = "") -> None:
        self.by_number: dict[int, str] = {}
        self._prefix = prefix
        self._living: dict[int, weakref.ref[object]] = {}
        self._taken: Counter[str] = Counter()

    def clear(self) -> None:
        """Forget all."""
        self._living.clear()
        self.by_number.clear()
        self._taken.clear()

    def add(self, root: Any, around: str | None) -> str:
        """Name a module without a name, and every module inside it; the name of the module in whose call it is."""
        kind = type(root).__name__
        inside = [(path, inner) for path, inner in named_modules(root) if id(inner) not in self.by_number]
        if around:
            own, before = f"{around}.{kind}", f"{around}.{kind}."
        elif hasattr(root, "_is_replica"):  # DataParallel's replicas are one module
            own, before = self._prefix + kind, self._prefix
        else:
            own, number = self._prefix + kind, 1
            while self._taken[own]:
                number += 1
                own = f"{self._prefix}{kind}#{number}"
            collides = number > 1 or any(path and self._taken[self._prefix + path] for path, _ in inside)
            before = f"{own}." if collides else self._prefix
        for path, inner in inside:
            self._remember(inner, before + path if path else own)
        return self.by_number.get(id(root), own)

    def _remember(self, module: object, name: str) -> None:
        number, names, living, taken = id(module), self.by_number, self._living, self._taken

        def forget(gone: weakref.ref[object]) -> None:
            if living.get(number) is gone:
                del living[number], names[number]
                taken[name] -= 1

        names[number] = name
        taken[name] += 1
        living[number] = weakref.ref(module, forget)


class ModuleCalls:
    """A wrapper around ``nn.Module.__call__`` that exists only between ``start`` and ``stop``."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._names = ModuleNames(prefix)
        self._original: Callable[..., object] | None = None
        self._wrapper: Callable[..., object] | None = None

    def start(
        self, around: Callable[[str], AbstractContextManager[object]], is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Run calls of modules inside of what ``around`` makes of their names, where that is wanted."""
        module_type = sys.modules["torch"].nn.Module
        self._original = module_type.__call__
        self._wrapper = module_type.__call__ = self._wrap(module_type.__call__, around, is_wanted)

    def stop(self) -> None:
        """Take the wrapper away; where another one was put around it, it does nothing any more."""
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            module_type = sys.modules["torch"].nn.Module
            if module_type.__call__ is wrapper:
                module_type.__call__ = self._original
        self._original = None
        self._names.clear()

    def _wrap(
        self,
        call: Callable[..., object],
        around: Callable[[str], AbstractContextManager[object]],
        is_wanted: Callable[[], bool],
    ) -> Callable[..., object]:
        calls, names = self, self._names.by_number
        is_compiling = sys.modules["torch"].compiler.is_dynamo_compiling

        # torch's recorder of stacks takes what is named ``self`` in the call of a module for that module.
        def call_in_range(self: object, *inputs: object, **options: object) -> object:
            # In this order, so that a graph does not depend on the window. A wrapper that another one kept from being
            # taken away is not the one of the next start.
            if is_compiling() or calls._wrapper is not call_in_range or not is_wanted() or TRACERS.are_active():
                return call(self, *inputs, **options)
            with around(names.get(id(self)) or calls._add_names(self, sys._getframe().f_back)):
                return call(self, *inputs, **options)

        return call_in_range

    def _add_names(self, root: object, caller: FrameType | None) -> str:
        name = value_or_none(lambda: self._names.add(root, self._find_around(caller)))
        return name or self._prefix + type(root).__name__

    def _find_around(self, frame: FrameType | None) -> str | None:
        code = getattr(self._wrapper, "__code__", None)
        while frame is not None:
            if frame.f_code is code:
                return self._names.by_number.get(id(frame.f_locals["self"]))
            frame = frame.f_back
        return None
