"""Wrappers around torchtitan's Trainer, whose ``train_step`` is one step of all its micro-batches.

Versions that define the Trainer in the script itself (``-m torchtitan.train``) cannot be hooked by their module; there
the container of their optimizers ends a step.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture

#: The axes of torchtitan's mesh by ours, the outermost first.
_AXES = (("pp", "pp"), ("dp_replicate", "dp"), ("dp_shard", "dp"), ("cp", "cp"), ("tp", "tp"))


def patch_trainer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of Trainer, and learn its model and its layout."""
    trainer_class = module.Trainer
    original = trainer_class.train_step

    @functools.wraps(original)
    def train_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        capture.tell(lambda told: _before(told, self))
        result = original(self, *args, **kwargs)
        capture.tell(lambda told: _after(told, self))
        return result

    trainer_class.train_step = train_step


def _before(capture: Capture, trainer: Any) -> None:
    capture.arm("torchtitan")
    capture.step_begins()
    if capture.steps == 0:
        parts = getattr(trainer, "model_parts", ())
        if parts:
            capture.trains(*parts)
        dims = getattr(trainer, "parallel_dims", None)
        if dims is not None:
            capture.coordinates(_coordinates(dims))


def _after(capture: Capture, trainer: Any) -> None:
    groups = getattr(trainer, "gradient_accumulation_steps", None)
    stages = getattr(trainer, "num_pp_microbatches", 1)
    iteration = getattr(trainer, "step", None)
    capture.boundary(
        "torchtitan",
        trainer,
        micro_batches=groups * stages if isinstance(groups, int) and isinstance(stages, int) else None,
        iteration=iteration if isinstance(iteration, int) else None,
    )


def _coordinates(dims: Any) -> dict[str, Any]:
    """This rank's place: ranks are numbered along the axes, the innermost of them fastest."""
    from perfscope.hooks.facts.identity import rank_and_world_size

    rank = rank_and_world_size()[0]
    coordinates = dict.fromkeys(("dp", "pp", "tp"), 0)
    sizes = dict.fromkeys(("dp", "pp", "tp"), 1)
    for name, axis in reversed(_AXES):
        size = int(getattr(dims, name, 1))
        if size > 1:
            rank, place = divmod(rank, size)
            coordinates[axis] = place * sizes.get(axis, 1) + coordinates.get(axis, 0)
            sizes[axis] = sizes.get(axis, 1) * size
    return {"coordinates": coordinates, "sizes": sizes}


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "torchtitan.trainer": [("counting torchtitan's steps", patch_trainer)],
}
