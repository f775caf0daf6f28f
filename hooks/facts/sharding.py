"""How much of a model one rank's parameters are, so that the ranks of one replica add up to the model exactly.

A parameter that is sharded over data-parallel ranks counts whole on each of them: one replica is one model. Split by
tensor parallelism, each rank counts its part; a parameter that is not split is counted by the group's first rank.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from perfscope.hooks.facts.module_tree import named_modules, named_parameters

#: Names of mesh dimensions over which tensors are split, not replicas.
_TENSOR_AXES = ("tp", "tensor")
_FSDP1 = "_fsdp_wrapped_module."
#: Meshes without names that modules were split over.
_tensor_meshes: list[Any] = []


def add_tensor_mesh(mesh: Any) -> None:
    """Remember a mesh of one dimension that tensor parallelism uses."""
    if not mesh.mesh_dim_names and mesh not in _tensor_meshes:
        _tensor_meshes.append(mesh)


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """The shape over all shards: ZeRO stage 3 keeps it beside an empty tensor, a DTensor states it of itself."""
    return tuple(int(size) for size in getattr(parameter, "ds_shape", parameter.shape))


def tensor_parts(parameter: Any) -> int:
    """Into how many parts tensor parallelism splits a DTensor."""
    return math.prod(size for _, size, placement in _placements(parameter) if placement.is_shard())


def tensor_rank(parameters: Iterable[Any]) -> int:
    """This rank's index among the ranks that the model's tensors are split over; 0 where no tensor is split."""
    indices = (_index_of_part(parameter) for parameter in parameters)
    return max((index for index in indices if index is not None), default=0)


def is_counted_by(parameter: Any, rank: int) -> bool:
    """Whether a tensor-parallel rank counts a parameter: each rank its part of a split one, rank 0 all the others."""
    if getattr(parameter, "shared", False) is True:
        return False  # Megatron's copy of the embedding, on the last stage
    return rank == 0 or _index_of_part(parameter) is not None


def _index_of_part(parameter: Any) -> int | None:
    """This rank's index among the parts of a parameter; None for one that is not split."""
    if getattr(parameter, "tensor_model_parallel", False) is True:
        return _megatron_rank()
    return next((index for index, _, placement in _placements(parameter) if placement.is_shard()), None)


def _megatron_rank() -> int:
    state: Any = sys.modules.get("megatron.core.parallel_state")
    try:
        return int(state.get_tensor_model_parallel_rank()) if state is not None else 0
    except (AssertionError, RuntimeError):
        return 0


def _placements(parameter: Any) -> list[tuple[int, int, Any]]:
    """This rank's index in each tensor-parallel dimension of a DTensor's mesh, its size, and how the tensor lies."""
    mesh: Any = getattr(parameter, "device_mesh", None)
    names = getattr(mesh, "mesh_dim_names", None) or (("tp",) if mesh is not None and mesh in _tensor_meshes else ())
    coordinates = mesh.get_coordinate() if names else None
    return [
        (coordinates[axis] if coordinates else 0, mesh.size(axis), parameter.placements[axis])
        for axis, name in enumerate(names)
        if name.lower().startswith(_TENSOR_AXES)
    ]


class FlatPart(NamedTuple):
    """A parameter that FSDP 1 keeps as a piece of a flat one.

    Attributes:
        name: Its name in the whole model.
        owner: The module that it belongs to.
        shape: Its whole shape.
        dtype: Its type.
        requires_grad: Whether it has a gradient.
    """

    name: str
    owner: Any
    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool


def flat_parameters(module: Any) -> Iterator[FlatPart]:
    """The original parameters inside the flat ones of FSDP 1, which store their names and shapes."""
    for prefix, part in named_modules(module):
        flat: Any = getattr(getattr(part, "_handle", None), "flat_param", None)
        for info, name, shape in _flattened(flat):
            full = f"{prefix}.{name}" if prefix else name
            yield FlatPart(full.replace(_FSDP1, ""), info.module, tuple(shape), flat.dtype, flat.requires_grad)


def _flattened(flat: Any) -> Iterable[tuple[Any, str, Any]]:
    if flat is None:
        return ()
    return zip(flat._param_infos, flat._fqns, flat._shapes, strict=True)


def unflattened_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """The parameters beside the flat ones."""
    flat = [part._handle.flat_param for _, part in named_modules(module) if getattr(part, "_handle", None) is not None]
    pieces = {id(piece) for parameter in flat for piece in (parameter, *(parameter._params or ()))}
    return ((name, parameter) for name, parameter in named_parameters(module) if id(parameter) not in pieces)
