"""Hooks around torchtitan's Trainer, whose ``train_step`` is one step of all its micro-batches.

Versions that define the Trainer in the script itself (``-m torchtitan.train``) cannot be hooked by their module; there
the container of their optimizers ends a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import time_calls, wrap_functions
from perfscope.wire import VALIDATION

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


def patch_trainer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of Trainer, and learn its model; its layout is that of its meshes."""

    def train_step(trainer: Any, *_args: object, **_kwargs: object) -> RunningHook:
        capture.arm("torchtitan")
        capture.on_step_begin()
        if capture.steps == 0:
            parts = getattr(trainer, "model_parts", ())
            if parts:
                capture.set_model(*parts)
        yield
        iteration = getattr(trainer, "step", None)
        capture.on_step_end(
            "torchtitan",
            trainer,
            micro_batches=_micro_batches(trainer),
            iteration=iteration if isinstance(iteration, int) else None,
        )

    wrap_functions(module.Trainer, capture, {"train_step": train_step})


def _micro_batches(trainer: Any) -> int | None:
    accumulated = getattr(trainer, "gradient_accumulation_steps", None)
    pipelined = getattr(trainer, "num_pp_microbatches", 1)
    return accumulated * pipelined if isinstance(accumulated, int) and isinstance(pipelined, int) else None


def patch_validator(module: ModuleType, capture: Capture) -> None:
    """Time torchtitan's validation."""
    time_calls(module.Validator, capture, VALIDATION, "validate")


PATCHES: Patches = {
    "torchtitan.components.validate": {"timing torchtitan's validation": patch_validator},
    "torchtitan.trainer": {"counting torchtitan's steps": patch_trainer},
}
