"""What a tensor of a checkpoint is for, by the keys that lead to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfscope.sources.checkpoints.safetensors import StoredTensor
from perfscope.sources.checkpoints.torch_files import Tensor, TorchFile, item_bytes
from perfscope.tables.checkpoint import Held, Kind, Role

_MOMENTS = frozenset({
    "exp_avg", "exp_avg_sq", "exp_avg_diff", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta", "exp_inf",
    "state1", "state2",
})  # fmt: skip
_MASTERS = frozenset({
    "fp32", "fp32_param", "fp32_params", "fp32_from_fp16_params", "fp32_flat_groups", "fp32_groups", "master_weights",
    "fp32_groups_flat", "single_partition_of_fp32_groups", "master_param", "fp32_from_float16_groups",
})  # fmt: skip
_MASTERS_IN_OPTIMIZER = frozenset({"param", "master", "params"})
_FLOATS = ("float", "bfloat")
_OPTIMIZER_KINDS = (Kind.OPTIMIZER, Kind.EXPERT_OPTIMIZER)


def role_of(path: Sequence[str], dtype: str, kind: Kind) -> Role:
    """Say what a tensor is for, by its keys, its kind of number and the file it is in."""
    parts = {part for key in path for part in key.lower().split(".")}
    in_optimizer = kind in _OPTIMIZER_KINDS or any(part.startswith("optim") for part in parts)
    if parts & _MOMENTS and (in_optimizer or kind is Kind.UNIVERSAL or "state" in parts):
        return Role.MOMENTS
    if parts & _MASTERS or (in_optimizer and parts & _MASTERS_IN_OPTIMIZER and dtype.startswith(_FLOATS)):
        return Role.MASTER
    rng = any("rng" in part or "random" in part for part in parts)
    if in_optimizer or rng or "lr_scheduler" in parts or not dtype.startswith(_FLOATS):
        return Role.OTHER
    return Role.WEIGHTS


def universal_role(name: str) -> Role:
    """The role of a file of DeepSpeed's universal format."""
    if name == "fp32.pt":
        return Role.MASTER
    return Role.MOMENTS if name.startswith("exp_avg") else Role.OTHER


def held_in_torch_file(file: TorchFile, kind: Kind, name: str) -> tuple[tuple[Held, ...], int]:
    """Sum a file's tensors by role; with the bytes of its storages that no tensor shows."""
    shown: dict[str, list[tuple[int, int]]] = {}
    of_storage: dict[str, tuple[Role, str]] = {}
    for tensor in reversed(file.tensors):  # the first name of a shared storage decides
        key = tensor.storage.key
        shown.setdefault(key, []).append((tensor.offset, tensor.offset + tensor.items))
        role = universal_role(name) if kind is Kind.UNIVERSAL else role_of(tensor.path, tensor.dtype, kind)
        if tensor.items:
            of_storage[key] = (role, tensor.dtype)
    storages = {tensor.storage.key: tensor for tensor in file.tensors}
    sums: dict[tuple[Role, str], list[int]] = {}
    unused = 0
    for key, (role, dtype) in of_storage.items():
        covered = _covered(shown[key])
        size = item_bytes(dtype) or 0
        unused += max(0, _stored_bytes(storages[key], file) - covered * size)
        entry = sums.setdefault((role, dtype), [0, 0])
        entry[0] += covered
        entry[1] += covered * size
    return tuple(Held(role, dtype, *counts) for (role, dtype), counts in sorted(sums.items())), unused


def _stored_bytes(tensor: Tensor, file: TorchFile) -> int:
    size = file.stored_bytes.get(tensor.storage.key)
    return tensor.storage.items * (item_bytes(tensor.storage.dtype) or 0) if size is None else size


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """How many items spans cover together."""
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def held_in_safetensors(tensors: Iterable[StoredTensor]) -> tuple[Held, ...]:
    """Sum the tensors of a safetensors header by kind of number."""
    sums: dict[str, list[int]] = {}
    for tensor in tensors:
        entry = sums.setdefault(tensor.dtype, [0, 0])
        entry[0] += tensor.elements
        entry[1] += tensor.size_bytes
    return tuple(Held(Role.WEIGHTS, dtype, *counts) for dtype, counts in sorted(sums.items()))
