"""The role of a tensor of a checkpoint, by the keys on the path to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise

from perfscope.sources.checkpoints.safetensors import StoredTensor
from perfscope.sources.checkpoints.torch_files import TorchFile, TorchTensor, item_bytes
from perfscope.tables.checkpoint import Kind, Role, TensorGroup

_MOMENTS = frozenset({
    "exp_avg", "exp_avg_sq", "exp_avg_diff", "max_exp_avg_sq", "momentum_buffer", "square_avg", "acc_delta", "exp_inf",
    "state1", "state2",
})  # fmt: skip
_MASTERS = frozenset({
    "fp32", "fp32_param", "fp32_params", "fp32_from_fp16_params", "fp32_flat_groups", "fp32_groups", "master_weights",
    "fp32_groups_flat", "single_partition_of_fp32_groups", "master_param", "fp32_from_float16_groups",
})  # fmt: skip
#: Copies of the weights that are averaged over steps: they are no further parameters.
_AVERAGES = frozenset({
    "ema", "ema_model", "model_ema", "ema_state", "ema_state_dict", "ema_weights", "ema_params", "state_dict_ema",
    "ema_generator", "shadow", "shadow_params", "averaged_model", "swa", "swa_model", "swa_state_dict", "average_model",
})  # fmt: skip
_AVERAGE_FILE = re.compile(r"(?:.*[-_.])?(?:ema|swa)(?:[-_.=\d].*|epoch.*|step.*)?", re.IGNORECASE)
#: Tensors of a model's state that no optimizer trains, by the last part of their names.
_BUFFERS = frozenset({
    "running_mean", "running_var", "num_batches_tracked", "inv_freq", "original_inv_freq", "masked_bias",
    "position_ids", "token_type_ids", "cos_cached", "sin_cached", "causal_mask", "attn_mask", "attention_mask",
    "relative_position_index", "freqs_cis", "mask", "tril", "triu", "pe", "betas", "alphas_cumprod",
    "sqrt_alphas_cumprod", "sqrt_one_minus_alphas_cumprod", "posterior_variance",
})  # fmt: skip
#: What Lightning keeps of its trainer beside the state of the model: scores of callbacks, progress, schedulers.
_TRAINER_STATES = frozenset({"callbacks", "loops", "lr_schedulers"})
#: How a sharded tensor lies on the ranks; it is saved beside each shard.
_LAYOUTS = frozenset({"_spec", "_rank_map"})
_MASTERS_IN_OPTIMIZER = frozenset({"param", "master", "params"})
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
    if parts & _LAYOUTS:
        return Role.OTHER
    # an entry of an optimizer's state stands under the number of its parameter: state, 0, step
    is_state = any(key == "state" and number.isdigit() for key, number in pairwise(path[:-1]))
    names_optimizer = any(key.startswith("optim") or key in ("opt", "opt_state", "opt_state_dict") for key in parts)
    in_optimizer = kind in _OPTIMIZER_KINDS or names_optimizer or is_state
    if parts & _MOMENTS and (in_optimizer or kind is Kind.UNIVERSAL or "state" in parts):
        return Role.MOMENTS
    if parts & _MASTERS or (in_optimizer and parts & _MASTERS_IN_OPTIMIZER and dtype.startswith(_FLOATS)):
        return Role.MASTER
    rng = "rng" in lower or "random" in lower
    counts_steps = bool(path) and path[-1].rpartition(".")[2] == "step"
    is_weight = dtype.startswith(_FLOATS) or bool(_QUANTISED.fullmatch(name))
    is_state_of_trainer = bool(path) and path[0] in _TRAINER_STATES and not parts & _AVERAGES
    is_no_model = in_optimizer or is_state_of_trainer or counts_steps or rng or "lr_scheduler" in parts
    if is_no_model or not is_weight or _SCALES.fullmatch(name):
        return Role.OTHER
    if path and (path[-1] in buffers or path[-1].rpartition(".")[2] in _BUFFERS):
        return Role.BUFFERS
    return Role.EMA if parts & _AVERAGES else Role.WEIGHTS


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
    sums: dict[tuple[Role, str], list[int]] = {}
    for tensor in tensors:
        role = find_role([tensor.name], tensor.dtype, Kind.WEIGHTS)
        entry = sums.setdefault((_in_file(role, name), tensor.dtype), [0, 0])
        entry[0] += tensor.elements
        entry[1] += tensor.size_bytes
    return tuple(TensorGroup(role, dtype, *counts) for (role, dtype), counts in sorted(sums.items()))
