"""Hooks around torch.distributed.rpc: who a worker is, and the steps of an optimizer that is spread over workers.

A worker that only serves others, as a parameter server does, runs their optimizers in threads of its own: those steps
belong to whoever called it. torch.profiler records no Python call to another worker, so that those that wait for the
answer get ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.optimizer_steps import wrap_outermost_step
from perfscope.hooks.frameworks.wrapping import wrap_functions

if TYPE_CHECKING:
    from collections.abc import Sized
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


def patch_rpc(module: ModuleType, capture: Capture) -> None:
    """Learn the rank of a worker."""

    def init_rpc(*_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.on_process_group()

    def rpc_sync(to: object, func: object, *_args: object, **_kwargs: object) -> RunningHook:
        return _mark_wait(capture, f"rpc_sync#{getattr(func, '__name__', 'call')}(-> {getattr(to, 'name', to)})")

    wrap_functions(module, capture, {"init_rpc": init_rpc})
    wrap_functions(module, capture, {"rpc_sync": rpc_sync})


def _mark_wait(capture: Capture, name: str) -> RunningHook:
    """Put a range around a call that waits for another worker, inside windows that record ranges."""
    profiler_range = capture.begin_range(name)
    try:
        yield
    finally:
        if profiler_range is not None:
            capture.end_range(profiler_range)


def patch_distributed_optimizer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of DistributedOptimizer in the worker that calls them."""

    def report(optimizer: Any, _result: object, _now_ns: int) -> None:
        capture.on_step_end("rpc_optimizer", optimizer)

    def wait_for_all(futures: Sized) -> RunningHook:
        return _mark_wait(capture, f"rpc_async#optimizers of {len(futures)} workers")

    wrap_outermost_step(module.DistributedOptimizer, capture, report, before=lambda: capture.arm("rpc_optimizer"))
    wrap_functions(module, capture, {"_wait_for_all": wait_for_all})


PATCHES: Patches = {
    "torch.distributed.optim.optimizer": {"counting steps of DistributedOptimizer": patch_distributed_optimizer},
    "torch.distributed.rpc": {"detecting the rank of RPC workers": patch_rpc},
}
