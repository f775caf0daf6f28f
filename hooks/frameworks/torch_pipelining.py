"""Hooks around torch.distributed.pipelining: the stages of a rank, the batches of a step and each micro-batch's passes.

A stage receives before it calls the functions that are timed and sends afterwards, so that no waiting for another stage
is in a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import time_passes, wrap_functions
from perfscope.hooks.introspection import is_grad_enabled

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import PassBegin, Patches, RunningHook
    from perfscope.hooks.timers.passes import TimedPass


def patch_stages(module: ModuleType, capture: Capture) -> None:
    """Learn the length of a pipeline and this rank's position in it."""

    def init(stage: Any, *_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.set_axis_group("pp", stage.group)
        capture.add_model_part(stage.submod)

    wrap_functions(module._PipelineStageBase, capture, {"__init__": init})


def patch_schedules(module: ModuleType, capture: Capture) -> None:
    """Count the batch that a schedule cuts into micro-batches."""

    def step(_schedule: object, *args: object, **kwargs: object) -> RunningHook:
        capture.on_pipeline_batch(args, kwargs)
        yield

    for schedule_class in (module.PipelineScheduleSingle, module.PipelineScheduleMulti):
        wrap_functions(schedule_class, capture, {"step": step})


def patch_passes(module: ModuleType, capture: Capture) -> None:
    """Time the passes of every schedule: they all call these methods of a stage."""

    def begin(kind: str, stage: Any, chunk: int) -> TimedPass | None:
        return capture.on_pass_begin(
            kind,
            microbatch=chunk,
            stage=stage.stage_index,
            stages=stage.num_stages,
            device=stage.group_rank,
            devices=stage.group_size,
        )

    def begin_forward(stage: Any, fwd_chunk_id: int, *_args: object, **_kwargs: object) -> TimedPass | None:
        return begin("F", stage, fwd_chunk_id) if is_grad_enabled() else None

    def begin_backward(stage: Any, bwd_chunk_id: int, *args: object, **kwargs: object) -> TimedPass | None:
        is_full = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
        return begin("B" if is_full else "I", stage, bwd_chunk_id)

    def begin_backward_weight(stage: Any, bwd_chunk_id: int, *_args: object, **_kwargs: object) -> TimedPass | None:
        return begin("W", stage, bwd_chunk_id)

    begins: dict[str, PassBegin] = {"forward_one_chunk": begin_forward, "backward_one_chunk": begin_backward}
    stage_class = module._PipelineStageBase
    if hasattr(stage_class, "backward_weight_one_chunk"):  # absent in old versions
        begins["backward_weight_one_chunk"] = begin_backward_weight
    originals = {name: getattr(stage_class, name) for name in begins}
    for name, original in originals.items():
        setattr(
            stage_class, name, time_passes(original, capture, begins[name], is_forward=begins[name] is begin_forward)
        )


PATCHES: Patches = {
    "torch.distributed.pipelining.schedules": {"counting the batches of a pipeline": patch_schedules},
    "torch.distributed.pipelining.stage": {
        "detecting the stages of a pipeline": patch_stages,
        "timing micro-batches of torch's pipelines": patch_passes,
    },
}
