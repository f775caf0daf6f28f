"""Hooks around torch.save and torch.distributed.checkpoint."""

from __future__ import annotations

import functools
import io
import os
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import argument, wrap_saves
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.saves import SaveTimer, TimedSave


def patch_torch_save(module: ModuleType, capture: Capture) -> None:
    """Time ``torch.save`` into files."""
    original = module.save

    def save(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
        target = argument(original, "f", args, kwargs)
        if isinstance(target, (io.BytesIO, io.StringIO)):
            return
        path = value_or_none(lambda: _path(target))
        start = value_or_none(lambda: _position(target))
        with timer.saving("torch.save", path):
            yield
            if path is not None and isinstance(target, (str, os.PathLike)):
                timer.on_file(path)
                return
            end = value_or_none(lambda: _position(target))
            size = None if start is None or end is None or end < start else end - start
            if path is None or start != 0 or size is None:
                timer.on_write(size)
            else:
                timer.on_file(path, size)

    wrap_saves(module, capture, {"save": save})


def _path(target: Any) -> str | None:
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    name = getattr(target, "name", None) or getattr(target, "path", None)
    return name if isinstance(name, str) else None


def _position(target: Any) -> int | None:
    position = target.tell()
    return position if isinstance(position, int) else None


def patch_distributed_checkpoint(module: ModuleType, capture: Capture) -> None:
    """Time ``torch.distributed.checkpoint.save`` and ``async_save``, to the end of what goes on beside training."""

    def save(timer: SaveTimer, *_args: object, **kwargs: object) -> RunningHook:
        with timer.saving("dcp", _checkpoint_path(kwargs)):
            yield

    def async_save(timer: SaveTimer, *_args: object, **kwargs: object) -> RunningHook:
        with timer.saving("dcp", _checkpoint_path(kwargs), is_asynchronous=True) as timed_save:
            result = yield
        if timed_save is None:
            return
        upload, staging = getattr(result, "upload_completion", result), getattr(result, "staging_completion", None)
        for future in (upload, staging):
            if future is not None:
                value_or_none(functools.partial(_time_waits, future, capture, timed_save))
        if upload is not None and hasattr(upload, "add_done_callback"):
            upload.add_done_callback(lambda future: timer.on_drained(timed_save, failed=_has_failed(future)))

    wrap_saves(module, capture, {"save": save, "async_save": async_save})


def _time_waits(future: Any, capture: Capture, save: TimedSave) -> None:
    def result(timer: SaveTimer, *_args: object, **_kwargs: object) -> RunningHook:
        return timer.waiting_on(save)

    wrap_saves(future, capture, {"result": result})


def _checkpoint_path(kwargs: dict[str, object]) -> object:
    writer: Any = kwargs.get("storage_writer")
    return kwargs.get("checkpoint_id") or value_or_none(lambda: writer.path)


def _has_failed(future: Any) -> bool:
    return value_or_none(future.exception) is not None or bool(value_or_none(future.cancelled))


def patch_storage_writer(module: ModuleType, capture: Capture) -> None:
    """Learn the files that this rank writes with torch.distributed.checkpoint's own writer."""

    def write_data(timer: SaveTimer, writer: Any, *_args: object, **_kwargs: object) -> RunningHook:
        results = None
        save = timer.on_writer_begin()
        try:
            future = yield
            results = value_or_none(lambda: future.value() if future.done() else None)
        finally:
            timer.on_writer_end(save)
            if save is not None:
                report_results(timer, writer, results)

    def finish(timer: SaveTimer, writer: Any, *_args: object, **_kwargs: object) -> RunningHook:
        yield
        path = value_or_none(lambda: os.path.join(writer.path, ".metadata"))
        if path is not None and os.path.isfile(path):
            timer.on_file(path)

    writer_class = getattr(module, "_FileSystemWriter", None) or module.FileSystemWriter
    wrap_saves(writer_class, capture, {"write_data": write_data, "finish": finish})


def report_results(timer: SaveTimer, writer: Any, results: Any) -> None:
    """Report the files of a list of torch's WriteResult, which may lack names or sizes."""
    if not isinstance(results, list):
        timer.on_write(None)
        return
    timer.on_write(0)
    sizes: dict[str, int] = {}
    for result in results:
        size = getattr(result, "size_in_bytes", None)
        name = value_or_none(functools.partial(_result_path, writer, result))
        if name is None or size is None:
            timer.on_write(size)
        else:
            sizes[name] = sizes.get(name, 0) + int(size)
    for name, size in sizes.items():
        timer.on_file(name, value_or_none(functools.partial(os.path.getsize, name)) or size)


def _result_path(writer: Any, result: Any) -> str:
    return str(os.path.join(writer.path, result.storage_data.relative_path))


PATCHES: Patches = {
    "torch.distributed.checkpoint.filesystem": {"counting bytes of torch.distributed.checkpoint": patch_storage_writer},
    "torch.distributed.checkpoint.state_dict_saver": {
        "timing saves of torch.distributed.checkpoint": patch_distributed_checkpoint
    },
    "torch.serialization": {"timing torch.save": patch_torch_save},
}
