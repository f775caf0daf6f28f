"""Hooks around Megatron's checkpoint saves: Megatron-LM's functions, and Megatron-core's asynchronous writer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perfscope.hooks.frameworks.torch_saves import report_results
from perfscope.hooks.frameworks.wrapping import argument, whole_number, wrap_saves
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.saves import SaveTimer


def patch_save_checkpoint(module: ModuleType, capture: Capture) -> None:
    """Time Megatron-LM's ``save_checkpoint``; the other modules of Megatron take it from this one by name."""
    original = module.save_checkpoint

    def save_checkpoint(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
        arguments = value_or_none(getattr(module, "get_args", lambda: None))
        is_asynchronous = bool(getattr(arguments, "async_save", None))
        path = getattr(arguments, "save", None)
        iteration = whole_number(argument(original, "iteration", args, kwargs))
        if path is not None and iteration is not None:
            path = os.path.join(path, f"iter_{iteration:07d}")
        with timer.saving("megatron", path, is_asynchronous=is_asynchronous):
            if getattr(arguments, "ckpt_format", None) == "torch":
                timer.on_write(0)  # with torch.save alone, and some ranks write nothing
            yield

    wrap_saves(module, capture, {"save_checkpoint": save_checkpoint})


def patch_queue(module: ModuleType, capture: Capture) -> None:
    """Learn when Megatron-LM's asynchronous saves are complete on disk, which it checks itself once a step."""

    def finalize(timer: SaveTimer, *_args: object, **_kwargs: object) -> RunningHook:
        return timer.waiting_for("megatron", lambda: bool(module.is_empty_async_queue()))

    wrap_saves(module, capture, {"maybe_finalize_async_save": finalize})


def patch_writer(module: ModuleType, capture: Capture) -> None:
    """Learn the files that this rank writes with Megatron-core's own writer, which writes in other processes."""

    def retrieve_write_results(timer: SaveTimer, writer: object) -> RunningHook:
        results = yield
        report_results(timer, writer, results)

    wrap_saves(module.FileSystemWriterAsync, capture, {"retrieve_write_results": retrieve_write_results})


PATCHES: Patches = {
    "megatron.core.dist_checkpointing.strategies.filesystem_async": {
        "counting bytes of Megatron's saves": patch_writer
    },
    "megatron.training.async_utils": {"timing Megatron's asynchronous saves": patch_queue},
    "megatron.training.checkpointing": {"timing Megatron's checkpoint saves": patch_save_checkpoint},
}
