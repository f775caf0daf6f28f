"""Wrappers around torch.distributed.rpc: who a worker is, and the steps of an optimizer that is spread over workers.

A worker that only serves others, as a parameter server does, runs their optimizers in threads of its own: those steps
belong to whoever asked for them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.nested_optimizers import wrap_outermost

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture


def patch_rpc(module: ModuleType, capture: Capture) -> None:
    """Learn the rank of a worker."""
    original = module.init_rpc

    @functools.wraps(original)
    def init_rpc(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        capture.process_group_ready()
        return result

    module.init_rpc = init_rpc  # type: ignore[attr-defined]


def patch_distributed_optimizer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of DistributedOptimizer where they are asked for."""

    def report(optimizer: Any, _result: Any) -> None:
        capture.boundary("rpc_optimizer", optimizer)

    wrap_outermost(module.DistributedOptimizer, report, before=lambda: capture.arm("rpc_optimizer"))


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "torch.distributed.rpc": [("learning the rank of RPC workers", patch_rpc)],
    "torch.distributed.optim.optimizer": [("counting steps of DistributedOptimizer", patch_distributed_optimizer)],
}
