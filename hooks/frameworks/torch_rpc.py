"""Hooks around torch.distributed.rpc: who a worker is, and the steps of an optimizer that is spread over workers.

A worker that only serves others, as a parameter server does, runs their optimizers in threads of its own: those steps
belong to whoever called it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.optimizer_steps import wrap_outermost_step
from perfscope.hooks.frameworks.wrapping import wrap_functions

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


def patch_rpc(module: ModuleType, capture: Capture) -> None:
    """Learn the rank of a worker."""

    def init_rpc(*_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.on_process_group()

    wrap_functions(module, capture, {"init_rpc": init_rpc})


def patch_distributed_optimizer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of DistributedOptimizer in the worker that calls them."""

    def report(optimizer: Any, _result: object) -> None:
        capture.on_step_end("rpc_optimizer", optimizer)

    wrap_outermost_step(module.DistributedOptimizer, report, before=lambda: capture.arm("rpc_optimizer"))


PATCHES: Patches = {
    "torch.distributed.optim.optimizer": {"counting steps of DistributedOptimizer": patch_distributed_optimizer},
    "torch.distributed.rpc": {"detecting the rank of RPC workers": patch_rpc},
}
