"""Hooks around the functions that write safetensors files, of torch and of numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.hooks.frameworks.wrapping import wrap_saves

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.saves import SaveTimer


def patch_save_functions(module: ModuleType, capture: Capture) -> None:
    """Time ``save_file``, torch's ``save_model``, and the function that both call: a script may hold them by name."""

    def save(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
        path = kwargs.get("filename", args[1] if len(args) > 1 else None)
        with timer.saving("safetensors", path):
            yield
            if path is not None:
                timer.on_file(path)

    names = ["save_file", "serialize_file", *(["save_model"] if hasattr(module, "save_model") else [])]
    wrap_saves(module, capture, dict.fromkeys(names, save))


PATCHES: Patches = {
    "safetensors.numpy": {"timing saves of safetensors": patch_save_functions},
    "safetensors.torch": {"timing saves of safetensors": patch_save_functions},
}
