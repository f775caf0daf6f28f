"""Hooks around the saves and validations of Accelerate, Lightning, safetensors and transformers.

A save of a library is one record. The files that safetensors and ``torch.save`` write inside it are parts of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import argument, time_calls, wrap_saves
from perfscope.hooks.guard import value_or_none
from perfscope.wire import GENERATION, VALIDATION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook, SaveHook
    from perfscope.hooks.timers.saves import SaveTimer


def _time_folders(
    owner: Any, capture: Capture, source: str, writes: Callable[..., object], folders: Mapping[str, Callable[..., Any]]
) -> None:
    """Time functions whose arguments tell the folder that they save into, and whether this rank writes to it."""

    def hook(find_folder: Callable[..., Any]) -> SaveHook:
        def save(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
            folder = value_or_none(lambda: find_folder(*args, **kwargs))
            is_writer = value_or_none(lambda: bool(writes(*args, **kwargs)))
            with timer.saving(source, folder, text_folder=folder if is_writer else None):
                timer.on_write(0)  # all that it writes is reported: some ranks write nothing
                yield

        return save

    wrap_saves(owner, capture, {name: hook(find_folder) for name, find_folder in folders.items()})


def patch_accelerator(module: ModuleType, capture: Capture) -> None:
    """Time ``Accelerator.save_state`` and ``save_model``, which every rank calls."""

    def state_folder(accelerator: Any, output_dir: object = None, *_args: object, **_kwargs: object) -> object:
        if not accelerator.project_configuration.automatic_checkpoint_naming:
            return output_dir
        return os.path.join(accelerator.project_dir, "checkpoints", f"checkpoint_{accelerator.save_iteration}")

    def model_folder(*args: Any, save_directory: object = None, **_kwargs: object) -> object:
        return save_directory or args[2]

    folders = {"save_state": state_folder, "save_model": model_folder}
    _time_folders(
        module.Accelerator, capture, "accelerate", lambda self, *_args, **_kwargs: self.is_main_process, folders
    )


def patch_model(module: ModuleType, capture: Capture) -> None:
    """Time ``PreTrainedModel.save_pretrained``, which writes in the main process alone."""
    original = module.PreTrainedModel.save_pretrained

    def writes(*args: object, **kwargs: object) -> bool:
        return argument(original, "is_main_process", args, kwargs) is not False

    def find_folder(*args: object, **kwargs: object) -> object:
        return argument(original, "save_directory", args, kwargs)

    _time_folders(module.PreTrainedModel, capture, "transformers", writes, {"save_pretrained": find_folder})


def patch_transformers_trainer(module: ModuleType, capture: Capture) -> None:
    """Time the Trainer's checkpoints, on the ranks that wait for the main process, too, and its evaluations."""

    def checkpoint_folder(trainer: Any, *args: object, trial: object = None, **_kwargs: object) -> str:
        trial = args[1] if len(args) > 1 else trial
        return os.path.join(trainer._get_output_dir(trial=trial), f"checkpoint-{trainer.state.global_step}")

    def model_folder(trainer: Any, output_dir: object = None, *_args: object, **_kwargs: object) -> object:
        return output_dir or trainer.args.output_dir

    folders = {"_save_checkpoint": checkpoint_folder, "save_model": model_folder}
    _time_folders(
        module.Trainer, capture, "transformers", lambda self, *_args, **_kwargs: self.args.should_save, folders
    )
    names = [name for name in ("evaluate", "predict", "evaluation_loop") if hasattr(module.Trainer, name)]
    time_calls(module.Trainer, capture, VALIDATION, *names)  # a subclass may start the loop in a way of its own


def patch_generation(module: ModuleType, capture: Capture) -> None:
    """Time the text that a model of transformers generates."""
    time_calls(module.GenerationMixin, capture, GENERATION, "generate")


def patch_safetensors(module: ModuleType, capture: Capture) -> None:
    """Time ``save_file``, torch's ``save_model``, and the function that both call: a script may hold them by name."""

    def save(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
        path = kwargs.get("filename", args[1] if len(args) > 1 else None)
        with timer.saving("safetensors", path):
            yield
            if path is not None:
                timer.on_file(path)

    names = ["save_file", "serialize_file", *(["save_model"] if hasattr(module, "save_model") else [])]
    wrap_saves(module, capture, dict.fromkeys(names, save))


def patch_lightning_trainer(module: ModuleType, capture: Capture) -> None:
    """Time ``Trainer.save_checkpoint``, which every rank calls."""

    def save_checkpoint(timer: SaveTimer, trainer: Any, *args: object, **kwargs: object) -> RunningHook:
        path = kwargs.get("filepath", args[0] if args else None)
        is_asynchronous = value_or_none(lambda: _is_asynchronous(trainer.strategy.checkpoint_io)) or False
        writes = value_or_none(lambda: bool(trainer.is_global_zero))
        with timer.saving("lightning", path, is_asynchronous=is_asynchronous):
            if writes is False:
                timer.on_write(0)  # a strategy that writes on every rank reports what it writes
            yield
            if writes and not is_asynchronous and os.path.isfile(str(path)):
                timer.on_file(path)

    wrap_saves(module.Trainer, capture, {"save_checkpoint": save_checkpoint})


def _is_asynchronous(checkpoint_io: Any) -> bool:
    """Whether AsyncCheckpointIO writes, or one inside another plugin."""
    while checkpoint_io is not None:
        if any(ancestor.__name__ == "AsyncCheckpointIO" for ancestor in type(checkpoint_io).__mro__):
            return True
        checkpoint_io = getattr(checkpoint_io, "checkpoint_io", None)
    return False


def patch_checkpoint_io(module: ModuleType, capture: Capture) -> None:
    """Learn the file of each checkpoint, which is serialized in memory, and the end of asynchronous saves."""

    def save_checkpoint(timer: SaveTimer, _plugin: object, *args: object, **kwargs: object) -> RunningHook:
        path = kwargs.get("path", args[1] if len(args) > 1 else None)
        failed = True
        try:
            with timer.saving("lightning", path):
                yield
                timer.on_file(path)
            failed = False
        finally:
            timer.on_written_beside("lightning", path, failed=failed)

    wrap_saves(module.TorchCheckpointIO, capture, {"save_checkpoint": save_checkpoint})


def patch_evaluation_loop(module: ModuleType, capture: Capture) -> None:
    """Time Lightning's loop of validation and of tests."""
    time_calls(module._EvaluationLoop, capture, VALIDATION, "run")


PATCHES: Patches = {
    "accelerate.accelerator": {"timing saves of Accelerate": patch_accelerator},
    "safetensors.numpy": {"timing saves of safetensors": patch_safetensors},
    "safetensors.torch": {"timing saves of safetensors": patch_safetensors},
    "transformers.generation.utils": {"timing generation": patch_generation},
    "transformers.modeling_utils": {"timing saves of transformers' models": patch_model},
    "transformers.trainer": {"timing checkpoint saves of transformers' Trainer": patch_transformers_trainer},
} | {
    f"{package}.{module}": {f"timing Lightning's {module}": patch}
    for packages, module, patch in (
        (("lightning.fabric", "lightning_fabric"), "plugins.io.torch_io", patch_checkpoint_io),
        (("lightning.pytorch", "pytorch_lightning"), "loops.evaluation_loop", patch_evaluation_loop),
        (("lightning.pytorch", "pytorch_lightning"), "trainer.trainer", patch_lightning_trainer),
    )
    for package in packages
}
