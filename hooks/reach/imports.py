"""Calls back after a module was imported, whoever imports it.

The finder is first on ``sys.meta_path``. It answers for the watched names only, and asks the other finders for them.
The callback runs right after the module's own code, before the importer binds any name from it. This file is also
loaded by itself at interpreter start, so it imports nothing but sys.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class PostImportFinder:
    """A meta-path finder that calls ``callback(name, module)`` after a watched module was executed."""

    def __init__(self, watched: "Container[str]", callback: "Callable[[str, ModuleType], None]") -> None:
        self.watched = watched
        self.callback = callback

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """Find a watched module with the other finders and arrange the call."""
        if name not in self.watched:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _CallingLoader(spec.loader, name, self.callback)  # type: ignore[assignment]
                return spec
        return None


class _CallingLoader:
    """Stands in for a module's loader until the module is executed, and is gone afterwards."""

    def __init__(self, loader: "Any", name: str, callback: "Callable[[str, ModuleType], None]") -> None:
        self._loader = loader
        self._name = name
        self._callback = callback

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: "ModuleType") -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._callback(self._name, module)

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)
