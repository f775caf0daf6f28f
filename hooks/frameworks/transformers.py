"""Hooks around the saves of Hugging Face's transformers: of models, of tokenizers, and the Trainer's checkpoints.

Weights are written by safetensors and ``torch.save``, inside these saves; configurations and tokenizers beside them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import argument, wrap_saves
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.saves import SaveTimer


def patch_model(module: ModuleType, capture: Capture) -> None:
    """Time ``PreTrainedModel.save_pretrained``, which writes in the main process alone."""
    original = module.PreTrainedModel.save_pretrained

    def save_pretrained(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
        folder = argument(original, "save_directory", args, kwargs)
        writes = argument(original, "is_main_process", args, kwargs) is not False
        with timer.saving("transformers", folder, text_folder=folder if writes else None):
            timer.on_write(0)  # all that it writes is reported: some ranks write nothing
            yield

    wrap_saves(module.PreTrainedModel, capture, {"save_pretrained": save_pretrained})


def patch_tokenizer(module: ModuleType, capture: Capture) -> None:
    """Time ``save_pretrained`` of tokenizers."""

    def save_pretrained(timer: SaveTimer, _tokenizer: object, *args: object, **kwargs: object) -> RunningHook:
        folder = kwargs.get("save_directory", args[0] if args else None)
        with timer.saving("transformers", folder, text_folder=folder):
            yield

    wrap_saves(module.PreTrainedTokenizerBase, capture, {"save_pretrained": save_pretrained})


def patch_trainer(module: ModuleType, capture: Capture) -> None:
    """Time the Trainer's checkpoints, on the ranks that wait for the main process, too."""

    def save(timer: SaveTimer, trainer: Any, folder: object) -> RunningHook:
        writes = value_or_none(lambda: bool(trainer.args.should_save))
        with timer.saving("transformers", folder, text_folder=folder if writes else None):
            timer.on_write(0)  # all that it writes is reported: some ranks write nothing
            yield

    def save_checkpoint(timer: SaveTimer, trainer: Any, *args: object, **kwargs: object) -> RunningHook:
        trial = kwargs.get("trial", args[1] if len(args) > 1 else None)
        return save(timer, trainer, value_or_none(lambda: _checkpoint_folder(trainer, trial)))

    def save_model(timer: SaveTimer, trainer: Any, *args: object, **kwargs: object) -> RunningHook:
        folder = kwargs.get("output_dir", args[0] if args else None)
        return save(timer, trainer, folder or value_or_none(lambda: trainer.args.output_dir))

    wrap_saves(module.Trainer, capture, {"_save_checkpoint": save_checkpoint, "save_model": save_model})


def _checkpoint_folder(trainer: Any, trial: object) -> str:
    return os.path.join(trainer._get_output_dir(trial=trial), f"checkpoint-{trainer.state.global_step}")


PATCHES: Patches = {
    "transformers.modeling_utils": {"timing saves of transformers' models": patch_model},
    "transformers.tokenization_utils_base": {"timing saves of transformers' tokenizers": patch_tokenizer},
    "transformers.trainer": {"timing checkpoint saves of transformers' Trainer": patch_trainer},
}
