"""Where the tensors are whose purpose is known: weights, gradients, optimizer states. Nothing is kept alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from perfscope.hooks.guard import value_or_none
from perfscope.wire.memory import COMMUNICATION, GRADIENTS, OPTIMIZER, WEIGHTS

#: Where optimizers that wrap another one keep it.
_INNER = ("optimizer", "optim", "base_optimizer", "_optimizer")
_CHAINED = ("chained_optimizers", "optimizers")
_DEEPEST_WRAPPING = 4
#: Attributes in which frameworks keep gradients beside ``grad``, and parts of a sharded parameter.
_GRADIENT_ATTRIBUTES = ("grad", "main_grad")
_SHARD_ATTRIBUTES = ("ds_tensor",)
#: What the names of an optimizer's own tensors tell; other tensors are states.
_ROLES_BY_NAME = (
    ("bucket", COMMUNICATION), ("ipg", COMMUNICATION), ("grad", GRADIENTS), ("bit16", WEIGHTS), ("fp16", WEIGHTS)
)  # fmt: skip
#: Lists of tensors of an optimizer are nested so deep, and have so many elements, at most.
_DEEPEST_LIST = 3
_LONGEST_LIST = 10_000


class Role(NamedTuple):
    """A stretch of memory whose purpose is known.

    Attributes:
        address: Where the tensor's storage begins.
        size: Its bytes.
        role: ``weights``, ``gradients``, ``optimizer`` or ``communication``.
        name: The parameter's name, or the name of the state.
    """

    address: int
    size: int
    role: str
    name: str


def find_roles(parts: Iterable[Any], optimizers: Iterable[Any]) -> list[Role]:
    """Find the storages of parameters, buffers, gradients and optimizer states, each once."""
    roles: dict[int, Role] = {}
    parameters: set[int] = set()
    for part in parts:
        for name, parameter in part.named_parameters():
            parameters.add(id(parameter))
            _add_parameter(roles, name, parameter)
        for name, tensor in part.named_buffers():
            _add(roles, tensor, WEIGHTS, name)
    for optimizer in _unwrapped(optimizers):
        _add_optimizer(roles, optimizer, parameters, has_model=bool(parameters))
    return list(roles.values())


def _add_parameter(roles: dict[int, Role], name: str, parameter: Any) -> None:
    _add(roles, parameter, WEIGHTS, name)
    for attribute in _SHARD_ATTRIBUTES:
        _add(roles, getattr(parameter, attribute, None), WEIGHTS, name)
    for attribute in _GRADIENT_ATTRIBUTES:
        _add(roles, getattr(parameter, attribute, None), GRADIENTS, name)


def _add_optimizer(roles: dict[int, Role], optimizer: Any, parameters: set[int], *, has_model: bool) -> None:
    """The states, and the parameters that are not the model's own: the copies in fp32 of 16-bit weights."""
    for group in value_or_none(lambda: list(optimizer.param_groups)) or ():
        for parameter in group.get("params", ()):
            if not has_model:
                _add_parameter(roles, "", parameter)
            elif id(parameter) not in parameters:
                _add(roles, parameter, OPTIMIZER, "copy of the weights")
                _add(roles, getattr(parameter, "grad", None), GRADIENTS, "of the copies of the weights")
    for state in value_or_none(lambda: list(optimizer.state.values())) or ():
        for name, value in state.items() if isinstance(state, dict) else ():
            _add(roles, value, OPTIMIZER, str(name))
    for name, value in value_or_none(lambda: list(vars(optimizer).items())) or ():
        role = next((role for part, role in _ROLES_BY_NAME if part in name), OPTIMIZER)
        for tensor in _find_tensors(value, _DEEPEST_LIST):
            _add(roles, tensor, role, name)


def _find_tensors(value: Any, depth: int) -> Iterator[Any]:
    """The tensors in an attribute: itself, or in lists and dicts inside each other."""
    if hasattr(value, "untyped_storage"):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)) and len(value) <= _LONGEST_LIST:
        for inner in list(value.values()) if isinstance(value, dict) else value:
            yield from _find_tensors(inner, depth - 1)


def _unwrapped(optimizers: Iterable[Any]) -> Iterator[Any]:
    """The optimizers and those inside them, each once."""
    seen: set[int] = set()
    level = list(optimizers)
    for _ in range(_DEEPEST_WRAPPING):
        level = [optimizer for optimizer in level if optimizer is not None and id(optimizer) not in seen]
        seen.update(map(id, level))
        yield from level
        inner = [getattr(optimizer, name, None) for optimizer in level for name in _INNER]
        chained = [getattr(optimizer, name, None) for optimizer in level for name in _CHAINED]
        level = [*inner, *(each for several in chained if isinstance(several, (list, tuple)) for each in several)]


def _add(roles: dict[int, Role], tensor: Any, role: str, name: str) -> None:
    """Add the storage of a tensor on a GPU; the first role of a storage counts."""
    storage = None if tensor is None else value_or_none(lambda: _storage(tensor))
    if storage is not None and storage[1] > 0:
        roles.setdefault(storage[0], Role(storage[0], storage[1], role, name))


def _storage(tensor: Any) -> tuple[int, int] | None:
    """Address and bytes of a tensor's storage; of a DTensor those of its local part. None where it is on no GPU."""
    local = getattr(tensor, "_local_tensor", tensor)
    if not local.is_cuda:
        return None
    storage = local.untyped_storage()
    return int(storage.data_ptr()), int(storage.nbytes())
