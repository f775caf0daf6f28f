"""Hooks around the saves of Hugging Face's Accelerate, which writes with safetensors and ``torch.save`` inside them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import wrap_saves
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.saves import SaveTimer


def patch_accelerator(module: ModuleType, capture: Capture) -> None:
    """Time ``Accelerator.save_state`` and ``save_model``, which every rank calls."""

    def save(timer: SaveTimer, accelerator: Any, folder: object) -> RunningHook:
        writes = value_or_none(lambda: bool(accelerator.is_main_process))
        with timer.saving("accelerate", folder, text_folder=folder if writes else None):
            timer.on_write(0)  # all that it writes is reported: some ranks write nothing
            yield

    def save_state(timer: SaveTimer, accelerator: Any, *args: object, **kwargs: object) -> RunningHook:
        folder = kwargs.get("output_dir", args[0] if args else None)
        return save(timer, accelerator, value_or_none(lambda: _own_folder(accelerator)) or folder)

    def save_model(timer: SaveTimer, accelerator: Any, *args: object, **kwargs: object) -> RunningHook:
        return save(timer, accelerator, kwargs.get("save_directory", args[1] if len(args) > 1 else None))

    wrap_saves(module.Accelerator, capture, {"save_state": save_state, "save_model": save_model})


def _own_folder(accelerator: Any) -> str | None:
    """The folder that Accelerate names itself, where it is configured to."""
    if not accelerator.project_configuration.automatic_checkpoint_naming:
        return None
    return os.path.join(accelerator.project_dir, "checkpoints", f"checkpoint_{accelerator.save_iteration}")


PATCHES: Patches = {"accelerate.accelerator": {"timing saves of Accelerate": patch_accelerator}}
