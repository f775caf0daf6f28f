"""Hooks around Megatron-LM's training loop and saves, and around the parts of Megatron-core that any loop uses.

``train()`` looks ``train_step`` up among its module's globals at each call. So replacing the global is enough, for
``pretrain_gpt.py`` and every other script. A script with its own loop around Megatron-core steps one of Megatron's
optimizers. An optimizer that chains others, or keeps weights in two types, is also a single object with a single
``step``.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.optimizer_steps import wrap_outermost_step
from perfscope.hooks.frameworks.torch_saves import report_results
from perfscope.hooks.frameworks.wrapping import (
    argument,
    count_forwards,
    time_calls,
    time_passes,
    whole_number,
    wrap_functions,
    wrap_saves,
)
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.introspection import is_grad_enabled
from perfscope.wire import VALIDATION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook
    from perfscope.hooks.timers.passes import TimedPass
    from perfscope.hooks.timers.saves import SaveTimer

#: The arguments that the model's dimensions and its batches follow from, by Megatron's own names.
_MODEL_ARGUMENTS = (
    "add_bias_linear", "bf16", "ffn_hidden_size", "fp16", "fp8", "global_batch_size", "glu_activation",
    "group_query_attention", "hidden_size", "kv_channels", "kv_lora_rank", "max_position_embeddings",
    "micro_batch_size", "moe_ffn_hidden_size", "moe_layer_freq", "moe_router_topk",
    "moe_shared_expert_intermediate_size", "mtp_num_layers", "multi_latent_attention", "normalization",
    "num_attention_heads", "num_experts", "num_layers", "num_query_groups", "padded_vocab_size",
    "position_embedding_type", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "recompute_granularity",
    "seq_length", "sequence_parallel", "swiglu", "untie_embeddings_and_output_weights", "use_distributed_optimizer",
    "v_head_dim", "vocab_size",
)  # fmt: skip
#: Where ``train_step`` returns so many values, this one says that the rerun state machine exits before the update.
_VALUES_WITH_EXIT, _SHOULD_EXIT = 7, 3


def patch_training(module: Any, capture: Capture) -> None:
    """Count the steps of ``train_step``, which is one step of all its micro-batches."""
    original = module.train_step

    def train_step(*args: object, **kwargs: object) -> RunningHook:
        if not capture.steps:
            capture.arm("megatron")
            model = argument(original, "model", args, kwargs)
            if model:
                parts = model if isinstance(model, (list, tuple)) else [model]
                capture.set_model(*parts, config=_model_arguments(module))
        capture.on_step_begin()
        result = yield
        if not value_or_none(lambda: _exits_before_update(result)):
            capture.on_step_end("megatron", module, **_step_facts(module, result))

    wrap_functions(module, capture, {"train_step": train_step})
    if hasattr(module, "evaluate_and_print_results"):
        time_calls(module, capture, VALIDATION, "evaluate_and_print_results")


def _exits_before_update(result: object) -> bool:
    return isinstance(result, tuple) and len(result) >= _VALUES_WITH_EXIT and bool(result[_SHOULD_EXIT])


def _step_facts(module: Any, result: Any) -> dict[str, Any]:
    skipped = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    facts: dict[str, Any] = {"skipped": bool(skipped) if isinstance(skipped, (int, bool)) else None}
    arguments = _arguments(module)
    micro_batches = getattr(module, "get_num_microbatches", lambda: None)()
    facts["micro_batches"] = micro_batches
    iteration = whole_number(getattr(arguments, "curr_iteration", None))
    if iteration is not None:
        facts["iteration"] = iteration + 1
    size, replicas = getattr(arguments, "micro_batch_size", None), getattr(arguments, "data_parallel_size", None)
    if micro_batches and size:
        facts["samples"] = micro_batches * size
        if replicas:
            facts["global_samples"] = micro_batches * size * replicas
        length = getattr(arguments, "seq_length", None)
        if length:
            parts = getattr(arguments, "context_parallel_size", None) or 1
            facts["tokens"] = micro_batches * size * length // parts
    return facts


def _arguments(module: Any) -> Any:
    get_args = getattr(module, "get_args", None)
    return get_args() if get_args is not None else None


def _model_arguments(module: Any) -> dict[str, Any]:
    arguments = _arguments(module)
    return {name: value for name in _MODEL_ARGUMENTS if (value := getattr(arguments, name, None)) is not None}


def patch_parallel_state(module: ModuleType, capture: Capture) -> None:
    """Learn this rank's position when the groups of model parallelism were made."""

    def initialize_model_parallel(*_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.set_layout(*_layout(module))

    wrap_functions(module, capture, {"initialize_model_parallel": initialize_model_parallel})


_AXES = {
    "dp": "data_parallel",
    "pp": "pipeline_model_parallel",
    "tp": "tensor_model_parallel",
    "cp": "context_parallel",
    "ep": "expert_model_parallel",
    "etp": "expert_tensor_parallel",
    "vp": "virtual_pipeline_model_parallel",
}
#: Axes that every report expects; the rest are written where they are used.
_ALWAYS = ("dp", "pp", "tp")


def _layout(state: Any) -> tuple[dict[str, int], dict[str, int]]:
    coordinates: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for axis, name in _AXES.items():
        size = _call_getter(state, f"get_{name}_world_size")
        if size is None or (size == 1 and axis not in _ALWAYS):
            continue
        sizes[axis] = size
        if axis != "vp":
            coordinates[axis] = _call_getter(state, f"get_{name}_rank") or 0
    if sizes.get("etp") == sizes.get("tp") and "ep" not in sizes:
        coordinates.pop("etp", None)  # without experts it says the same as tp
        sizes.pop("etp", None)
    return coordinates, sizes


def _call_getter(state: Any, name: str) -> int | None:
    getter = getattr(state, name, None)
    try:
        return whole_number(getter()) if getter is not None else None
    except (AssertionError, RuntimeError):
        return None


def patch_optimizer(module: ModuleType, capture: Capture) -> None:
    """Report the outermost steps of Megatron's optimizers, and whether one was skipped for an overflow."""

    def report(optimizer: Any, result: Any, _now_ns: int) -> None:
        updated = result[0] if isinstance(result, tuple) and result else None
        capture.on_step_end("megatron_optimizer", optimizer, skipped=not updated if isinstance(updated, bool) else None)

    for optimizer_class in (module.MixedPrecisionOptimizer, module.FP32Optimizer, module.ChainedOptimizer):
        wrap_outermost_step(optimizer_class, capture, report, before=lambda: capture.arm("megatron_optimizer"))


def patch_data_parallel(module: ModuleType, capture: Capture) -> None:
    """Learn the model, and count micro-batches and samples where they enter its first chunk."""
    first_chunk: list[int] = []

    def is_counted(wrapper: Any) -> bool:
        if not getattr(wrapper, "training", True):
            return True
        if not first_chunk:
            first_chunk.append(id(wrapper))
        return first_chunk[0] == id(wrapper)

    count_forwards(module._BaseDataParallel, capture, is_counted)


def patch_save_checkpoint(module: ModuleType, capture: Capture) -> None:
    """Time Megatron-LM's ``save_checkpoint``; the other modules of Megatron take it from this one by name."""
    original = module.save_checkpoint

    def save_checkpoint(timer: SaveTimer, *args: object, **kwargs: object) -> RunningHook:
        arguments = value_or_none(getattr(module, "get_args", lambda: None))
        is_asynchronous = bool(getattr(arguments, "async_save", None))
        path = getattr(arguments, "save", None)
        iteration = whole_number(argument(original, "iteration", args, kwargs))
        if path is not None and iteration is not None:
            path = os.path.join(path, f"iter_{iteration:07d}")
        with timer.saving("megatron", path, is_asynchronous=is_asynchronous):
            if getattr(arguments, "ckpt_format", None) == "torch":
                timer.on_write(0)  # with torch.save alone, and some ranks write nothing
            yield

    wrap_saves(module, capture, {"save_checkpoint": save_checkpoint})


def patch_queue(module: ModuleType, capture: Capture) -> None:
    """Learn when Megatron-LM's asynchronous saves are complete on disk, which it checks itself once a step."""

    def finalize(timer: SaveTimer, *_args: object, **_kwargs: object) -> RunningHook:
        return timer.waiting_for("megatron", lambda: bool(module.is_empty_async_queue()))

    wrap_saves(module, capture, {"maybe_finalize_async_save": finalize})


def patch_writer(module: ModuleType, capture: Capture) -> None:
    """Learn the files that this rank writes with Megatron-core's own writer, which writes in other processes."""

    def retrieve_write_results(timer: SaveTimer, writer: object) -> RunningHook:
        results = yield
        report_results(timer, writer, results)

    wrap_saves(module.FileSystemWriterAsync, capture, {"retrieve_write_results": retrieve_write_results})


def patch_schedules(module: Any, capture: Capture) -> None:
    """Time the passes of Megatron-core's schedules, which look these two functions up when they call them.

    The schedules receive before they call them and send afterwards: no waiting for another stage is in a pass.
    ``backward_step`` does not get its micro-batch as an argument: it gets what a ``forward_step`` returned.
    """
    forward, backward = module.forward_step, module.backward_step
    passes = _Passes(module.parallel_state, forward)

    def begin_forward(*args: object, **kwargs: object) -> TimedPass | None:
        passes.running = passes.position_of_forward(args, kwargs) if is_grad_enabled() else None
        return None if passes.running is None else capture.on_pass_begin("F", **passes.running)

    def begin_backward(*args: object, **kwargs: object) -> TimedPass | None:
        position = passes.pop_forward(argument(backward, "output_tensor", args, kwargs))
        return None if position is None else capture.on_pass_begin("B", **position)

    module.forward_step = time_passes(forward, capture, begin_forward, is_forward=True, on_result=passes.add_forward)
    module.backward_step = time_passes(backward, capture, begin_backward, is_forward=False)


class _Passes:
    def __init__(self, parallel_state: Any, forward: Any) -> None:
        self._state = parallel_state
        self._forward = forward
        self._counts: Counter[int] = Counter()
        #: The forward passes whose backward pass did not come yet, by the tensor that they returned.
        self._pending: dict[int, Mapping[str, int]] = {}
        #: The position of the forward pass that runs.
        self.running: Mapping[str, int] | None = None

    def position_of_forward(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Mapping[str, int] | None:
        """Locate a forward pass, by count where this version does not pass its micro-batch; None without stages."""
        devices = int(self._state.get_pipeline_model_parallel_world_size())
        if devices == 1:
            return None
        if not self._pending:
            self._counts.clear()
        chunk = whole_number(argument(self._forward, "vp_stage", args, kwargs))
        if chunk is None:
            chunk = getattr(self._state, "get_virtual_pipeline_model_parallel_rank", lambda: None)() or 0
        microbatch = whole_number(argument(self._forward, "current_microbatch", args, kwargs))
        if microbatch is None:
            microbatch = self._counts[chunk]
        if microbatch == chunk == 0:  # a step begins: outputs that no backward pass took are forgotten
            self._pending.clear()
        self._counts[chunk] += 1
        device = int(self._state.get_pipeline_model_parallel_rank())
        chunks = self._state.get_virtual_pipeline_model_parallel_world_size() or 1
        return {
            "microbatch": microbatch,
            "stage": chunk * devices + device,
            "stages": chunks * devices,
            "device": device,
            "devices": devices,
        }

    def add_forward(self, result: Any) -> None:
        """Remember what the running pass returned."""
        if self.running is not None:
            self._pending[_tensor_id(result[0] if isinstance(result, tuple) else result)] = self.running

    def pop_forward(self, output: Any) -> Mapping[str, int] | None:
        """The forward pass that returned an output; None where it was not seen."""
        return self._pending.pop(_tensor_id(output), None)


def _tensor_id(output: Any) -> int:
    """The tensor itself, which stays the same object even when its memory is given back before the backward pass."""
    while isinstance(output, (list, tuple)) and output:
        output = output[0]
    return id(output)


PATCHES: Patches = {
    "megatron.core.dist_checkpointing.strategies.filesystem_async": {
        "counting bytes of Megatron's saves": patch_writer
    },
    "megatron.core.distributed.data_parallel_base": {"counting Megatron's micro-batches": patch_data_parallel},
    "megatron.core.optimizer.optimizer": {"counting steps of Megatron's optimizers": patch_optimizer},
    "megatron.core.pipeline_parallel.schedules": {"timing micro-batches of Megatron's pipelines": patch_schedules},
    "megatron.core.parallel_state": {"detecting Megatron's process groups": patch_parallel_state},
    "megatron.training.async_utils": {"timing Megatron's asynchronous saves": patch_queue},
    "megatron.training.checkpointing": {"timing Megatron's checkpoint saves": patch_save_checkpoint},
    "megatron.training.training": {"counting Megatron's steps": patch_training},
}
