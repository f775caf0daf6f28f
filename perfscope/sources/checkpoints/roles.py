"""The role of a tensor of a checkpoint, by the keys on the path to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfscope.sources.checkpoints.safetensors import StoredTensor
from perfscope.sources.checkpoints.torch_files import Tensor, TorchFile, item_bytes
from perfscope.tables.checkpoint import Kind, Role, TensorGroup

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


def find_role(path: Sequence[str], dtype: str, kind: Kind) -> Role:
    """The role of a tensor, by its keys, its dtype and the kind of its file."""
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


def find_universal_role(name: str) -> Role:
    """The role of a file of DeepSpeed's universal format."""
    if name == "fp32.pt":
        return Role.MASTER
    return Role.MOMENTS if name.startswith("exp_avg") else Role.OTHER


def sum_torch_tensors(file: TorchFile, kind: Kind, name: str) -> tuple[tuple[TensorGroup, ...], int]:
    """The tensors of a file, summed by role and dtype, and the bytes of its storages outside of every tensor."""
    spans: dict[str, list[tuple[int, int]]] = {}  # of the tensors in each storage
    groups: dict[str, tuple[Role, str]] = {}
    for tensor in reversed(file.tensors):  # so that the first tensor of a shared storage decides
        key = tensor.storage.key
        spans.setdefault(key, []).append((tensor.offset, tensor.offset + tensor.items))
        role = find_universal_role(name) if kind is Kind.UNIVERSAL else find_role(tensor.path, tensor.dtype, kind)
        if tensor.items:
            groups[key] = (role, tensor.dtype)
    storages = {tensor.storage.key: tensor for tensor in file.tensors}
    sums: dict[tuple[Role, str], list[int]] = {}
    unused = 0
    for key, (role, dtype) in groups.items():
        covered = _count_covered(spans[key])
        size = item_bytes(dtype) or 0
        unused += max(0, _stored_bytes(storages[key], file) - covered * size)
        entry = sums.setdefault((role, dtype), [0, 0])
        entry[0] += covered
        entry[1] += covered * size
    return tuple(TensorGroup(role, dtype, *counts) for (role, dtype), counts in sorted(sums.items())), unused


def _stored_bytes(tensor: Tensor, file: TorchFile) -> int:
    size = file.stored_bytes.get(tensor.storage.key)
    return tensor.storage.items * (item_bytes(tensor.storage.dtype) or 0) if size is None else size


def _count_covered(spans: Iterable[tuple[int, int]]) -> int:
    """The number of elements in the union of spans."""
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def sum_safetensors(tensors: Iterable[StoredTensor]) -> tuple[TensorGroup, ...]:
    """The tensors of a safetensors header, summed by dtype."""
    sums: dict[str, list[int]] = {}
    for tensor in tensors:
        entry = sums.setdefault(tensor.dtype, [0, 0])
        entry[0] += tensor.elements
        entry[1] += tensor.size_bytes
    return tuple(TensorGroup(Role.WEIGHTS, dtype, *counts) for dtype, counts in sorted(sums.items()))
