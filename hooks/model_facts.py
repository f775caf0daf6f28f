"""What a module says of its own size: the facts that its operations are computed from.

Nothing is run and no device is waited for: only shapes, types and attributes are read. Names that differ by a number
alone are one entry, so that a model of a thousand tensors makes a record of some dozen lines.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from perfscope.wire import ModelRecord, WeightRecord

_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
_PLAIN = (str, int, float, bool)
_LONGEST_TEXT = 100
_LONGEST_LIST = 256
#: Wrappers around a module keep it under one of these names.
_FSDP, _INSIDE_FSDP = "FullyShardedDataParallel", "_fsdp_wrapped_module"
_WRAPPED = ("module", "_orig_mod", _INSIDE_FSDP)
_EMBEDDING = "Embedding"
#: Where frameworks keep what a model was built from.
_CONFIGS = ("config", "model_config", "model_args", "args")
_16_BIT_AND_OTHERS = {
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float32": "fp32",
    "torch.float8_e4m3fn": "fp8",
}


class _Found(NamedTuple):
    """One parameter: its name, the class that owns it, its whole shape, and the tensor that has its type."""

    name: str
    owner: str
    shape: tuple[int, ...]
    parameter: Any


def describe_model(torch: Any, module: Any, compute_dtype: str | None = None) -> ModelRecord:
    """Describe a module that is trained.

    Args:
        torch: The torch module that is loaded.
        module: The model, or a wrapper of DDP, FSDP, DeepSpeed or torch.compile around it.
        compute_dtype: The type that autocast computed its forward pass in; None where it was off.
    """
    flattened = [weight for flat in _flat_parameters(module) for weight in _of_flat(torch, flat)]
    module = _unwrapped(module)
    weights = _grouped(flattened) if flattened else _weights(torch, module)
    return ModelRecord(
        parameters=sum(weight.count * _product(weight.shape) for weight in weights),
        trainable=sum(weight.count * _product(weight.shape) for weight in weights if weight.trainable),
        weights=weights,
        module=_class_name(module),
        config=_config(module),
        dtype=_widest_dtype(weights),
        compute_dtype=compute_dtype or _tf32(torch, weights),
        checkpointing=_checkpointing(module),
    )


def _unwrapped(module: Any) -> Any:
    """The model inside wrappers that hold nothing but it."""
    for _ in range(8):
        inner = next((found for name in _WRAPPED if (found := module._modules.get(name)) is not None), None)
        if inner is None or len(module._modules) != 1:
            return module
        module = inner
    return module


def _class_name(module: Any) -> str:
    """The name of its class; ``fully_shard`` puts one in front that it made."""
    names = [each.__name__ for each in type(module).__mro__]
    return names[2] if names[1:2] == ["FSDPModule"] else names[0]


def _weights(torch: Any, module: Any) -> tuple[WeightRecord, ...]:
    owners: dict[int, str] = {}
    for owner in module.modules():
        for parameter in owner._parameters.values():
            # A table that is tied to the output layer has two owners: that it is looked up must not be lost.
            kind = _owner(torch, owner)
            if parameter is not None and (kind == _EMBEDDING or id(parameter) not in owners):
                owners[id(parameter)] = kind
    return _grouped(
        _Found(name, owners.get(id(parameter), ""), _shape(parameter), parameter)
        for name, parameter in module.named_parameters()
    )


def _owner(torch: Any, module: Any) -> str:
    return _EMBEDDING if isinstance(module, torch.nn.Embedding) else type(module).__name__


def _flat_parameters(module: Any) -> list[Any]:
    """What FullyShardedDataParallel keeps in place of the parameters, one tensor for each module that it wraps."""
    handles = [getattr(each, "_handle", None) for each in module.modules() if type(each).__name__ == _FSDP]
    return [handle.flat_param for handle in handles if handle is not None]


def _of_flat(torch: Any, flat: Any) -> Iterator[_Found]:
    """The parameters that were flattened into one, with their whole shapes."""
    for name, shape, info in zip(flat._fqns, flat._shapes, flat._param_infos, strict=True):
        full_name = f"{info.module_name}.{info.param_name}" if info.module_name else name
        yield _Found(full_name.replace(f"{_INSIDE_FSDP}.", ""), _owner(torch, info.module), tuple(shape), flat)


def _grouped(found: Iterable[_Found]) -> tuple[WeightRecord, ...]:
    counts: dict[tuple[str, str, tuple[int, ...], str, bool], int] = {}
    for name, owner, shape, parameter in found:
        dtype = _16_BIT_AND_OTHERS.get(str(parameter.dtype), str(parameter.dtype))
        key = (_NUMBER.sub("*", name), owner, shape, dtype, bool(parameter.requires_grad))
        counts[key] = counts.get(key, 0) + 1
    return tuple(WeightRecord(*key, count) for key, count in counts.items())


def _shape(parameter: Any) -> tuple[int, ...]:
    """The whole shape: ZeRO stage 3 leaves an empty tensor in its place and keeps the shape beside it."""
    return tuple(int(size) for size in getattr(parameter, "ds_shape", parameter.shape))


def _product(shape: tuple[int, ...]) -> int:
    return functools.reduce(lambda left, right: left * right, shape, 1)


def _config(module: Any) -> dict[str, Any]:
    """The plain values of the object that the model was built from; empty where it has none."""
    for name in _CONFIGS:
        held = getattr(module, name, None)
        if held is None or isinstance(held, _PLAIN):
            continue
        to_dict = getattr(held, "to_dict", None)
        values = to_dict() if callable(to_dict) else held if isinstance(held, dict) else _attributes(held)
        return {str(key): value for key, value in values.items() if _is_plain(value)}
    return {}


def _attributes(held: Any) -> dict[str, Any]:
    names = getattr(held, "__dict__", None) or dict.fromkeys(getattr(type(held), "__slots__", ()))
    return {name: getattr(held, name, None) for name in names if not name.startswith("_")}


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a short text or a short list of them: a config may hold paths, secrets never."""
    if isinstance(value, (list, tuple)):
        return len(value) <= _LONGEST_LIST and all(isinstance(item, (int, float, bool)) for item in value)
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT and "/" not in value
    return value is None or isinstance(value, (int, float, bool))


def _widest_dtype(weights: tuple[WeightRecord, ...]) -> str | None:
    """The type of most elements."""
    elements: dict[str, int] = {}
    for weight in weights:
        elements[weight.dtype] = elements.get(weight.dtype, 0) + weight.count * _product(weight.shape)
    return max(elements, key=lambda dtype: elements[dtype]) if elements else None


def autocast_dtype(torch: Any) -> str | None:
    """The type that autocast is computing in right now; None where it is off or cannot be asked."""
    for device in ("cuda", "cpu"):
        try:
            if torch.is_autocast_enabled(device):
                dtype = str(torch.get_autocast_dtype(device))
                return _16_BIT_AND_OTHERS.get(dtype, dtype)
        except (AttributeError, RuntimeError, TypeError):
            return None
    return None


def _tf32(torch: Any, weights: tuple[WeightRecord, ...]) -> str | None:
    """``tf32`` where fp32 products are allowed to round their inputs."""
    if _widest_dtype(weights) != "fp32" or not torch.cuda.is_available():
        return None
    return "tf32" if torch.get_float32_matmul_precision() != "highest" else None


def _checkpointing(module: Any) -> str | None:
    """``full`` where a layer says that it recomputes, None where nothing says it."""
    config = getattr(module, "config", None)
    granularity = getattr(config, "recompute_granularity", None)
    if granularity in ("full", "selective"):
        return str(granularity)
    for part in module.modules():
        if type(part).__name__ == "CheckpointWrapper" or getattr(part, "gradient_checkpointing", False) is True:
            return "full"
    return None
