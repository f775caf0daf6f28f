"""Wrappers around torch itself: optimizers, GradScaler, DistributedDataParallel, data loaders, groups and profilers.

Each function here patches one module that was just imported. The original is always called, with its own arguments, and
its result or exception is passed on.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.nested_optimizers import compiling, reach_out_of_graphs, wrap_outermost
from perfscope.hooks.guard import value_or_none

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from perfscope.hooks.capture import Capture


def patch_optimizer(module: ModuleType, capture: Capture) -> None:
    """Report every outermost optimizer step.

    torch wraps the ``step`` of each optimizer class when the first object of it is built. Ours goes around that
    wrapper, not into its post-hooks: those run inside the ``Optimizer.step`` range, which a step's end must not cut.
    """
    optimizer_class = module.Optimizer
    original = optimizer_class._patch_step_function

    @functools.wraps(original)
    def patch_step_function(self: Any) -> None:
        original(self)
        value_or_none(lambda: wrap_step(type(self), capture))

    optimizer_class._patch_step_function = patch_step_function
    clear = optimizer_class.zero_grad

    @functools.wraps(clear)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not compiling():
            capture.gradients_cleared()
        return clear(self, *args, **kwargs)

    optimizer_class.zero_grad = zero_grad
    for loaded in _subclasses(optimizer_class):
        if getattr(loaded.step, "hooked", False):
            wrap_step(loaded, capture)


def wrap_step(optimizer_class: Any, capture: Capture) -> None:
    """Report the outermost steps of one optimizer class; a step inside a step is part of it."""

    def report(optimizer: Any, _result: Any) -> None:
        capture.optimizer_stepped(optimizer)

    wrap_outermost(optimizer_class, report)
    optimizer_class.step.hooked = True  # else torch would wrap it once more


def patch_dynamo(module: ModuleType, _capture: Capture) -> None:
    """Count steps inside compiled functions."""
    reach_out_of_graphs(module.disable)


def patch_grad_scaler(module: ModuleType, capture: Capture) -> None:
    """Report GradScaler.update, which comes once an iteration even where the optimizer step was skipped."""
    scaler_class = module.GradScaler
    stepped: set[int] = set()

    def before_scale(_self: Any) -> None:
        capture.arm("grad_scaler")

    def before_step(self: Any) -> None:
        capture.arm("grad_scaler")
        stepped.add(id(self))

    def after_update(self: Any) -> None:
        capture.scaler_updated(self, stepped=id(self) in stepped if self.is_enabled() else None)
        stepped.discard(id(self))

    _wrap(scaler_class, "scale", before=before_scale)
    _wrap(scaler_class, "step", before=before_step)
    _wrap(scaler_class, "update", after=after_update)


def patch_data_loader(module: ModuleType, capture: Capture) -> None:
    """Time every wait for a batch."""
    iterator_class = module._BaseDataLoaderIter
    original = iterator_class.__next__

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        began_ns = time.monotonic_ns()
        batch = original(self)
        capture.batch_loaded(batch, time.monotonic_ns() - began_ns)
        return batch

    iterator_class.__next__ = next_batch


def patch_process_groups(module: ModuleType, capture: Capture) -> None:
    """Learn the rank when the default group is there, and close a window before it goes."""
    begin, end = module.init_process_group, module.destroy_process_group

    @functools.wraps(begin)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = begin(*args, **kwargs)
        capture.process_group_ready()
        return result

    @functools.wraps(end)
    def destroy_process_group(group: Any = None) -> Any:
        if group is None:
            capture.group_is_destroyed()
        return end(group)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]


def patch_checkpointing(module: ModuleType, capture: Capture) -> None:
    """Notice that layers are recomputed, in either of PyTorch's two ways."""
    frame = getattr(module, "_CheckpointFrame", None)  # absent in old versions
    if frame is not None:
        begin = frame.__init__

        @functools.wraps(begin)
        def init(*args: Any, **kwargs: Any) -> None:
            capture.recomputes()
            begin(*args, **kwargs)

        frame.__init__ = init
    forward = module.CheckpointFunction.forward

    @functools.wraps(forward)
    def recomputing_forward(*args: Any) -> Any:
        capture.recomputes()
        return forward(*args)

    module.CheckpointFunction.forward = staticmethod(recomputing_forward)


def patch_profiler(module: ModuleType, capture: Capture) -> None:
    """Notice a profiler of the script's own before it starts."""

    def before(_self: Any) -> None:
        capture.profiler_starts()

    _wrap(module.profile, "_prepare_trace", before=before)
    _wrap(module.profile, "_start_trace", before=before)
    for name in ("emit_nvtx", "emit_itt"):  # what Megatron's --profile enters: one profiler's state a thread
        if hasattr(module, name):
            _wrap(getattr(module, name), "__enter__", before=before)


def _wrap(
    owner: Any, name: str, *, before: Callable[[Any], None] | None = None, after: Callable[[Any], None] | None = None
) -> None:
    """Call something before or after a method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(self)
        result = original(self, *args, **kwargs)
        if after is not None:
            after(self)
        return result

    setattr(owner, name, method)


def _subclasses(parent: Any) -> list[Any]:
    found = []
    for child in parent.__subclasses__():
        found += [child, *_subclasses(child)]
    return found


PATCHES: dict[str, list[tuple[str, Callable[[ModuleType, Capture], None]]]] = {
    "torch.optim.optimizer": [("counting optimizer steps", patch_optimizer)],
    "torch.amp.grad_scaler": [("counting GradScaler iterations", patch_grad_scaler)],
    "torch.utils.data.dataloader": [("timing data loaders", patch_data_loader)],
    "torch.distributed.distributed_c10d": [("learning the rank", patch_process_groups)],
    "torch._dynamo": [("counting compiled optimizer steps", patch_dynamo)],
    "torch.utils.checkpoint": [("noticing recomputation", patch_checkpointing)],
    "torch.autograd.profiler": [("noticing other profilers", patch_profiler)],
}
