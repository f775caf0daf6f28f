"""Hooks around torch's device meshes and around tensor parallelism, which splits modules over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.hooks.frameworks.wrapping import argument, wrap_functions
from perfscope.wire.axes import MESH_AXES

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.hooks.capture import Capture
    from perfscope.hooks.frameworks.wrapping import Patches, RunningHook


#: Styles of tensor parallelism; those of experts and of sequences are the framework's own.
_STYLES = "torch.distributed.tensor.parallel."


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
            plan = argument(original, "parallelize_plan", args, kwargs)
            if mesh.ndim == 1 and _splits_tensors(mesh, plan):
                capture.set_tensor_mesh(mesh)
        yield

    wrap_functions(module, capture, {"parallelize_module": parallelize_module})


def _splits_tensors(mesh: Any, plan: Any) -> bool:
    """Whether a plan is one of tensor parallelism: by the name of the mesh, or else by its styles."""
    axis = MESH_AXES.get(mesh.mesh_dim_names[0]) if mesh.mesh_dim_names else None
    if axis is not None:
        return axis == "tp"
    styles = list(plan.values()) if isinstance(plan, dict) else [plan]
    return all(type(style).__module__.startswith(_STYLES) for style in styles)


PATCHES: Patches = {
    "torch.distributed.device_mesh": {"detecting the layout of meshes": patch_device_mesh},
    "torch.distributed.tensor.parallel.api": {"detecting tensor parallelism": patch_tensor_parallel},
}
