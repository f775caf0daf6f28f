"""Wrappers around the modules that replicate or shard a model: DataParallel, DDP, FSDP 1 and FSDP 2.

The outermost of them sees what enters the model, once for each micro-batch. The parts that FSDP wraps inside it, and
the forward passes that activation checkpointing runs again, are not counted.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.nested_optimizers import compiling
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture

_inside = threading.local()


def patch_data_parallel(module: ModuleType, capture: Capture) -> None:
    """Count what enters nn.DataParallel, which splits it over the devices of this process."""
    _count_outermost(module.DataParallel, capture)


def patch_distributed(module: ModuleType, capture: Capture) -> None:
    """Count what enters DistributedDataParallel, and learn the replicas."""
    _count_outermost(module.DistributedDataParallel, capture)
    _after_construction(
        module.DistributedDataParallel, lambda ddp: capture.tell(lambda told: _tell_replicas(told, ddp.process_group))
    )


def patch_fsdp1(module: ModuleType, capture: Capture) -> None:
    """Count what enters the root FullyShardedDataParallel, and learn the ranks that hold its shards."""
    fsdp_class = module.FullyShardedDataParallel
    _count_outermost(fsdp_class, capture, lambda fsdp: getattr(fsdp, "_is_root", None) is not False)
    _after_construction(fsdp_class, lambda fsdp: capture.tell(lambda told: _tell_fsdp1(told, fsdp)))


def patch_fsdp2(module: ModuleType, capture: Capture) -> None:
    """Count what enters the root module of ``fully_shard``, and learn its mesh."""
    state_class = module.FSDPState
    original = state_class._root_pre_forward

    @functools.wraps(original)
    def root_pre_forward(self: Any, root: Any, args: Any, kwargs: Any) -> Any:
        is_root = not compiling() and value_or_none(lambda: self._state_ctx.iter_forward_root is None)
        result = original(self, root, args, kwargs)
        if is_root and value_or_none(lambda: root.training):
            capture.tell(lambda told: _tell_fsdp2(told, root, args, kwargs))
        return result

    state_class._root_pre_forward = root_pre_forward


def _count_outermost(wrapper_class: Any, capture: Capture, is_root: Callable[[Any], bool] = lambda _: True) -> None:
    original = wrapper_class.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or getattr(_inside, "forward", False) or not is_root(self):
            return original(self, *args, **kwargs)
        capture.trains(self)
        capture.forward(args, kwargs)
        _inside.forward = True
        try:
            return original(self, *args, **kwargs)
        finally:
            _inside.forward = False

    wrapper_class.forward = forward


def _after_construction(wrapper_class: Any, report: Callable[[Any], None]) -> None:
    construct = wrapper_class.__init__

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        report(self)

    wrapper_class.__init__ = init


def _tell_replicas(capture: Capture, group: Any) -> None:
    capture.axis("dp", group.rank(), group.size())


def _tell_fsdp1(capture: Capture, fsdp: Any) -> None:
    """Hybrid sharding shards inside a node and replicates over nodes: together they are the replicas."""
    shards = fsdp.process_group
    nodes = getattr(fsdp, "_inter_node_pg", None)
    if nodes is None:
        capture.axis("dp", shards.rank(), shards.size())
    else:
        capture.axis("dp", nodes.rank() * shards.size() + shards.rank(), nodes.size() * shards.size())


def _tell_fsdp2(capture: Capture, root: Any, args: Any, kwargs: Any) -> None:
    if capture.steps == 0:
        meshes = [mesh for parameter in root.parameters() if (mesh := getattr(parameter, "device_mesh", None))]
        largest = max(meshes, key=lambda mesh: mesh.ndim, default=None)
        if largest is not None and largest.ndim == 1:
            capture.axis("dp", int(largest.get_local_rank()), int(largest.size()))
        elif largest is not None:
            capture.mesh(largest)
    capture.trains(root)
    capture.forward(args, kwargs)


_FSDP2: list[tuple[str, Callable[[ModuleType, Capture], None]]] = [("counting micro-batches of FSDP 2", patch_fsdp2)]

PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "torch.nn.parallel.data_parallel": [("counting micro-batches of DataParallel", patch_data_parallel)],
    "torch.nn.parallel.distributed": [("counting micro-batches of DDP", patch_distributed)],
    "torch.distributed.fsdp.fully_sharded_data_parallel": [("counting micro-batches of FSDP", patch_fsdp1)],
    "torch.distributed.fsdp._fully_shard._fsdp_state": _FSDP2,
    "torch.distributed._composable.fsdp._fsdp_state": _FSDP2,  # until torch 2.5
}
