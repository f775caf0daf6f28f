"""The role of a tensor of a checkpoint, by the keys on the path to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise

from perfscope.models.data_files import read_data
from perfscope.sources.checkpoints.safetensors import StoredTensor
from perfscope.sources.checkpoints.torch_files import TorchFile, TorchTensor, item_bytes
from perfscope.tables.checkpoint import Kind, Role, TensorGroup

_KEYS = {name: frozenset(keys) for name, keys in read_data("checkpoint_names")["keys"].items()}
_AVERAGE_FILE = re.compile(r"(?:.*[-_.])?(?:ema|swa)(?:[-_.=\d].*|epoch.*|step.*)?", re.IGNORECASE)
#: The whole numbers of a quantised weight, and what scales them, in torchao's tensors and in quantised safetensors.
_QUANTISED = re.compile(r"(?:.*[._])?(?:qdata|int_data|qweight|weight)")
_SCALES = re.compile(r".*weight[._](?:scales?|scale_inv|scale_2|zero_point|qzeros)")
_FLOATS = ("float", "bfloat")
_OPTIMIZER_KINDS = (Kind.OPTIMIZER, Kind.EXPERT_OPTIMIZER)


def find_role(path: Sequence[str], dtype: str, kind: Kind, buffers: Set[str] = frozenset()) -> Role:
    """The role of a tensor, by its keys, its dtype, the kind of its file, and the buffers that the file states."""
    name = ".".join(path)
    lower = name.lower()
    parts = set(lower.split("."))
    if parts & _KEYS["layouts"]:
        return Role.OTHER
    # an entry of an optimizer's state stands under the number of its parameter: state, 0, step
    is_state = any(key == "state" and number.isdigit() for key, number in pairwise(path[:-1]))
    names_optimizer = any(key.startswith("optim") or key in ("opt", "opt_state", "opt_state_dict") for key in parts)
    in_optimizer = kind in _OPTIMIZER_KINDS or names_optimizer or is_state
    if parts & _KEYS["moments"] and (in_optimizer or kind is Kind.UNIVERSAL or "state" in parts):
        return Role.MOMENTS
    if parts & _KEYS["masters"] or (
        in_optimizer and parts & _KEYS["masters_in_optimizer"] and dtype.startswith(_FLOATS)
    ):
        return Role.MASTER
    rng = "rng" in lower or "random" in lower
    counts_steps = bool(path) and path[-1].rpartition(".")[2] == "step"
    is_weight = dtype.startswith(_FLOATS) or bool(_QUANTISED.fullmatch(name))
    is_state_of_trainer = bool(path) and path[0] in _KEYS["trainer"] and not parts & _KEYS["averages"]
    is_no_model = in_optimizer or is_state_of_trainer or counts_steps or rng or "lr_scheduler" in parts
    if is_no_model or not is_weight or _SCALES.fullmatch(name):
        return Role.OTHER
    if path and (path[-1] in buffers or path[-1].rpartition(".")[2] in _KEYS["buffers"]):
        return Role.BUFFERS
    return Role.EMA if parts & _KEYS["averages"] else Role.WEIGHTS


def _is_mask(tensor: TorchTensor) -> bool:
    """Whether a tensor is an attention mask for all heads and samples, as GPT-2's ``attn.bias`` is, and no bias."""
    match tensor.shape:
        case (1, 1, rows, columns):
            return rows == columns > 1 and not tensor.path[-1].endswith("weight")
    return False


def is_average_file(name: str) -> bool:
    """Whether a file holds averaged weights, by its name.

    >>> is_average_file("ema_epoch1.pt"), is_average_file("model.ema.safetensors"), is_average_file("schema.pt")
    (True, True, False)
    """
    return bool(_AVERAGE_FILE.fullmatch(name.rpartition("/")[2].rpartition(".")[0]))


def _in_file(role: Role, name: str) -> Role:
    return Role.EMA if role is Role.WEIGHTS and is_average_file(name) else role


def find_universal_role(name: str) -> Role:
    """The role of a file of DeepSpeed's universal format."""
    if name == "fp32.pt":
        return Role.MASTER
    return Role.MOMENTS if name.startswith("exp_avg") else Role.OTHER


def sum_torch_tensors(file: TorchFile, kind: Kind, name: str) -> tuple[tuple[TensorGroup, ...], int]:
    """The tensors of a file, summed by role and dtype, and the bytes of its storages outside of every tensor."""
    stated = file.value.get("buffer_names") if isinstance(file.value, dict) else None  # DeepSpeed states them
    buffers = {name for name in stated if isinstance(name, str)} if isinstance(stated, list | tuple) else set()
    spans: dict[str, list[tuple[int, int]]] = {}  # of the tensors in each storage
    groups: dict[str, tuple[Role, str]] = {}
    for tensor in reversed(file.tensors):  # so that the first tensor of a shared storage decides
        key = tensor.storage.key
        spans.setdefault(key, []).append((tensor.offset, tensor.offset + tensor.items))
        role = _in_file(find_role(tensor.path, tensor.dtype, kind, buffers), name)
        role = find_universal_role(name) if kind is Kind.UNIVERSAL else role
        role = Role.BUFFERS if role is Role.WEIGHTS and _is_mask(tensor) else role
        if tensor.items:
            groups[key] = (role, tensor.dtype)
    storages = {tensor.storage.key: tensor for tensor in file.tensors}
    sizes, unused = [], 0
    for key, (role, dtype) in groups.items():
        covered = _count_covered(spans[key])
        size = covered * (item_bytes(dtype) or 0)
        unused += max(0, _stored_bytes(storages[key], file) - size)
        sizes.append((role, dtype, covered, size))
    return sum_by_role(sizes), unused


def sum_by_role(sizes: Iterable[tuple[Role, str, int, int]]) -> tuple[TensorGroup, ...]:
    """Elements and bytes of tensors, summed by their role and dtype."""
    sums: dict[tuple[Role, str], tuple[int, int]] = {}
    for role, dtype, elements, size in sizes:
        before = sums.get((role, dtype), (0, 0))
        sums[role, dtype] = before[0] + elements, before[1] + size
    return tuple(TensorGroup(*key, *counts) for key, counts in sorted(sums.items()))


def _stored_bytes(tensor: TorchTensor, file: TorchFile) -> int:
    size = file.stored_bytes.get(tensor.storage.key)
    return tensor.storage.items * (item_bytes(tensor.storage.dtype) or 0) if size is None else size


def _count_covered(spans: Iterable[tuple[int, int]]) -> int:
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def sum_safetensors(tensors: Iterable[StoredTensor], name: str) -> tuple[TensorGroup, ...]:
    """The tensors of a safetensors header, summed by role and dtype; the name is that of the file."""
    roles = ((_in_file(find_role([tensor.name], tensor.dtype, Kind.WEIGHTS), name), tensor) for tensor in tensors)
    return sum_by_role((role, tensor.dtype, tensor.elements, tensor.size_bytes) for role, tensor in roles)
