"""The names of modules: paths in the module that was called around them.

The first module that is called is named by its class, and those inside it by their paths alone: ``blocks.0.mlp``.
Another first module may have a path of the same name, as the second network of a GAN or the next part of a pipeline.
All paths in it then begin with its name: ``Discriminator.blocks.0.mlp``, ``Net#2.blocks.0.mlp``. A module that belongs
to none of them, as one that a forward makes and throws away, is named below the module that calls it:
``blocks.0.mlp.Softmax``.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any


class ModuleNames:
    """The names of the modules that were called.

    Attributes:
        by_number: The names by ``id(module)``: a module itself may define equality or be unhashable. A module that is
            gone is taken out, because its number may become another's.
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
        inside = [(path, inner) for path, inner in root.named_modules() if id(inner) not in self.by_number]
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
