"""Wrappers around Megatron-LM's training loop and around the parts of Megatron-core that any loop uses.

``train()`` looks ``train_step`` up among its module's globals at each call, so that replacing the global is enough, for
``pretrain_gpt.py`` and every other script. A loop of one's own that uses Megatron-core alone has its optimizers: one
that chains others, or that keeps weights in two types, is one object with one ``step``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.arguments import argument
from perfscope.hooks.frameworks.nested_optimizers import wrap_outermost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture

#: The arguments that the model's dimensions and its batches follow from, by Megatron's own names.
_STATED = (
    "add_bias_linear",
    "bf16",
    "ffn_hidden_size",
    "fp16",
    "fp8",
    "global_batch_size",
    "glu_activation",
    "group_query_attention",
    "hidden_size",
    "kv_channels",
    "kv_lora_rank",
    "max_position_embeddings",
    "micro_batch_size",
    "moe_ffn_hidden_size",
    "moe_layer_freq",
    "moe_router_topk",
    "moe_shared_expert_intermediate_size",
    "mtp_num_layers",
    "multi_latent_attention",
    "normalization",
    "num_attention_heads",
    "num_experts",
    "num_layers",
    "num_query_groups",
    "padded_vocab_size",
    "position_embedding_type",
    "q_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "recompute_granularity",
    "seq_length",
    "sequence_parallel",
    "swiglu",
    "untie_embeddings_and_output_weights",
    "use_distributed_optimizer",
    "v_head_dim",
    "vocab_size",
)
_SHOULD_EXIT = 3  # its place in what train_step returns, in versions that return it
_PLACES_WITH_EXIT = 7


def patch_training(module: ModuleType, capture: Capture) -> None:
    """Count the steps of ``train_step``, which is one step of all its micro-batches."""
    original = module.train_step

    @functools.wraps(original)
    def train_step(*args: Any, **kwargs: Any) -> Any:
        capture.tell(lambda told: _before(told, module, argument(original, "model", args, kwargs)))
        result = original(*args, **kwargs)
        capture.tell(lambda told: _after(told, module, result))
        return result

    module.train_step = train_step  # type: ignore[attr-defined]


def _before(capture: Capture, module: Any, model: Any) -> None:
    capture.arm("megatron")
    capture.step_begins()
    if model:
        parts = model if isinstance(model, (list, tuple)) else [model]
        capture.trains(*parts, config=_stated_config(module))


def _after(capture: Capture, module: Any, result: Any) -> None:
    if not _ended_without_update(result):
        capture.boundary("megatron", module, **_facts(module, result))


def _ended_without_update(result: Any) -> bool:
    """Whether the rerun state machine asks to leave before the optimizer's step."""
    return isinstance(result, tuple) and len(result) >= _PLACES_WITH_EXIT and bool(result[_SHOULD_EXIT])


def _facts(module: Any, result: Any) -> dict[str, Any]:
    """What Megatron says of the step; a fact that this version keeps elsewhere is absent."""
    skipped = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    facts: dict[str, Any] = {"skipped": bool(skipped) if isinstance(skipped, (int, bool)) else None}
    args = _arguments(module)
    number = getattr(module, "get_num_microbatches", lambda: None)()
    facts["micro_batches"] = number
    iteration = getattr(args, "curr_iteration", None)
    if isinstance(iteration, int):
        facts["iteration"] = iteration + 1
    size, replicas = getattr(args, "micro_batch_size", None), getattr(args, "data_parallel_size", None)
    if number and size:
        facts["samples"] = number * size
        if replicas:
            facts["global_samples"] = number * size * replicas
        length = getattr(args, "seq_length", None)
        if length:
            facts["tokens"] = number * size * length
    return facts


def _arguments(module: Any) -> Any:
    getter = getattr(module, "get_args", None)
    return getter() if getter is not None else None


def _stated_config(module: Any) -> dict[str, Any]:
    args = _arguments(module)
    return {name: value for name in _STATED if (value := getattr(args, name, None)) is not None}


def patch_parallel_state(module: ModuleType, capture: Capture) -> None:
    """Learn this rank's place when the groups of model parallelism were made."""
    original = module.initialize_model_parallel

    @functools.wraps(original)
    def initialize_model_parallel(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        capture.tell(lambda told: told.coordinates(_coordinates(module)))
        return result

    module.initialize_model_parallel = initialize_model_parallel  # type: ignore[attr-defined]


_AXES = {
    "dp": "data_parallel",
    "pp": "pipeline_model_parallel",
    "tp": "tensor_model_parallel",
    "cp": "context_parallel",
    "ep": "expert_model_parallel",
    "etp": "expert_tensor_parallel",
    "vp": "virtual_pipeline_model_parallel",
}
#: Axes that every report expects; the others are told where they are used.
_ALWAYS = ("dp", "pp", "tp")


def _coordinates(state: Any) -> dict[str, Any]:
    coordinates: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for axis, name in _AXES.items():
        size = _asked(state, f"get_{name}_world_size")
        if size is None or (size == 1 and axis not in _ALWAYS):
            continue
        sizes[axis] = size
        if axis != "vp":
            coordinates[axis] = _asked(state, f"get_{name}_rank") or 0
    if sizes.get("etp") == sizes.get("tp") and "ep" not in sizes:
        coordinates.pop("etp", None)  # without experts it says the same as tp
        sizes.pop("etp", None)
    return {"coordinates": coordinates, "sizes": sizes}


def _asked(state: Any, getter: str) -> int | None:
    """What parallel_state answers; None where this version lacks the group or the run did not make it."""
    ask = getattr(state, getter, None)
    try:
        answer = ask() if ask is not None else None
    except (AssertionError, RuntimeError):
        return None
    return answer if isinstance(answer, int) else None


def patch_optimizer(module: ModuleType, capture: Capture) -> None:
    """Report the outermost steps of Megatron's optimizers, and whether one was skipped for an overflow."""

    def report(optimizer: Any, result: Any) -> None:
        updated = result[0] if isinstance(result, tuple) and result else None
        capture.boundary("megatron_optimizer", optimizer, skipped=not updated if isinstance(updated, bool) else None)

    for name in ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer"):
        wrap_outermost(getattr(module, name), report, before=lambda: capture.arm("megatron_optimizer"))


def patch_data_parallel(module: ModuleType, capture: Capture) -> None:
    """Learn the model, and count micro-batches and samples where they enter its first chunk."""
    wrapper_class = module._BaseDataParallel
    original = wrapper_class.forward
    first: list[int] = []

    def report(told: Capture, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not first:
            first.append(id(wrapper))
        told.trains(wrapper)
        if first[0] == id(wrapper):
            told.forward(args, kwargs)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            capture.tell(lambda told: report(told, self, args, kwargs))
        return original(self, *args, **kwargs)

    wrapper_class.forward = forward


def patch_timers(module: ModuleType, capture: Capture) -> None:
    """Show the timers that a run enables as ranges in the traces of open windows."""
    timer_class = module.Timer
    start, stop = timer_class.start, timer_class.stop
    ranges: dict[int, Any] = {}

    @functools.wraps(start)
    def marking_start(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = start(self, *args, **kwargs)
        if self.name not in _ACROSS_STEPS:
            token = capture.range_begins(f"megatron: {self.name}")
            if token is not None:
                ranges[id(self)] = token
        return result

    @functools.wraps(stop)
    def marking_stop(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = ranges.pop(id(self), None) if ranges else None
        if token is not None:
            capture.range_ends(token)
        return stop(self, *args, **kwargs)

    timer_class.start = marking_start
    timer_class.stop = marking_stop


_ACROSS_STEPS = frozenset({"interval-time", "evaluate", "eval-time", "save-checkpoint"})


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "megatron.training.training": [("counting Megatron's steps", patch_training)],
    "megatron.core.parallel_state": [("learning Megatron's groups", patch_parallel_state)],
    "megatron.core.distributed.data_parallel_base": [("counting Megatron's micro-batches", patch_data_parallel)],
    "megatron.core.optimizer.optimizer": [("counting steps of Megatron's optimizers", patch_optimizer)],
    "megatron.core.timers": [("showing Megatron's timers", patch_timers)],
}
