"""Builds this process's capture and patches modules as they are imported."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from perfscope.hooks.capture import Capture
from perfscope.hooks.config import CONFIG_FILE, ENVIRONMENT_VARIABLE, Config

if TYPE_CHECKING:
    from types import ModuleType

_capture: Capture | None = None


def current() -> Capture | None:
    """This process's capture, where there is one."""
    return _capture


def begin(config: Config) -> Capture:
    """Make this process's capture."""
    global _capture  # noqa: PLW0603 - one process has one profiler, so it has one capture
    if _capture is None:
        _capture = Capture(config)
    return _capture


def patch(name: str, module: ModuleType, boot_dir: str) -> None:
    """Patch one watched module that was just executed, below ``perfscope profile``."""
    try:
        capture = _capture or begin(_read_config(boot_dir))
        patch_module(name, module, capture)
    except Exception as error:  # noqa: BLE001 - the hooks' outer edge: training goes on without us
        sys.stderr.write(f"perfscope: {name} is not hooked: {error!r}\n")


def patch_module(name: str, module: ModuleType, capture: Capture) -> None:
    """Put our wrappers around the functions of one watched module; a function that moved is noted and left alone."""
    for feature, apply in _patches(name):
        try:
            apply(module, capture)
        except AttributeError as error:
            capture.note(f"{feature} is off: this version of {name} has no {error}")


def _patches(name: str) -> list[tuple[str, Any]]:
    if name.startswith("deepspeed."):
        from perfscope.hooks import deepspeed_hooks

        return deepspeed_hooks.PATCHES.get(name, [])
    from perfscope.hooks import torch_hooks

    return torch_hooks.PATCHES.get(name, [])


def _read_config(boot_dir: str) -> Config:
    path = os.path.join(boot_dir, CONFIG_FILE)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return Config.from_json(file.read())
    return Config.from_environment(os.environ[ENVIRONMENT_VARIABLE])
