"""The results of the other analyzers as one document of JSON: each figure of a finding has a pointer into it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np
from msgspec import Struct

from perfscope.report import Json


class Evidence(Struct, frozen=True):
    """One fact behind a finding.

    Attributes:
        text: The fact in words.
        pointers: JSON pointers into ``results`` to the figures that it rests on.
    """

    text: str
    pointers: tuple[str, ...] = ()

    def data(self) -> dict[str, Json]:
        """One entry of ``evidence``."""
        return {"text": self.text, "pointers": [f"/results{pointer}" for pointer in self.pointers]}


#: Who asks for a figure asks for those beside it, too.
_MOST_PARENTS = 64


class Pointers(Sequence[str]):
    """The pointers of a list's entries, each made when it is looked at: a list may be of very many ranks.

    >>> list(Pointers("/idle/ranks", 2))
    ['/idle/ranks/0', '/idle/ranks/1']
    """

    def __init__(self, pointer: str, count: int) -> None:
        self._pointer, self._indices = pointer, range(count)

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[str]:
        return (f"{self._pointer}/{index}" for index in self._indices)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [f"{self._pointer}/{row}" for row in self._indices[index]]
        return f"{self._pointer}/{self._indices[index]}"


class RowsOfKeys:
    """Which rows may have a key: by its hash, because as objects the keys of very many ranks would fill the memory.

    Args:
        keys: The key of each row, which can be hashed.
    """

    def __init__(self, keys: Iterable[Hashable]) -> None:
        hashes = np.fromiter(map(hash, keys), np.int64)
        self._rows = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._rows]

    def of(self, key: Hashable) -> Iterator[int]:
        """The rows whose keys have the hash of this one, in their order."""
        begin, end = (int(self._hashes.searchsorted(hash(key), side)) for side in ("left", "right"))
        return map(int, self._rows[begin:end])


class Facts:
    """Results by JSON pointers.

    Args:
        results: The data of each analyzer by its name.
    """

    def __init__(self, results: Mapping[str, Json]) -> None:
        self._results = results
        self._parents: dict[str, Json] = {"": results}

    def value(self, pointer: str) -> Json:
        """What a pointer leads to, such as ``/steps/step_time_s``; None where it leads to nothing."""
        if not pointer:
            return self._results
        parent, _, part = pointer.rpartition("/")
        if parent not in self._parents:
            found = self.value(parent)
            if len(self._parents) > _MOST_PARENTS:  # entries of many ranks are not to be kept
                self._parents = {"": self._results}
            self._parents[parent] = found
        return _member(self._parents[parent], part)

    def number(self, pointer: str) -> float | None:
        """A number; None where there is none."""
        parent, _, part = pointer.rpartition("/")
        members = self._parents.get(parent)
        return to_number(members.get(part) if type(members) is dict else self.value(pointer))

    def members(self, pointer: str) -> Mapping[str, Json]:
        """What a pointer leads to, for those who ask for many of its members; empty where it leads to no mapping."""
        value = self.value(pointer)
        return value if isinstance(value, Mapping) else {}

    def amount(self, pointer: str) -> float:
        """A number, or 0 where it is absent: for times of what was not seen. The tests know each figure by its name."""
        return self.number(pointer) or 0.0

    def text(self, pointer: str) -> str:
        """A text; empty where there is none."""
        value = self.value(pointer)
        return value if isinstance(value, str) else ""

    def is_true(self, pointer: str) -> bool:
        """Whether there is a value that is true."""
        return self.value(pointer) is True

    def rows(self, pointer: str) -> Sequence[str]:
        """The pointers of a list's entries; none where there is no list."""
        value = self.value(pointer)
        return Pointers(pointer, len(value) if isinstance(value, Sequence) and not isinstance(value, str) else 0)

    def rank(self, pointer: str) -> int:
        """The rank of an entry; 0 where it states none."""
        return int(self.number(f"{pointer}/rank") or 0)


def to_number(value: Json) -> float | None:
    """A value as a number; None where it is none."""
    if type(value) is float:  # most are, and this is asked for many figures of each rank
        return value
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _member(value: Json, part: str) -> Json:
    """A member of a mapping or an entry of a list; None where there is none."""
    if type(value) is not list and isinstance(value, (dict, Mapping)):  # both are told faster than by their protocols
        return value.get(part)
    if isinstance(value, (list, tuple, Sequence)) and not isinstance(value, str) and part.isdigit():
        return value[int(part)] if int(part) < len(value) else None
    return None
