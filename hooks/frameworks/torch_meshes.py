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

    def init_device_mesh(*_args: object, **_kwargs: object) -> RunningHook:
        mesh = yield
        capture.set_mesh(mesh)

    wrap_functions(module, capture, {"init_device_mesh": init_device_mesh})


def patch_tensor_parallel(module: ModuleType, capture: Capture) -> None:
    """Learn which ranks a module's tensors are split over."""
    original = module.parallelize_module

    def parallelize_module(*args: object, **kwargs: object) -> RunningHook:
        mesh = argument(original, "device_mesh", args, kwargs)
        if mesh is not None and mesh.ndim == 1:
            capture.set_tensor_mesh(mesh)
        yield

    wrap_functions(module, capture, {"parallelize_module": parallelize_module})


PATCHES: Patches = {
    "torch.distributed.device_mesh": {"detecting the layout of meshes": patch_device_mesh},
    "torch.distributed.tensor.parallel.api": {"detecting tensor parallelism": patch_tensor_parallel},
}
