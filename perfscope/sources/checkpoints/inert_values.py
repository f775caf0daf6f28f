"""Values of a pickle that do nothing: what a call would return, a dict without hashing, a name not looked up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from perfscope.sources.checkpoints.pickle_damage import PickleDamage

#: Checkpoints nest about ten levels; a pickle of megabytes of brackets nests millions.
DEEPEST_NESTING = 200
_LONGEST_PATH = 12
_LONGEST_KEY = 1000
_FEW_KEYS = 8


@dataclass(slots=True, eq=False)
class Call:
    """The result that a call of a function would have.

    Attributes:
        function: The function's name with its module; empty if the pickle computes it.
        arguments: The arguments of the call.
        state: The state that would be set on the result; None without one.
        items: Keys and values that would be added to the result, as to a dict.
    """

    function: str
    arguments: object
    state: object = None
    items: list[tuple[object, object]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class InertDict:
    """A dict, as pairs of keys and values: the keys need not be hashable here."""

    items: list[tuple[object, object]]
    _by_name: dict[str, object] | None = None

    def get(self, key: str) -> object:
        """The value of a string key; None without the key. The dict must be complete."""
        if len(self.items) <= _FEW_KEYS:
            return next((value for name, value in reversed(self.items) if name == key), None)
        if self._by_name is None:  # a crafted pickle names one dict of a million keys a million times
            self._by_name = {name: value for name, value in self.items if isinstance(name, str)}
        return self._by_name.get(key)


@dataclass(frozen=True, slots=True, eq=False)
class PersistentId:
    """An object outside of the pickle, by its id: in torch files the storage of a tensor."""

    id: object


@dataclass(frozen=True, slots=True)
class GlobalName:
    """A function or class by its name, which is not looked up."""

    text: str


def walk(value: object) -> Iterator[tuple[tuple[str, ...], Call]]:
    """Every call inside a value, each object once, with the keys on the path to it.

    Raises:
        PickleDamage: The value is nested deeper than any checkpoint.
    """
    todo: list[tuple[int, tuple[str, ...], object]] = [(0, (), value)]
    seen: set[int] = set()
    while todo:
        depth, path, current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if depth > DEEPEST_NESTING:
            raise PickleDamage(f"is nested deeper than {DEEPEST_NESTING} levels: no checkpoint is")
        if isinstance(current, tuple | list):
            todo += [(depth + 1, path, child) for child in current if isinstance(child, _CONTAINERS)]
            continue
        if isinstance(current, Call):
            yield path, current
            inside = (current.arguments, current.state)
            todo += [(depth + 1, path, child) for child in inside if isinstance(child, _CONTAINERS)]
        if isinstance(current, InertDict | Call):
            todo += [
                (depth + 1, _extend_path(path, key), child)
                for key, child in current.items
                if isinstance(child, _CONTAINERS)
            ]


_CONTAINERS = (InertDict, Call, list, tuple)


def _extend_path(path: tuple[str, ...], key: object) -> tuple[str, ...]:
    return (*path, key[:_LONGEST_KEY]) if isinstance(key, str) and len(path) < _LONGEST_PATH else path


def parse_shape(value: object) -> tuple[int, ...] | None:
    """The sizes in a tuple or in ``torch.Size((2, 3))``; None for anything else.

    >>> parse_shape(Call("torch.Size", ((2, 3),))), parse_shape([4, 10**30])
    ((2, 3), None)
    """
    if isinstance(value, Call):
        value = value.arguments[0] if isinstance(value.arguments, tuple) and len(value.arguments) == 1 else None
    if not isinstance(value, tuple | list) or len(value) > _MOST_DIMENSIONS:
        return None
    for part in value:
        if not isinstance(part, int) or not 0 <= part <= _LARGEST_SIZE:
            return None
    return tuple(value)


#: The limits of torch; beyond them a product of sizes takes minutes.
_MOST_DIMENSIONS = 64
_LARGEST_SIZE = 2**63 - 1
