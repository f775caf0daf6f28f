"""Wrappers around what makes torch's meshes and uses them: device meshes, tensor parallelism and pipeline stages."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.arguments import argument

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture


def patch_device_mesh(module: ModuleType, capture: Capture) -> None:
    """Learn the layout from a mesh whose dimensions have names."""
    original = module.init_device_mesh

    @functools.wraps(original)
    def init_device_mesh(*args: Any, **kwargs: Any) -> Any:
        mesh = original(*args, **kwargs)
        capture.mesh(mesh)
        return mesh

    module.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]


def patch_tensor_parallel(module: ModuleType, capture: Capture) -> None:
    """Learn which ranks a module's tensors are split over."""
    original = module.parallelize_module

    @functools.wraps(original)
    def parallelize_module(*args: Any, **kwargs: Any) -> Any:
        capture.tell(lambda told: _tell_split(told, argument(original, "device_mesh", args, kwargs)))
        return original(*args, **kwargs)

    module.parallelize_module = parallelize_module  # type: ignore[attr-defined]


def _tell_split(capture: Capture, mesh: Any) -> None:
    from perfscope.hooks.facts.sharding import splits_tensors

    if mesh is not None and mesh.ndim == 1:
        splits_tensors(mesh)
        capture.axis("tp", int(mesh.get_local_rank()), int(mesh.size()))


def patch_stages(module: ModuleType, capture: Capture) -> None:
    """Learn the length of a pipeline and this rank's place in it."""
    stage_class = module._PipelineStageBase
    construct = stage_class.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        capture.tell(lambda told: _tell_stage(told, self))

    stage_class.__init__ = init


def _tell_stage(capture: Capture, stage: Any) -> None:
    capture.axis("pp", stage.group_rank, stage.group_size)
    capture.holds(stage.submod)


def patch_schedules(module: ModuleType, capture: Capture) -> None:
    """Count the batch that a schedule cuts into micro-batches."""
    for name in ("PipelineScheduleSingle", "PipelineScheduleMulti"):
        _count_batches(getattr(module, name), capture)


def _count_batches(schedule_class: Any, capture: Capture) -> None:
    original = schedule_class.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        capture.batch_enters(args, kwargs)
        return original(self, *args, **kwargs)

    schedule_class.step = step


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "torch.distributed.device_mesh": [("learning the layout of meshes", patch_device_mesh)],
    "torch.distributed.tensor.parallel.api": [("learning tensor parallelism", patch_tensor_parallel)],
    "torch.distributed.pipelining.schedules": [("counting the batches of a pipeline", patch_schedules)],
    "torch.distributed.pipelining.stage": [("learning the stages of a pipeline", patch_stages)],
}
