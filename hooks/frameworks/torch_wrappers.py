"""Hooks around the modules that replicate or shard a model: DataParallel, DDP, FSDP 1 and FSDP 2.

The outermost of them sees what enters the model, once for each micro-batch. The parts that FSDP wraps inside it, and
the forward passes that activation checkpointing runs again, are not counted.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import count_forwards, report_first_outputs, wrap_functions
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.introspection import COMPILER
from perfscope.hooks.timers.probes import PROBES, ShardedUnits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


def patch_data_parallel(module: ModuleType, capture: Capture) -> None:
    """Count what enters nn.DataParallel."""
    count_forwards(module.DataParallel, capture)


def patch_distributed(module: ModuleType, capture: Capture) -> None:
    """Count what enters DistributedDataParallel, and learn the replicas."""

    def init(wrapper: Any, *_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.set_axis_group("dp", wrapper.process_group)
        capture.setup.set_ddp(wrapper)

    count_forwards(module.DistributedDataParallel, capture)
    wrap_functions(module.DistributedDataParallel, capture, {"__init__": init})


def patch_fsdp1(module: ModuleType, capture: Capture) -> None:
    """Count what enters the root FullyShardedDataParallel, and learn the ranks that hold its shards."""

    def init(wrapper: Any, *_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.set_axis("dp", lambda: _fsdp1_replicas(wrapper))

    fsdp_class = module.FullyShardedDataParallel
    count_forwards(fsdp_class, capture, lambda wrapper: getattr(wrapper, "_is_root", None) is not False)
    wrap_functions(fsdp_class, capture, {"__init__": init})


def patch_fsdp2(module: ModuleType, capture: Capture) -> None:
    """Count what enters the root module of ``fully_shard``, and learn its mesh."""
    state_class = module.FSDPState
    PROBES.sharded = ShardedUnits(getattr(module, "FSDPParamGroup", None))
    original = state_class._root_pre_forward
    has_begun = False

    @functools.wraps(original)
    def root_pre_forward(self: Any, root: Any, args: Any, kwargs: Any) -> Any:
        context = getattr(self, "_state_ctx", None)
        is_layer = getattr(context, "iter_forward_root", self) is not None
        result = original(self, root, args, kwargs)
        if is_layer or COMPILER.is_tracing():
            if getattr(self, "_is_root", None) is False and not COMPILER.is_tracing():
                _unwrap(self, "_root_pre_forward", original)  # it never will be one
            return result
        nonlocal has_begun
        is_training = getattr(root, "training", False)
        if is_training and not has_begun:
            has_begun = capture.steps > 0
            capture.run_guarded(_report_meshes, capture, self)
        capture.on_forward(args, kwargs, in_training_mode=is_training, model=root if is_training else None)
        return result

    state_class._root_pre_forward = root_pre_forward
    report_output = report_first_outputs(capture)
    original_output = getattr(state_class, "_register_pre_backward_hook", None)
    if original_output is None:
        return

    @functools.wraps(original_output)
    def register_pre_backward_hook(self: Any, output: Any) -> Any:
        result = original_output(self, output)
        if COMPILER.is_tracing():
            return result
        if not getattr(self, "_is_root", False):
            if getattr(self, "_is_root", None) is False:
                _unwrap(self, "_register_pre_backward_hook", original_output)
        elif capture.wants_output:
            report_output(result)
        else:
            _unwrap(self, "_register_pre_backward_hook", original_output)
        return result

    state_class._register_pre_backward_hook = register_pre_backward_hook


def _unwrap(state: Any, name: str, original: Callable[..., Any]) -> None:
    vars(state)[name] = types.MethodType(original, state)


def _fsdp1_replicas(wrapper: Any) -> list[int]:
    """The replicas: hybrid sharding shards inside a node and replicates over nodes, which number their ranks alike."""
    distributed = sys.modules["torch.distributed"]
    shards: list[int] = distributed.get_process_group_ranks(wrapper.process_group)
    nodes = getattr(wrapper, "_inter_node_pg", None)
    if nodes is None:
        return shards
    own = distributed.get_rank()
    return [rank - own + shard for rank in distributed.get_process_group_ranks(nodes) for shard in shards]


def _report_meshes(capture: Capture, state: Any) -> None:
    for mesh in value_or_none(lambda: [group.mesh_info.mesh for group in _parameter_groups(state)]) or ():
        capture.set_sharding_mesh(mesh)


def _parameter_groups(state: Any) -> Iterator[Any]:
    for part in state._state_ctx.all_states:
        groups = getattr(part, "_fsdp_param_groups", None)  # absent until torch 2.11
        yield from (part._fsdp_param_group,) if groups is None and part._fsdp_param_group else groups or ()


PATCHES: Patches = {
    "torch.distributed._composable.fsdp._fsdp_state": {  # until torch 2.5
        "counting micro-batches of FSDP 2": patch_fsdp2
    },
    "torch.distributed.fsdp._fully_shard._fsdp_state": {"counting micro-batches of FSDP 2": patch_fsdp2},
    "torch.distributed.fsdp.fully_sharded_data_parallel": {"counting micro-batches of FSDP": patch_fsdp1},
    "torch.nn.parallel.data_parallel": {"counting micro-batches of DataParallel": patch_data_parallel},
    "torch.nn.parallel.distributed": {"counting micro-batches of DDP": patch_distributed},
}
