"""Hooks around torch's device meshes and around tensor parallelism, which splits modules over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.hooks.frameworks.wrapping import argument, wrap_functions

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


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


PATCHES: Patches = {
    "torch.distributed.device_mesh": {"detecting the layout of meshes": patch_device_mesh},
    "torch.distributed.tensor.parallel.api": {"detecting tensor parallelism": patch_tensor_parallel},
}
