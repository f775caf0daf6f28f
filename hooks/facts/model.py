"""The description of a trained module: shapes, types and configuration, from which its operations are computed.

Nothing is run and no device is waited for: only shapes, types and attributes are read. Names that differ by a number
alone are one entry, so that a model of a thousand tensors makes a record of some dozen lines. Torch's own tables are
read, since a script may override the methods for them.

The ranks of one replica add up to the model exactly. A parameter that is sharded over data-parallel ranks counts whole
on each of them. Of tensor-parallel ranks each counts its part, and the first one also what is not split.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import MemberDescriptorType
from typing import Any, NamedTuple

from perfscope.hooks.facts.precision import dtype_name
from perfscope.hooks.facts.secrets import redact_facts
from perfscope.hooks.introspection import named_modules, named_parameters
from perfscope.hooks.step import DEEPEST
from perfscope.wire.model import IN_USE, ModelRecord, WeightRecord

_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
#: Of a text and of a list.
_LONGEST = 256
#: Wrappers around a module keep it under one of these names.
_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module")
#: Where frameworks keep what a model was built from.
_CONFIGS = ("config", "model_config", "model_args", "args")
#: What layers say of themselves and no shape shows.
_OF_LAYERS = ("top_k", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

#: Names of mesh dimensions over which tensors are split, not replicas.
_TENSOR_AXES = ("tp", "tensor")
_FSDP1 = "_fsdp_wrapped_module."
#: Meshes without names that modules were split over.
_tensor_meshes: list[Any] = []


def describe_model(*parts: Any, config: dict[str, Any] | None = None) -> ModelRecord:
    """Describe a module that is trained, or a wrapper around it; several where a rank holds parts of one model.

    ``config`` is the framework's own configuration of the model; it takes precedence over the module's.
    """
    weights = _grouped(itertools.chain.from_iterable(_named_weights(part) for part in parts))
    module = _unwrapped(parts[0])
    stated = {**_config(module), **{key: value for key, value in (config or {}).items() if _is_plain(value)}}
    return ModelRecord(
        parameters=sum(weight.elements for weight in weights),
        trainable=sum(weight.elements for weight in weights if weight.trainable),
        weights=weights,
        module=_class_name(module),
        config=redact_facts(stated),
        dtype=_widest_dtype(weights),
        checkpointing=_checkpointing(module, stated),
    )


def _unwrapped(module: Any) -> Any:
    for _ in range(8):
        inner = next((child for name in _WRAPPED if (child := module._modules.get(name)) is not None), None)
        if inner is None or len(module._modules) != 1:
            return module
        module = inner
    return module


def _named_weights(wrapped: Any) -> Iterator[tuple[str, str, Any]]:
    flat = list(flat_parameters(wrapped))
    for part in flat:
        yield part.name, "Embedding" if _is_table(part.owner) else _class_name(part.owner), part
    if flat and not any(True for _ in unflattened_parameters(wrapped)):
        return
    module = _unwrapped(wrapped)
    owners: dict[int, str] = {}
    for _, owner in named_modules(module):
        is_table = _is_table(owner)
        for parameter in owner._parameters.values():
            # The weights of an embedding and a tied output layer have two owners: the embedding is the one to record.
            if parameter is not None and (is_table or id(parameter) not in owners):
                owners[id(parameter)] = "Embedding" if is_table else _class_name(owner)
    rank = tensor_rank(parameter for _, parameter in named_parameters(module))
    for name, parameter in unflattened_parameters(module) if flat else named_parameters(module):
        if is_counted_by(parameter, rank):
            yield name, owners.get(id(parameter), ""), parameter


def _is_table(module: Any) -> bool:
    """Whether its weights are looked up: Megatron's ``VocabParallelEmbedding`` is no ``torch.nn.Embedding``."""
    return any(base.__name__.endswith("Embedding") for base in type(module).__mro__)


def _class_name(module: Any) -> str:
    """The class that a module was written as: ``fully_shard`` replaces it by a derived class."""
    bases = type(module).__bases__
    is_sharded = len(bases) > 1 and bases[0].__name__ == "FSDPModule"
    return str((bases[1] if is_sharded else type(module)).__name__)


def _grouped(named_weights: Iterator[tuple[str, str, Any]]) -> tuple[WeightRecord, ...]:
    counts: dict[WeightRecord, int] = {}
    for name, owner, parameter in named_weights:
        weight = WeightRecord(
            name=_NUMBER.sub("*", name),
            owner=owner,
            shape=whole_shape(parameter),
            dtype=dtype_name(parameter.dtype) or "",
            trainable=bool(parameter.requires_grad),
            count=1,
            parts=tensor_parts(parameter),
        )
        counts[weight] = counts.get(weight, 0) + 1
    return tuple(replace(weight, count=count) for weight, count in counts.items())


def _config(module: Any) -> dict[str, Any]:
    parts = [part for _, part in named_modules(module)]
    configs = (vars(part).get(name) for part in parts for name in _CONFIGS)
    config = next((values for config in configs if (values := _values(config))), {})
    of_layers = {name: value for part in parts for name in _OF_LAYERS if type(value := vars(part).get(name)) is int}
    return {"layers": of_layers, **config} if of_layers else config


def _values(config: Any, depth: int = DEEPEST) -> dict[str, Any]:
    """The plain values of an object and of the objects in it, read without a property or a method of theirs.

    What a class sets stands for what its object does not, as with a bare class of constants.
    """
    if isinstance(config, dict):
        items = dict(dict.items(config))
    else:
        bases = [vars(base) for base in reversed(type(config).__mro__)]
        items = {name: value for base in bases for name, value in base.items() if _is_plain(value)}
        if type(config).__dictoffset__:
            items.update(object.__getattribute__(config, "__dict__"))
        for name, slot in [item for base in bases for item in base.items()]:
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):  # it was never set
                    items[name] = slot.__get__(config)
    values = {}
    for name, value in items.items():
        if not isinstance(name, str) or name.startswith("_"):
            continue
        if _is_plain(value) or ("layer" in name and _is_list_of_names(value)):
            values[name] = value
        elif depth and _is_part(value, config) and (inner := _values(value, depth - 1)):
            values[name] = inner
    return values


def _is_part(value: object, config: object) -> bool:
    """Whether an object belongs to a configuration: a small mapping, a dataclass, or of the same package; no module."""
    if isinstance(value, dict):
        return len(value) <= _LONGEST
    package, of_config = (str(type(each).__module__).partition(".")[0] for each in (value, config))
    names = {name for base in type(value).__mro__ for name in vars(base)}
    return ("__dataclass_fields__" in names or package == of_config != "builtins") and "named_parameters" not in names


def _is_plain(value: object) -> bool:
    """Whether a value is a number, a short text without a slash, or a short list of numbers."""
    if isinstance(value, (list, tuple)):
        return len(value) <= _LONGEST and all(isinstance(item, (int, float, bool)) for item in value)
    if isinstance(value, str):
        return len(value) <= _LONGEST and "/" not in value
    return value is None or isinstance(value, (int, float, bool))


def _is_list_of_names(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) <= _LONGEST
        and all(isinstance(item, str) and item.isidentifier() for item in value)
    )


def _widest_dtype(weights: tuple[WeightRecord, ...]) -> str | None:
    elements: dict[str, int] = {}
    for weight in weights:
        elements[weight.dtype] = elements.get(weight.dtype, 0) + weight.elements
    return max(elements, key=lambda dtype: elements[dtype]) if elements else None


def _checkpointing(module: Any, config: dict[str, Any]) -> str | None:
    """``full`` or ``selective`` as the module's settings state, ``IN_USE`` where a part is wrapped, else None."""
    granularity = config.get("recompute_granularity")
    if granularity in ("full", "selective"):
        return str(granularity)
    parts = [part for _, part in named_modules(module)]
    if any(vars(part).get("gradient_checkpointing") is True for part in parts):
        return "full"
    # What a wrapper recomputes of its module is up to functions of the script.
    return IN_USE if any(type(part).__name__ == "CheckpointWrapper" for part in parts) else None


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
    """A parameter that FSDP 1 keeps as a piece of a flat one, with its name and shape in the whole model."""

    name: str
    owner: Any
    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool


def flat_parameters(module: Any) -> Iterator[FlatPart]:
    """The original parameters inside the flat ones of FSDP 1, which store their names and shapes."""
    for prefix, part in named_modules(module):
        flat: Any = getattr(vars(part).get("_handle"), "flat_param", None)
        pieces = () if flat is None else zip(flat._param_infos, flat._fqns, flat._shapes, strict=True)
        for info, name, shape in pieces:
            full = f"{prefix}.{name}" if prefix else name
            yield FlatPart(full.replace(_FSDP1, ""), info.module, tuple(shape), flat.dtype, flat.requires_grad)


def unflattened_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """The parameters beside the flat ones."""
    flat = [handle.flat_param for _, part in named_modules(module) if (handle := vars(part).get("_handle")) is not None]
    pieces = {id(piece) for parameter in flat for piece in (parameter, *(parameter._params or ()))}
    return ((name, parameter) for name, parameter in named_parameters(module) if id(parameter) not in pieces)
