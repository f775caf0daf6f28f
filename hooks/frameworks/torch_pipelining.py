"""Hooks around torch.distributed.pipelining: the stages of a rank, the batches of a step and each micro-batch's passes.

A stage receives before it calls the functions that are timed and sends afterwards, so that no waiting for another stage
is in a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import time_pass, wrap_functions
from perfscope.hooks.introspection import is_grad_enabled

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Hook, Patches, RunningHook


def patch_stages(module: ModuleType, capture: Capture) -> None:
    """Learn the length of a pipeline and this rank's position in it."""

    def init(stage: Any, *_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.set_axis("pp", stage.group_rank, stage.group_size)
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

    def time_chunk(kind: str, stage: Any, chunk: int) -> RunningHook:
        return time_pass(
            capture,
            kind,
            microbatch=chunk,
            stage=stage.stage_index,
            stages=stage.num_stages,
            device=stage.group_rank,
            devices=stage.group_size,
        )

    def forward(stage: Any, fwd_chunk_id: int, *_args: object, **_kwargs: object) -> RunningHook:
        if is_grad_enabled():
            yield from time_chunk("F", stage, fwd_chunk_id)

    def backward(stage: Any, bwd_chunk_id: int, *args: object, **kwargs: object) -> RunningHook:
        is_full = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
        return time_chunk("B" if is_full else "I", stage, bwd_chunk_id)

    def backward_weight(stage: Any, bwd_chunk_id: int, *_args: object, **_kwargs: object) -> RunningHook:
        return time_chunk("W", stage, bwd_chunk_id)

    hooks: dict[str, Hook] = {"forward_one_chunk": forward, "backward_one_chunk": backward}
    if hasattr(module._PipelineStageBase, "backward_weight_one_chunk"):  # absent in old versions
        hooks["backward_weight_one_chunk"] = backward_weight
    wrap_functions(module._PipelineStageBase, capture, hooks)


PATCHES: Patches = {
    "torch.distributed.pipelining.schedules": {"counting the batches of a pipeline": patch_schedules},
    "torch.distributed.pipelining.stage": {
        "detecting the stages of a pipeline": patch_stages,
        "timing micro-batches of torch's pipelines": patch_passes,
    },
}
