"""Wrappers around DeepSpeed's engines: they, and never the optimizer inside, say when a step completed.

ZeRO stage 3 steps its inner optimizer once for each sub-group, and gradient accumulation calls ``engine.step()`` once
for each micro-batch, so a step is what moves ``engine.global_steps``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture

_UNKNOWN = (None, None)


def patch_engine(module: ModuleType, capture: Capture) -> None:
    """Count the steps of DeepSpeedEngine."""
    engine_class = module.DeepSpeedEngine
    construct, forward, step = engine_class.__init__, engine_class.forward, engine_class.step

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        capture.arm("deepspeed")
        construct(self, *args, **kwargs)
        capture.tell(lambda told: told.trains(self.module, zero_stage=_whole(self.zero_optimization_stage())))
        capture.tell(lambda told: _tell_groups(told, self))

    @functools.wraps(forward)
    def counting_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if value_or_none(lambda: self.training):
            capture.forward(args, kwargs)
        return forward(self, *args, **kwargs)

    @functools.wraps(step)
    def reporting_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = value_or_none(lambda: _counters(self)) or _UNKNOWN
        result = step(self, *args, **kwargs)
        after = value_or_none(lambda: _counters(self)) or _UNKNOWN
        if after[0] != before[0]:
            capture.boundary(
                "deepspeed",
                self,
                skipped=after[1] != before[1],
                global_samples=value_or_none(lambda: _whole(self.train_batch_size())),
                loss_scale=value_or_none(lambda: _loss_scale(self)),
            )
        return result

    engine_class.__init__ = init
    engine_class.forward = counting_forward
    engine_class.step = reporting_step


def _tell_groups(capture: Capture, engine: Any) -> None:
    """Tell the groups of an engine without stages: its replicas, and tensor parallelism that somebody else does."""
    group = getattr(engine, "data_parallel_group", None)
    if group is not None:
        capture.axis("dp", group.rank(), group.size())
    tensor_ranks = _whole(getattr(engine, "mp_world_size", None)) or 1
    ask = getattr(getattr(engine, "mpu", None), "get_model_parallel_rank", None)
    if tensor_ranks > 1 and ask is not None:
        capture.axis("tp", int(ask()), tensor_ranks)


def patch_pipeline_engine(module: ModuleType, capture: Capture) -> None:
    """Count the steps of PipelineEngine, whose ``train_batch`` is one step of all its micro-batches."""
    engine_class = module.PipelineEngine
    construct, train_batch = engine_class.__init__, engine_class.train_batch

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        capture.arm("deepspeed_pipeline")
        construct(self, *args, **kwargs)
        capture.tell(lambda told: told.coordinates(_coordinates(self)))

    @functools.wraps(train_batch)
    def reporting_train_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        capture.step_begins()
        before = value_or_none(lambda: _counters(self)) or _UNKNOWN
        result = train_batch(self, *args, **kwargs)
        capture.boundary(
            "deepspeed_pipeline",
            self,
            skipped=value_or_none(lambda: _counters(self)[1] != before[1]),
            global_samples=value_or_none(lambda: _whole(self.train_batch_size())),
            micro_batches=value_or_none(lambda: _whole(self.micro_batches)),
            loss_scale=value_or_none(lambda: _loss_scale(self)),
        )
        return result

    engine_class.__init__ = init
    engine_class.train_batch = reporting_train_batch


def _counters(engine: Any) -> tuple[Any, Any]:
    """Steps and skipped steps so far, where this version counts them by these names."""
    return getattr(engine, "global_steps", None), getattr(engine, "skipped_steps", None)


def _coordinates(engine: Any) -> dict[str, Any]:
    grid = engine.grid
    return {
        "coordinates": {
            "dp": grid.get_data_parallel_rank(),
            "pp": grid.get_pipe_parallel_rank(),
            "tp": grid.get_slice_parallel_rank(),
        },
        "sizes": {
            "dp": grid.get_data_parallel_world_size(),
            "pp": grid.get_pipe_parallel_world_size(),
            "tp": grid.get_slice_parallel_world_size(),
        },
    }


def _loss_scale(engine: Any) -> float | None:
    """The loss scale, where it is a plain number: reading a tensor would wait for the device."""
    scale = getattr(engine.optimizer, "cur_scale", None)
    return float(scale) if isinstance(scale, (int, float)) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "deepspeed.runtime.engine": [("counting DeepSpeed steps", patch_engine)],
    "deepspeed.runtime.pipe.engine": [("counting DeepSpeed pipeline steps", patch_pipeline_engine)],
}
