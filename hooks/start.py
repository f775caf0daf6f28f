"""Patches modules as they are imported, and builds this process's capture when training first calls a hook.

A launcher or a data-loader worker imports torch too and never trains: until then nothing but this file and the hooks
of the imported frameworks is loaded.
"""

from __future__ import annotations

import os
import weakref
from importlib import import_module

from perfscope.hooks.guard import call_safely
from perfscope.hooks.messages import write_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.config import Config
    from perfscope.hooks.timers.saves import SaveTimer


class LateCapture:
    """Stands for the capture in the hooks; the first use builds it from the files of ``perfscope profile``."""

    def __init__(self) -> None:
        self._capture: Capture | None = None
        self._methods: dict[str, Any] = {}
        self.boot_dir = ""
        self._has_failed = False
        self._built: list[weakref.ref[object]] = []

    @property
    def capture(self) -> Capture | None:
        """The capture; None before training began."""
        return self._capture

    @capture.setter
    def capture(self, capture: Capture | None) -> None:
        """Set the capture, and find its methods here from now on: to look them up takes as long as a hook."""
        for name in self._methods:
            del self.__dict__[name]
        self._capture = capture
        names = [] if capture is None else [name for name in dir(type(capture)) if not name.startswith("_")]
        self._methods = {name: method for name in names if callable(method := getattr(capture, name, None))}
        self.__dict__.update(self._methods)

    def begin(self, config: Config | None = None) -> Capture:
        """Make this process's capture, unless there is one; what ``perfscope profile`` wrote says what to record."""
        if self.capture is None:
            from perfscope.hooks.capture import Capture  # not at the top: only a process that trains may pay for it
            from perfscope.hooks.config import read_config

            self.capture = Capture(config or read_config(self.boot_dir))
            built, self._built = self._built, []
            for read in built:
                if (optimizer := read()) is not None:
                    self.capture.on_optimizer_built(optimizer)
        return self.capture

    @property
    def save_timer(self) -> SaveTimer | None:
        """The timer of saves, once training has begun: looking for it must not begin the capture."""
        return None if self.capture is None else self.capture.save_timer

    def on_optimizer_built(self, optimizer: object) -> None:
        """An optimizer was built; a process that only builds one does not train yet."""
        if self.capture is not None:
            self.capture.on_optimizer_built(optimizer)
        elif not self._has_failed:
            self._built.append(weakref.ref(optimizer))

    def __getattr__(self, name: str) -> Any:
        if self.capture is None and not self._has_failed:
            _, error = call_safely(self.begin)
            if error is not None:
                self._has_failed = True
                write_message(f"nothing is captured in process {os.getpid()}: {error!r}")
        return _do_nothing if self.capture is None else getattr(self.capture, name)


PROCESS = LateCapture()


def _do_nothing(*_args: object, **_kwargs: object) -> None:
    return None


def patch(hooks_files: tuple[str, ...], name: str, module: ModuleType, boot_dir: str) -> None:
    """Patch one watched module that was just executed, below ``perfscope profile``."""
    PROCESS.boot_dir = boot_dir
    _, error = call_safely(lambda: patch_module(hooks_files, name, module, PROCESS))
    if error is not None:
        write_message(f"{name} is not hooked: {error!r}")


def patch_module(hooks_files: tuple[str, ...], name: str, module: ModuleType, capture: Any) -> None:
    """Apply files of hooks to one watched module; a function that moved is reported and its feature left out."""
    for hooks_file in hooks_files:
        patches = import_module(f"perfscope.hooks.frameworks.{hooks_file}").PATCHES
        for feature, apply in patches[name].items():
            try:
                apply(module, capture)
            except AttributeError as error:
                write_message(f"{feature} is off: this version of {name} differs ({error})")
