"""Wrappers around what saves checkpoints: torch.save, torch.distributed.checkpoint, DeepSpeed and Megatron.

A process that only converts checkpoints is no training: without a capture, which training begins, nothing is timed.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from perfscope.hooks import start
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.timers.saves import SaveTimer


def _timer() -> SaveTimer | None:
    capture = start.current()
    return None if capture is None else capture.saves


def _timed(
    timer: SaveTimer, source: str, path: object, call: Callable[[], Any], *, is_asynchronous: bool = False
) -> tuple[Any, Any]:
    """Make a call as one save; what it returns, and the save, which is None where it is a part of another one."""
    save = timer.begins(source, path, is_asynchronous=is_asynchronous)
    try:
        result = call()
    except BaseException:
        timer.ends(save, failed=True)
        raise
    timer.ends(save)
    return result, save


def patch_torch_save(module: ModuleType, _capture: Capture) -> None:
    """Time ``torch.save`` into files."""
    original = module.save

    @functools.wraps(original)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        timer = value_or_none(_timer)
        if timer is None:
            return original(obj, f, *args, **kwargs)
        from perfscope.hooks.timers.saves import is_file, path_of, position_in, written_to

        if not value_or_none(lambda: is_file(f)):
            return original(obj, f, *args, **kwargs)
        began_at = value_or_none(lambda: position_in(f))

        def write() -> Any:
            result = original(obj, f, *args, **kwargs)
            timer.wrote(value_or_none(lambda: written_to(f, began_at)))
            return result

        return _timed(timer, "torch.save", value_or_none(lambda: path_of(f)), write)[0]

    module.save = save  # type: ignore[attr-defined]


def patch_distributed_checkpoint(module: ModuleType, _capture: Capture) -> None:
    """Time ``torch.distributed.checkpoint.save`` and ``async_save``, to the end of what goes on beside training."""
    save, async_save = module.save, module.async_save

    @functools.wraps(save)
    def timed_save(*args: Any, **kwargs: Any) -> Any:
        timer = value_or_none(_timer)
        if timer is None:
            return save(*args, **kwargs)
        return _timed(timer, "dcp", _dcp_path(kwargs), lambda: save(*args, **kwargs))[0]

    @functools.wraps(async_save)
    def timed_async_save(*args: Any, **kwargs: Any) -> Any:
        timer = value_or_none(_timer)
        if timer is None:
            return async_save(*args, **kwargs)
        result, saving = _timed(
            timer, "dcp", _dcp_path(kwargs), lambda: async_save(*args, **kwargs), is_asynchronous=True
        )
        written = getattr(result, "upload_completion", result)
        if saving is not None and hasattr(written, "add_done_callback"):
            written.add_done_callback(lambda future: timer.drained(saving, failed=_has_failed(future)))
        return result

    module.save = timed_save  # type: ignore[attr-defined]
    module.async_save = timed_async_save  # type: ignore[attr-defined]


def _dcp_path(kwargs: dict[str, Any]) -> object:
    return kwargs.get("checkpoint_id") or value_or_none(lambda: kwargs["storage_writer"].path)


def _has_failed(future: Any) -> bool:
    return value_or_none(future.exception) is not None or bool(value_or_none(future.cancelled))


def patch_storage_writer(module: ModuleType, _capture: Capture) -> None:
    """Learn the bytes that this rank writes with torch.distributed.checkpoint's own writer."""
    writer_class = getattr(module, "_FileSystemWriter", None) or module.FileSystemWriter
    original = writer_class.write_data

    @functools.wraps(original)
    def write_data(self: Any, *args: Any, **kwargs: Any) -> Any:
        timer = value_or_none(_timer)
        if timer is None:
            return original(self, *args, **kwargs)
        save = timer.writer_begins()
        size = None
        try:
            future = original(self, *args, **kwargs)
            size = value_or_none(lambda: _size_of_results(future.value()) if future.done() else None)
        finally:
            timer.writer_ends(save, size)
        return future

    writer_class.write_data = write_data


def _size_of_results(results: Any) -> int | None:
    """The bytes of a list of torch's WriteResult."""
    sizes = [getattr(result, "size_in_bytes", None) for result in results] if isinstance(results, list) else [None]
    return None if None in sizes else sum(int(size) for size in sizes if size is not None)


def patch_deepspeed(module: ModuleType, _capture: Capture) -> None:
    """Time ``DeepSpeedEngine.save_checkpoint``; its checkpoint engine may write beside training."""
    engine_class = module.DeepSpeedEngine
    original = engine_class.save_checkpoint

    @functools.wraps(original)
    def save_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        timer = value_or_none(_timer)
        if timer is None:
            return original(self, *args, **kwargs)
        path = kwargs.get("save_dir", args[0] if args else None)
        engine = getattr(self, "checkpoint_engine", None)

        def save() -> Any:
            if type(engine).__name__ == "TorchCheckpointEngine":
                timer.wrote(0)  # it writes with torch.save alone, and some ranks write nothing
            return original(self, *args, **kwargs)

        return _timed(timer, "deepspeed", path, save, is_asynchronous=_is_decoupled(engine))[0]

    engine_class.save_checkpoint = save_checkpoint
    if hasattr(engine_class, "_commit_decoupled_checkpoint"):
        _finish_after(engine_class, "_commit_decoupled_checkpoint", "deepspeed", lambda: True)


def _is_decoupled(engine: Any) -> bool:
    return value_or_none(lambda: bool(engine.is_decoupled())) or False


def patch_megatron(module: ModuleType, _capture: Capture) -> None:
    """Time Megatron-LM's ``save_checkpoint``; the other modules of Megatron take it from this one by name."""
    original = module.save_checkpoint

    @functools.wraps(original)
    def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
        timer = value_or_none(_timer)
        if timer is None:
            return original(*args, **kwargs)
        options = value_or_none(lambda: module.get_args())  # noqa: PLW0108 - it may be missing, which is answered too

        def save() -> Any:
            if getattr(options, "ckpt_format", None) == "torch":
                timer.wrote(0)  # with torch.save alone, and some ranks write nothing
            return original(*args, **kwargs)

        is_asynchronous = bool(getattr(options, "async_save", None))
        return _timed(timer, "megatron", getattr(options, "save", None), save, is_asynchronous=is_asynchronous)[0]

    module.save_checkpoint = save_checkpoint  # type: ignore[attr-defined]


def patch_megatron_queue(module: ModuleType, _capture: Capture) -> None:
    """Learn when Megatron-LM's asynchronous saves lie on disk: it asks for that itself, once a step."""

    def is_empty() -> bool:
        return bool(module.is_empty_async_queue())

    _finish_after(module, "maybe_finalize_async_save", "megatron", is_empty)


def patch_megatron_writer(module: ModuleType, _capture: Capture) -> None:
    """Learn the bytes that this rank writes with Megatron-core's own writer, which writes in other processes."""
    writer_class = module.FileSystemWriterAsync
    original = writer_class.retrieve_write_results

    @functools.wraps(original)
    def retrieve_write_results(self: Any) -> Any:
        results = original(self)
        timer = value_or_none(_timer)
        if timer is not None:
            timer.wrote(value_or_none(lambda: _size_of_results(results)))
        return results

    writer_class.retrieve_write_results = retrieve_write_results


def _finish_after(owner: Any, name: str, source: str, is_done: Callable[[], bool]) -> None:
    """Take every asynchronous save of a source as written once a function returned and nothing is left."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def finishing(*args: Any, **kwargs: Any) -> Any:
        began_ns = time.monotonic_ns()
        result = original(*args, **kwargs)
        timer = value_or_none(_timer)
        if timer is not None and timer.is_draining(source):
            timer.held(began_ns)
            if value_or_none(is_done):
                timer.drained_by(source)
        return result

    setattr(owner, name, finishing)


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "torch.serialization": [("timing torch.save", patch_torch_save)],
    "torch.distributed.checkpoint.state_dict_saver": [
        ("timing saves of torch.distributed.checkpoint", patch_distributed_checkpoint)
    ],
    "torch.distributed.checkpoint.filesystem": [
        ("counting bytes of torch.distributed.checkpoint", patch_storage_writer)
    ],
    "deepspeed.runtime.engine": [("timing DeepSpeed's checkpoint saves", patch_deepspeed)],
    "megatron.training.checkpointing": [("timing Megatron's checkpoint saves", patch_megatron)],
    "megatron.training.async_utils": [("timing Megatron's asynchronous saves", patch_megatron_queue)],
    "megatron.core.dist_checkpointing.strategies.filesystem_async": [
        ("counting bytes of Megatron's saves", patch_megatron_writer)
    ],
}
