"""How much of a model one rank's parameters are, so that the ranks of one replica add up to the model exactly.

A parameter that is sharded over data-parallel ranks counts whole on each of them: one replica is one model. Split by
tensor parallelism, each rank counts its part; what every rank of the group holds alike is counted by the first.
"""

from __future__ import annotations

import sys
from typing import Any

#: Names of mesh dimensions over which tensors are split, not replicas.
_TENSOR_AXES = ("tp", "tensor")


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """The shape over data-parallel shards: ZeRO stage 3 keeps it beside an empty tensor, a DTensor is that large."""
    shape = [int(size) for size in getattr(parameter, "ds_shape", parameter.shape)]
    for dimension, parts in _tensor_splits(parameter):
        shape[dimension] //= parts
    return tuple(shape)


def stands_for(parameter: Any) -> bool:
    """Whether this rank is the one of its tensor- and pipeline-parallel groups that counts a parameter."""
    if getattr(parameter, "shared", False) is True:
        return False  # Megatron's copy of the embedding, on the last stage
    if _megatron_rank() != 0 and not _placements(parameter):
        return bool(getattr(parameter, "tensor_model_parallel", False))
    return all(index == 0 or placement.is_shard() for index, _, placement in _placements(parameter))


def _megatron_rank() -> int:
    """This rank's place among those that Megatron splits tensors over; 0 without Megatron."""
    state = sys.modules.get("megatron.core.parallel_state")
    try:
        return int(state.get_tensor_model_parallel_rank()) if state is not None else 0
    except (AssertionError, RuntimeError):
        return 0


def _tensor_splits(parameter: Any) -> list[tuple[int, int]]:
    """The dimensions of a DTensor that tensor parallelism splits, and into how many parts."""
    return [(placement.dim, size) for _, size, placement in _placements(parameter) if placement.is_shard()]


def _placements(parameter: Any) -> list[tuple[int, int, Any]]:
    """This rank's place in each tensor-parallel dimension of a DTensor's mesh, its size, and how the tensor lies."""
    mesh = getattr(parameter, "device_mesh", None)
    names = getattr(mesh, "mesh_dim_names", None) or ()
    return [
        (mesh.get_local_rank(axis), mesh.size(axis), parameter.placements[axis])
        for axis, name in enumerate(names)
        if name.lower().startswith(_TENSOR_AXES)
    ]
