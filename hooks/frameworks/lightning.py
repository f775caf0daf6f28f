"""Hooks around Lightning's checkpoints: the Trainer's, Fabric's, and what writes their files, maybe beside training."""

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

_SOURCE = "lightning"


def patch_trainer(module: ModuleType, capture: Capture) -> None:
    """Time ``Trainer.save_checkpoint``, which ModelCheckpoint calls, too, on every rank."""

    def save_checkpoint(timer: SaveTimer, trainer: Any, *args: object, **kwargs: object) -> RunningHook:
        path = kwargs.get("filepath", args[0] if args else None)
        is_asynchronous = value_or_none(lambda: _is_asynchronous(trainer.strategy.checkpoint_io)) or False
        writes = value_or_none(lambda: bool(trainer.is_global_zero))
        with timer.saving(_SOURCE, path, is_asynchronous=is_asynchronous):
            if writes is False:
                timer.on_write(0)  # a strategy that writes on every rank reports what it writes
            yield
            if writes and not is_asynchronous and os.path.isfile(str(path)):
                timer.on_file(path)

    wrap_saves(module.Trainer, capture, {"save_checkpoint": save_checkpoint})


def _is_asynchronous(checkpoint_io: Any) -> bool:
    """Whether files are written beside training: by AsyncCheckpointIO, or one inside another plugin."""
    while checkpoint_io is not None:
        if any(ancestor.__name__ == "AsyncCheckpointIO" for ancestor in type(checkpoint_io).__mro__):
            return True
        checkpoint_io = getattr(checkpoint_io, "checkpoint_io", None)
    return False


def patch_fabric(module: ModuleType, capture: Capture) -> None:
    """Time ``Fabric.save``, which every rank calls."""

    def save(timer: SaveTimer, fabric: Any, *args: object, **kwargs: object) -> RunningHook:
        with timer.saving(_SOURCE, kwargs.get("path", args[0] if args else None)):
            if value_or_none(lambda: bool(fabric.is_global_zero)) is False:
                timer.on_write(0)  # a strategy that writes on every rank reports what it writes
            yield

    wrap_saves(module.Fabric, capture, {"save": save})


def patch_checkpoint_io(module: ModuleType, capture: Capture) -> None:
    """Learn the file of each checkpoint, which is serialized in memory, and the end of asynchronous saves."""

    def save_checkpoint(timer: SaveTimer, _plugin: object, *args: object, **kwargs: object) -> RunningHook:
        path = kwargs.get("path", args[1] if len(args) > 1 else None)
        failed = True
        try:
            with timer.saving(_SOURCE, path):
                yield
                timer.on_file(path)
            failed = False
        finally:
            timer.on_written_beside(_SOURCE, path, failed=failed)

    wrap_saves(module.TorchCheckpointIO, capture, {"save_checkpoint": save_checkpoint})


PATCHES: Patches = {
    f"{package}.{module}": {feature: patch}
    for packages, module, feature, patch in (
        (("lightning.fabric", "lightning_fabric"), "fabric", "timing saves of Lightning's Fabric", patch_fabric),
        (
            ("lightning.fabric", "lightning_fabric"),
            "plugins.io.torch_io",
            "counting bytes of Lightning's saves",
            patch_checkpoint_io,
        ),
        (
            ("lightning.pytorch", "pytorch_lightning"),
            "trainer.trainer",
            "timing checkpoint saves of Lightning's Trainer",
            patch_trainer,
        ),
    )
    for package in packages
}
