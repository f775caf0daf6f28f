"""Hooks around torch itself: optimizers, GradScaler, data loaders, process groups, RPC, meshes and profilers."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from perfscope.hooks.facts.launched_rank import note_moment
from perfscope.hooks.frameworks.optimizer_steps import report_compiled_steps, wrap_outermost_step
from perfscope.hooks.frameworks.wrapping import argument, report_recomputation, wrap_functions
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.introspection import COMPILER, FIRST_LOOKS, TRACERS, subclasses

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


def patch_optimizer(module: ModuleType, capture: Capture) -> None:
    """Report every outermost optimizer step.

    torch wraps the ``step`` of each optimizer class when the first object of it is built. Ours goes around that
    wrapper, not into its post-hooks: those run inside the ``Optimizer.step`` range, which a step's end must not cut.
    A process that only builds an optimizer does not train yet, so that building one must not begin the capture.
    """
    optimizer_class = module.Optimizer
    original, clear = optimizer_class._patch_step_function, optimizer_class.zero_grad

    @functools.wraps(original)
    def patch_step_function(self: Any) -> None:
        original(self)
        value_or_none(lambda: wrap_step(type(self), capture))
        value_or_none(lambda: capture.on_optimizer_built(self))

    @functools.wraps(clear)
    def zero_grad(self: Any, *args: object, **kwargs: object) -> Any:
        if not COMPILER.is_tracing():
            capture.on_gradients_cleared(self, time.monotonic_ns())
        return clear(self, *args, **kwargs)

    optimizer_class._patch_step_function = patch_step_function
    optimizer_class.zero_grad = zero_grad
    for loaded_class in subclasses(optimizer_class):
        if getattr(loaded_class.step, "hooked", False):
            wrap_step(loaded_class, capture)


def wrap_step(optimizer_class: Any, capture: Capture) -> None:
    """Report the outermost steps of one optimizer class; a step inside a step is part of it."""
    wrap_outermost_step(optimizer_class, capture)
    optimizer_class.step.hooked = True  # else torch would wrap it once more


def patch_torch(_module: ModuleType, _capture: Capture) -> None:
    """Note when torch was loaded: this runs when its own code has run."""
    note_moment("torch_loaded_ns")
    COMPILER.use_torch()
    TRACERS.use_torch()


def patch_compilation(module: ModuleType, capture: Capture) -> None:
    """Time torch.compile. Callbacks could be registered instead, but ``torch.compiler.reset`` clears those."""

    def begin(_handler: object, *_args: object) -> RunningHook:
        yield
        capture.activities.on_compile_begin()

    def end(_handler: object, *_args: object) -> RunningHook:
        capture.activities.on_compile_end()
        yield

    hooks = {"run_start_callbacks": begin, "run_end_callbacks": end}
    wrap_functions(module.CompilationCallbackHandler, capture, hooks)


def patch_dynamo(module: ModuleType, _capture: Capture) -> None:
    """Count steps inside compiled functions."""
    report_compiled_steps(module.disable)


def patch_grad_scaler(module: ModuleType, capture: Capture) -> None:
    """Report GradScaler.update, which comes once an iteration even where the optimizer step was skipped.

    A scaler that only scales the loss ends no step: the optimizer does, until the first ``step`` of a scaler.
    """
    scaler_class = module.GradScaler
    step, update = scaler_class.step, scaler_class.update
    stepped: set[int] = set()
    is_armed = False

    @functools.wraps(step)
    def noting_step(self: Any, *args: object, **kwargs: object) -> Any:
        nonlocal is_armed
        if not is_armed:
            is_armed = True
            capture.arm("grad_scaler")
        stepped.add(id(self))
        return step(self, *args, **kwargs)

    @functools.wraps(update)
    def reporting_update(self: Any, *args: object, **kwargs: object) -> Any:
        result = update(self, *args, **kwargs)
        if is_armed:
            capture.on_scaler_update(self, has_stepped=id(self) in stepped if getattr(self, "_enabled", True) else None)
        stepped.discard(id(self))
        return result

    scaler_class.step, scaler_class.update = noting_step, reporting_update


def patch_data_loader(module: ModuleType, capture: Capture) -> None:
    """Time every wait for a batch, and for the workers of a loader to start."""
    iterator_class = module._BaseDataLoaderIter
    first_batches = FIRST_LOOKS
    original = iterator_class.__next__

    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        began_ns = time.monotonic_ns()
        try:
            batch = original(self)
        except BaseException:
            capture.on_loader_ended(time.monotonic_ns() - began_ns)
            raise
        now_ns = time.monotonic_ns()
        capture.on_batch_loaded(batch, now_ns - began_ns, now_ns)
        nonlocal first_batches
        if first_batches:
            first_batches -= 1
            capture.on_batch(batch)
        return batch

    def start_workers(loader: object) -> RunningHook:
        began_ns = time.monotonic_ns()
        yield
        capture.setup.add_loader(loader)
        capture.on_loader_started(time.monotonic_ns() - began_ns)

    wrap_functions(module.DataLoader, capture, {"__iter__": start_workers})
    iterator_class.__next__ = next_batch


def patch_process_groups(module: ModuleType, capture: Capture) -> None:
    """Arm torch's recorder before the default group, learn the rank with it, and close a window before it goes."""

    def init_process_group(*_args: object, **_kwargs: object) -> RunningHook:
        capture.arm_recorder()
        yield
        capture.on_process_group()

    def destroy_process_group(group: object = None) -> RunningHook:
        if group is None:
            capture.on_process_group_destroyed()
        yield

    hooks = {"init_process_group": init_process_group, "destroy_process_group": destroy_process_group}
    wrap_functions(module, capture, hooks)


def patch_device_mesh(module: ModuleType, capture: Capture) -> None:
    """Learn the layout from a mesh whose dimensions have names."""

    def make_mesh(*_args: object, **_kwargs: object) -> RunningHook:
        mesh = yield
        capture.set_mesh(mesh)

    wrap_functions(module, capture, {"init_device_mesh": make_mesh})
    if hasattr(module, "DeviceMesh") and hasattr(module.DeviceMesh, "_unflatten"):  # absent until torch 2.9
        wrap_functions(module.DeviceMesh, capture, {"_unflatten": make_mesh})


def patch_tensor_parallel(module: ModuleType, capture: Capture) -> None:
    """Learn which ranks a module's tensors are split over, and which ranks share its experts."""
    original = module.parallelize_module

    def parallelize_module(*args: object, **kwargs: object) -> RunningHook:
        mesh = argument(original, "device_mesh", args, kwargs)
        if mesh is not None:
            capture.set_mesh(mesh)
            capture.set_tensor_mesh(mesh, argument(original, "parallelize_plan", args, kwargs))
        yield

    wrap_functions(module, capture, {"parallelize_module": parallelize_module})


def patch_rpc(module: ModuleType, capture: Capture) -> None:
    """Learn the rank of an RPC worker."""

    def init_rpc(*_args: object, **_kwargs: object) -> RunningHook:
        yield
        capture.on_process_group()

    wrap_functions(module, capture, {"init_rpc": init_rpc})


def patch_distributed_optimizer(module: ModuleType, capture: Capture) -> None:
    """Count the steps of DistributedOptimizer in the worker that calls them."""

    def report(optimizer: Any, _result: object, _now_ns: int) -> None:
        capture.on_step_end("rpc_optimizer", optimizer)

    wrap_outermost_step(module.DistributedOptimizer, capture, report, before=lambda: capture.arm("rpc_optimizer"))


def patch_checkpointing(module: ModuleType, capture: Capture) -> None:
    """Notice that layers are recomputed, in either of PyTorch's two ways."""
    report_recomputation(module.CheckpointFunction, "forward", capture)
    frame = getattr(module, "_CheckpointFrame", None)  # absent in old versions
    if frame is not None:
        report_recomputation(frame, "__init__", capture)


def patch_profiler(module: ModuleType, capture: Capture) -> None:
    """Notice a profiler of the script's own before it starts, and its end."""

    def start(profiler: object, *_args: object, **_kwargs: object) -> RunningHook:
        if getattr(profiler, "enabled", True):
            capture.on_profiler_start(profiler)
        try:
            yield
        except GeneratorExit:  # it did not start
            capture.on_profiler_end(profiler)
            raise

    def end(profiler: object, *_args: object, **_kwargs: object) -> RunningHook:
        try:
            yield
        finally:
            capture.on_profiler_end(profiler)

    wrap_functions(module.profile, capture, {"_prepare_trace": start, "_start_trace": start, "__exit__": end})
    for name in ("emit_nvtx", "emit_itt"):  # what Megatron's --profile enters: one profiler's state a thread
        if hasattr(module, name):
            wrap_functions(getattr(module, name), capture, {"__enter__": start, "__exit__": end})


PATCHES: Patches = {
    "torch": {"noting when torch is loaded": patch_torch},
    "torch._dynamo": {"counting compiled optimizer steps": patch_dynamo},
    "torch._dynamo.callback": {"timing torch.compile": patch_compilation},
    "torch.amp.grad_scaler": {"counting GradScaler iterations": patch_grad_scaler},
    "torch.autograd.profiler": {"detecting other profilers": patch_profiler},
    "torch.distributed.device_mesh": {"detecting the layout of meshes": patch_device_mesh},
    "torch.distributed.distributed_c10d": {"detecting the rank": patch_process_groups},
    "torch.distributed.optim.optimizer": {"counting steps of DistributedOptimizer": patch_distributed_optimizer},
    "torch.distributed.rpc": {"detecting the rank of RPC workers": patch_rpc},
    "torch.distributed.tensor.parallel.api": {"detecting tensor parallelism": patch_tensor_parallel},
    "torch.optim.optimizer": {"counting optimizer steps": patch_optimizer},
    "torch.utils.checkpoint": {"detecting recomputation": patch_checkpointing},
    "torch.utils.data.dataloader": {"timing data loaders": patch_data_loader},
}
