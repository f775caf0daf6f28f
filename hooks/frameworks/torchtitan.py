"""Hooks around torchtitan's Trainer, whose ``train_step`` is one step of all its micro-batches.

Versions that define the Trainer in the script itself (``-m torchtitan.train``) cannot be hooked by their module; there
the container of their optimizers ends a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts.launched_rank import rank_and_world_size
from perfscope.hooks.frameworks.wrapping import wrap_functions

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook

#: The axes of torchtitan's mesh by ours, the outermost first.
_AXES = (("pp", "pp"), ("dp_replicate", "dp"), ("dp_shard", "dp"), ("cp", "cp"), ("tp", "tp"))


def patch_trainer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of Trainer, and learn its model and its layout."""

    def train_step(trainer: Any, *_args: object, **_kwargs: object) -> RunningHook:
        capture.arm("torchtitan")
        capture.on_step_begin()
        if capture.steps == 0:
            _report_setup(capture, trainer)
        yield
        iteration = getattr(trainer, "step", None)
        capture.on_step_end(
            "torchtitan",
            trainer,
            micro_batches=_micro_batches(trainer),
            iteration=iteration if isinstance(iteration, int) else None,
        )

    wrap_functions(module.Trainer, capture, {"train_step": train_step})


def _report_setup(capture: Capture, trainer: Any) -> None:
    parts = getattr(trainer, "model_parts", ())
    if parts:
        capture.set_model(*parts)
    dims = getattr(trainer, "parallel_dims", None)
    if dims is not None:
        capture.set_layout(*_layout(dims))


def _micro_batches(trainer: Any) -> int | None:
    accumulated = getattr(trainer, "gradient_accumulation_steps", None)
    pipelined = getattr(trainer, "num_pp_microbatches", 1)
    return accumulated * pipelined if isinstance(accumulated, int) and isinstance(pipelined, int) else None


def _layout(dims: Any) -> tuple[dict[str, int], dict[str, int]]:
    """This rank's coordinates and the sizes: ranks are numbered along the axes, the innermost of them fastest."""
    rank = rank_and_world_size()[0]
    coordinates = dict.fromkeys(("dp", "pp", "tp"), 0)
    sizes = dict.fromkeys(("dp", "pp", "tp"), 1)
    for name, axis in reversed(_AXES):
        size = int(getattr(dims, name, 1))
        if size > 1:
            rank, index = divmod(rank, size)
            coordinates[axis] = index * sizes.get(axis, 1) + coordinates.get(axis, 0)
            sizes[axis] = sizes.get(axis, 1) * size
    return coordinates, sizes


PATCHES: Patches = {
    "torchtitan.trainer": {"counting torchtitan's steps": patch_trainer},
}
