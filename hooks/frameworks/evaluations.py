"""Hooks around the functions in which frameworks validate or generate in one call: that call is the validation.

Megatron's and DeepSpeed's are with the other hooks of these frameworks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.hooks.frameworks.wrapping import wrap_functions
from perfscope.wire import GENERATION, VALIDATION

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Hook, Patches, RunningHook


def time_call(capture: Capture, kind: str) -> Hook:
    """A hook around a function that validates or generates; ``kind`` is that of the span."""

    def call(*_args: object, **_kwargs: object) -> RunningHook:
        is_timed = capture.activities.begin_call(kind)
        try:
            yield
        finally:
            if is_timed:
                capture.activities.end_call()

    return call


def patch_trainer(module: ModuleType, capture: Capture) -> None:
    """Time the evaluations of transformers' Trainer, those included that a subclass starts in a way of its own."""
    names = [name for name in ("evaluate", "predict", "evaluation_loop") if hasattr(module.Trainer, name)]
    wrap_functions(module.Trainer, capture, {name: time_call(capture, VALIDATION) for name in names})


def patch_generation(module: ModuleType, capture: Capture) -> None:
    """Time the text that a model of transformers generates."""
    wrap_functions(module.GenerationMixin, capture, {"generate": time_call(capture, GENERATION)})


def patch_lightning(module: ModuleType, capture: Capture) -> None:
    """Time Lightning's loop of validation and of tests."""
    wrap_functions(module._EvaluationLoop, capture, {"run": time_call(capture, VALIDATION)})


def patch_validator(module: ModuleType, capture: Capture) -> None:
    """Time torchtitan's validation."""
    wrap_functions(module.Validator, capture, {"validate": time_call(capture, VALIDATION)})


PATCHES: Patches = {
    "lightning.pytorch.loops.evaluation_loop": {"timing Lightning's validation": patch_lightning},
    "pytorch_lightning.loops.evaluation_loop": {"timing Lightning's validation": patch_lightning},
    "torchtitan.components.validate": {"timing torchtitan's validation": patch_validator},
    "transformers.generation.utils": {"timing generation": patch_generation},
    "transformers.trainer": {"timing the Trainer's evaluations": patch_trainer},
}
