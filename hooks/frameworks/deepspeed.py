"""Hooks around DeepSpeed's engines: they, and never the optimizer inside, say when a step completed.

ZeRO stage 3 steps its inner optimizer once for each sub-group, and gradient accumulation calls ``engine.step()`` once
for each micro-batch, so a step is what moves ``engine.global_steps``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts.precision import dtype_name
from perfscope.hooks.frameworks.wrapping import (
    count_forwards,
    time_calls,
    time_passes,
    whole_number,
    wrap_functions,
    wrap_saves,
)
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.introspection import is_grad_enabled, subclasses
from perfscope.wire import VALIDATION

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.passes import TimedPass
    from perfscope.hooks.timers.saves import SaveTimer

_OPTIONS = "gradient_accumulation_steps", "train_micro_batch_size_per_gpu"
_ZERO_OPTIONS = (
    "stage", "overlap_comm", "reduce_bucket_size", "allgather_bucket_size", "contiguous_gradients",
    "prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters",
)  # fmt: skip
#: Its instructions have other arguments: its passes are not timed.
_DUALPIPEV = "DualPipeVEngine"
_ENABLED = {"bfloat16_enabled": "bf16", "fp16_enabled": "fp16"}


def patch_engine(module: ModuleType, capture: Capture) -> None:
    """Count the steps of DeepSpeedEngine."""

    def init(engine: Any, *_args: object, **_kwargs: object) -> RunningHook:
        capture.arm("deepspeed")
        yield
        capture.set_model(
            engine.module, zero_stage=whole_number(engine.zero_optimization_stage()), dtype=_compute_dtype(engine)
        )
        _report_groups(capture, engine)
        capture.setup.set_engine(_options(engine))

    def step(engine: Any, *_args: object, **_kwargs: object) -> RunningHook:
        steps, skipped_steps = getattr(engine, "global_steps", None), getattr(engine, "skipped_steps", None)
        yield
        if getattr(engine, "global_steps", None) != steps:
            capture.on_step_end("deepspeed", engine, **_read_step(engine, skipped_steps))

    wrap_functions(module.DeepSpeedEngine, capture, {"__init__": init, "step": step})
    count_forwards(module.DeepSpeedEngine, capture)


def _read_step(engine: Any, skipped_steps: object) -> dict[str, Any]:
    facts: dict[str, Any] = {"skipped": getattr(engine, "skipped_steps", None) != skipped_steps}
    try:
        samples = engine.train_batch_size()
        scale = getattr(engine.optimizer, "cur_scale", None)
    except (AttributeError, AssertionError, KeyError, RuntimeError, TypeError, ValueError):
        return facts  # this version counts them in another way
    if isinstance(samples, int):
        facts["global_samples"] = samples
    if isinstance(scale, (int, float)):  # reading a tensor would wait for the device
        facts["loss_scale"] = float(scale)
    return facts


def _compute_dtype(engine: Any) -> str | None:
    if _call(engine, "torch_autocast_enabled"):
        return dtype_name(_call(engine, "torch_autocast_dtype"))
    return next((dtype for name, dtype in _ENABLED.items() if _call(engine, name)), None)


def _options(engine: Any) -> dict[str, object]:
    config = getattr(engine, "_config", None)
    zero = getattr(config, "zero_config", None)
    options = {name: getattr(zero, name, None) for name in _ZERO_OPTIONS}
    return {name: getattr(config, name, None) for name in _OPTIONS} | {
        f"zero_optimization.{name}": int(value) if name == "stage" and value is not None else value
        for name, value in options.items()
    }


def _call(engine: Any, name: str) -> object:
    getter = getattr(engine, name, None)
    return None if getter is None else value_or_none(getter)


def _report_groups(capture: Capture, engine: Any) -> None:
    group = getattr(engine, "data_parallel_group", None)
    if group is not None:
        capture.set_axis_group("dp", group)
    tensor_ranks = whole_number(getattr(engine, "mp_world_size", None)) or 1
    mpu = getattr(engine, "mpu", None)  # of a pipeline it has a group of stages and tensors together, and this one
    find_group = getattr(mpu, "get_slice_parallel_group", getattr(mpu, "get_model_parallel_group", None))
    if tensor_ranks > 1 and find_group is not None:
        group = value_or_none(find_group)
        if group is not None:
            capture.set_axis_group("tp", group)
    for group in getattr(sys.modules.get("deepspeed.utils.groups"), "_EXPERT_PARALLEL_GROUP", {}).values():
        capture.set_axis_group("ep", group)


def patch_pipeline_engine(module: ModuleType, capture: Capture) -> None:
    """Count the steps of PipelineEngine, whose ``train_batch`` is one step of all its micro-batches."""

    def init(engine: Any, *_args: object, **_kwargs: object) -> RunningHook:
        capture.arm("deepspeed_pipeline")
        yield
        capture.set_axis_group("pp", engine.grid.get_pipe_parallel_group())

    def train_batch(engine: Any, *_args: object, **_kwargs: object) -> RunningHook:
        capture.on_step_begin()
        skipped_steps = getattr(engine, "skipped_steps", None)
        yield
        micro_batches = whole_number(getattr(engine, "micro_batches", None))
        capture.on_step_end(
            "deepspeed_pipeline", engine, micro_batches=micro_batches, **_read_step(engine, skipped_steps)
        )

    wrap_functions(module.PipelineEngine, capture, {"__init__": init, "train_batch": train_batch})
    time_calls(module.PipelineEngine, capture, VALIDATION, "eval_batch")


def patch_instructions(module: ModuleType, capture: Capture) -> None:
    """Time the passes of PipelineEngine.

    Its instructions are looked up in a dictionary of plain functions, so patching the methods would change nothing. A
    buffer is used again for later micro-batches; their number is counted from the beginning of ``train_batch``.
    """
    engine_class, schedule = module.PipelineEngine, module.schedule
    counts: Counter[tuple[int, str]] = Counter()

    def train_batch(*_args: object, **_kwargs: object) -> RunningHook:
        counts.clear()
        yield

    def begin(kind: str, engine: Any, *_args: object, **_kwargs: object) -> TimedPass | None:
        if not is_grad_enabled():
            return None
        microbatch = counts[id(engine), kind]
        counts[id(engine), kind] = microbatch + 1
        stage, stages = engine.stage_id, engine.num_stages
        return capture.on_pass_begin(
            kind, microbatch=microbatch, stage=stage, stages=stages, device=stage, devices=stages
        )

    for owner in (engine_class, *(child for child in subclasses(engine_class) if child.__name__ != _DUALPIPEV)):
        functions = vars(owner).get("_INSTRUCTION_MAP")
        for key, kind in {schedule.ForwardPass: "F", schedule.BackwardPass: "B"}.items() if functions else ():
            begin_kind = functools.partial(begin, kind)
            functions[key] = time_passes(functions[key], capture, begin_kind, is_forward=kind == "F")
    wrap_functions(engine_class, capture, {"train_batch": train_batch})


def patch_save_checkpoint(module: ModuleType, capture: Capture) -> None:
    """Time ``DeepSpeedEngine.save_checkpoint``; its checkpoint engine may write beside training."""

    def save_checkpoint(timer: SaveTimer, engine: Any, *args: object, **kwargs: object) -> RunningHook:
        path = value_or_none(lambda: _checkpoint_folder(engine, args, kwargs))
        writer: Any = getattr(engine, "checkpoint_engine", None)
        is_decoupled = value_or_none(lambda: bool(writer.is_decoupled())) or False
        with timer.saving("deepspeed", path, is_asynchronous=is_decoupled):
            if type(writer).__name__ == "TorchCheckpointEngine":
                timer.on_write(0)  # it writes with torch.save alone, and some ranks write nothing
            yield

    def commit(timer: SaveTimer, *_args: object, **_kwargs: object) -> RunningHook:
        return timer.waiting_for("deepspeed", lambda: True)

    wrap_saves(module.DeepSpeedEngine, capture, {"save_checkpoint": save_checkpoint})
    if hasattr(module.DeepSpeedEngine, "_commit_decoupled_checkpoint"):  # absent in old versions
        wrap_saves(module.DeepSpeedEngine, capture, {"_commit_decoupled_checkpoint": commit})


def _checkpoint_folder(engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    folder: Any = kwargs.get("save_dir", args[0] if args else None)
    tag = kwargs.get("tag", args[1] if len(args) > 1 else None)
    return os.path.join(folder, f"global_step{engine.global_steps}" if tag is None else str(tag))


PATCHES: Patches = {
    "deepspeed.runtime.engine": {
        "counting DeepSpeed steps": patch_engine,
        "timing DeepSpeed's checkpoint saves": patch_save_checkpoint,
    },
    "deepspeed.runtime.pipe.engine": {
        "counting DeepSpeed pipeline steps": patch_pipeline_engine,
        "timing micro-batches of DeepSpeed's pipelines": patch_instructions,
    },
}
