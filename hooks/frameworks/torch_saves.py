"""Hooks around torch.save and torch.distributed.checkpoint."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import argument, wrap_saves
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.saves import SaveTimer


def patch_torch_save(module: ModuleType, capture: Capture) -> None:
    """Time ``torch.save`` into files."""
    original = module.save

    def save(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
        target = argument(original, "f", args, kwargs)
        if isinstance(target, (io.BytesIO, io.StringIO)):
            return
        start = value_or_none(lambda: _position(target))
        with timer.saving("torch.save", value_or_none(lambda: _path(target))):
            yield
            timer.on_write(value_or_none(lambda: _written_bytes(target, start)))

    wrap_saves(module, capture, {"save": save})


def _path(target: Any) -> str | None:
    """The path of what ``torch.save`` writes to; None for a file object without one."""
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    name = getattr(target, "name", None) or getattr(target, "path", None)
    return name if isinstance(name, str) else None


def _position(target: Any) -> int | None:
    """Where in a file object the next byte goes; 0 for a path; None for an object without a position."""
    if isinstance(target, (str, os.PathLike)):
        return 0
    position = target.tell()
    return position if isinstance(position, int) else None


def _written_bytes(target: Any, start: int | None) -> int | None:
    """How many bytes were written since the position ``start``; None where it is unknown."""
    if isinstance(target, (str, os.PathLike)):
        return os.path.getsize(target) if os.path.isfile(target) else None
    end = _position(target)
    return None if start is None or end is None or end < start else end - start


def patch_distributed_checkpoint(module: ModuleType, capture: Capture) -> None:
    """Time ``torch.distributed.checkpoint.save`` and ``async_save``, to the end of what goes on beside training."""

    def save(timer: SaveTimer, *_args: object, **kwargs: object) -> RunningHook:
        with timer.saving("dcp", _checkpoint_path(kwargs)):
            yield

    def async_save(timer: SaveTimer, *_args: object, **kwargs: object) -> RunningHook:
        with timer.saving("dcp", _checkpoint_path(kwargs), is_asynchronous=True) as timed_save:
            result = yield
        upload: Any = getattr(result, "upload_completion", result)
        if timed_save is not None and hasattr(upload, "add_done_callback"):
            upload.add_done_callback(lambda future: timer.on_drained(timed_save, failed=_has_failed(future)))

    wrap_saves(module, capture, {"save": save, "async_save": async_save})


def _checkpoint_path(kwargs: dict[str, object]) -> object:
    writer: Any = kwargs.get("storage_writer")
    return kwargs.get("checkpoint_id") or value_or_none(lambda: writer.path)


def _has_failed(future: Any) -> bool:
    return value_or_none(future.exception) is not None or bool(value_or_none(future.cancelled))


def patch_storage_writer(module: ModuleType, capture: Capture) -> None:
    """Learn the bytes that this rank writes with torch.distributed.checkpoint's own writer."""

    def write_data(timer: SaveTimer, *_args: object, **_kwargs: object) -> RunningHook:
        size_bytes = None
        save = timer.on_writer_begin()
        try:
            future = yield
            size_bytes = value_or_none(lambda: size_of_results(future.value()) if future.done() else None)
        finally:
            timer.on_writer_end(save, size_bytes)

    writer_class = getattr(module, "_FileSystemWriter", None) or module.FileSystemWriter
    wrap_saves(writer_class, capture, {"write_data": write_data})


def size_of_results(results: Any) -> int | None:
    """The bytes of a list of torch's WriteResult; None where one of them does not state them."""
    sizes = [getattr(result, "size_in_bytes", None) for result in results] if isinstance(results, list) else [None]
    return None if None in sizes else sum(int(size) for size in sizes if size is not None)


PATCHES: Patches = {
    "torch.distributed.checkpoint.filesystem": {"counting bytes of torch.distributed.checkpoint": patch_storage_writer},
    "torch.distributed.checkpoint.state_dict_saver": {
        "timing saves of torch.distributed.checkpoint": patch_distributed_checkpoint
    },
    "torch.serialization": {"timing torch.save": patch_torch_save},
}
