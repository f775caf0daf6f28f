"""Rows of very many ranks, packed: as bytes in a temporary file, of which few rows at a time are objects again.

What is measured of a rank takes several times as much memory as objects of Python than as bytes, and an analysis looks
at one rank after the other. So the memory that a sequence of rows takes is that of a few rows, however many there are.
Where no temporary file can be written, the bytes stay in memory. Rows of up to 512 ranks are a tuple.
"""

from __future__ import annotations

import os
import pickle
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, overload
from weakref import finalize

import numpy as np

from perfscope.constants import MANY_RANKS, MIB

_T = TypeVar("_T")
#: What rows are sorted by: a value, or a tuple of them, that can be compared.
_Key: TypeAlias = Any

#: So much is objects at the same time, and is read again for one row of it; a row counts 1, where nothing else is said.
_IN_A_CHUNK = 128
#: So much is put in order at the same time.
_AT_ONCE = 512
#: Integers up to this one are columns.
_LARGEST = 2**63 - 1
#: Fewer bytes stay in memory.
_MOST_HELD = MIB // 4
#: Loaded by name where a file is written: with the random numbers in it, it takes long to import.
_TEMPORARY = "tempfile"


class PackedRows(Sequence[_T], Generic[_T]):
    """A sequence of rows that can be pickled. Rows are added at its end; none is ever changed.

    Every look at a row gives a new object; neighbours share what they shared when they were added.

    Args:
        rows: The first rows.
        weigh: How many small rows a row is as large as; one where it is not given.
    """

    def __init__(self, rows: Iterable[_T] = (), weigh: Callable[[_T], int] | None = None) -> None:
        self._weigh = weigh
        self._store = Pieces()
        self._begins = array("q", [0])
        self._last: list[_T] = []
        self._weight = 0
        self._chunk: tuple[int, list[_T]] = (-1, [])
        for row in rows:
            self.append(row)

    def append(self, row: _T) -> None:
        """Add a row."""
        self._last.append(row)
        self._weight += self._weigh(row) if self._weigh else 1
        if self._weight >= _IN_A_CHUNK:
            self._store.add(pickle.dumps(self._last, protocol=5))
            self._begins.append(len(self))
            self._last, self._weight = [], 0

    def __len__(self) -> int:
        return self._begins[-1] + len(self._last)

    def __iter__(self) -> Iterator[_T]:
        for number in range(len(self._store)):
            yield from self._read(number)
        yield from self._last

    @overload
    def __getitem__(self, index: int) -> _T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...

    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        if isinstance(index, slice):
            return pack(self[place] for place in range(len(self))[index])
        index = range(len(self))[index]
        number = bisect_right(self._begins, index) - 1
        place = index - self._begins[number]
        if number == len(self._store):
            return self._last[place]
        read, rows = self._chunk  # at once, because another thread may look at other rows
        if read != number:  # who looks at a row looks at its neighbours next
            rows = self._read(number)
            self._chunk = number, rows
        return rows[place]

    def __reduce__(self) -> tuple[object, ...]:
        return PackedRows, (list(self), self._weigh)

    def _read(self, number: int) -> list[_T]:
        # These bytes are this process's own: they were never in a file that has a name when anything is read.
        rows: list[_T] = pickle.loads(self._store.read(number))
        return rows


class PackedNames(PackedRows[str]):
    """Names in their order, packed; to look for one that stands near the last one reads nothing."""

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        _, held = self._chunk
        names: Sequence[str] = held if held and held[0] <= name <= held[-1] else self
        index = bisect_left(names, name)
        return index < len(names) and names[index] == name


class Pieces:
    """Pieces of bytes, in a file without a name once they are many."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}
        self._ends = array("q", [0])
        self._file: int | None = None
        self._is_writable = True

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, piece: bytes) -> None:
        """Add a piece, whose number is how many there were."""
        begin = self._ends[-1]
        self._held[len(self)] = piece
        self._ends.append(begin + len(piece))
        if self._ends[-1] > _MOST_HELD and self._is_writable:
            try:
                self._write()
            except OSError:  # the disk is full, or nothing may be written: the memory has to do
                self._is_writable = False

    def read(self, number: int) -> bytes:
        """A piece; by its place in the file, which a forked process shares with this one.

        Raises:
            OSError: The file cannot be read any more.
        """
        if number in self._held:
            return self._held[number]
        assert self._file is not None
        begin, end = self._ends[number], self._ends[number + 1]
        return os.pread(self._file, end - begin, begin)

    def _write(self) -> None:
        """Write what is in memory into the file.

        Raises:
            OSError: It cannot be made or written.
        """
        if self._file is None:
            self._file, path = import_module(_TEMPORARY).mkstemp(prefix="perfscope-")
            finalize(self, os.close, self._file)
            Path(path).unlink()  # the file goes with its last reader, however that ends
        for number, piece in list(self._held.items()):
            if os.pwrite(self._file, piece, self._ends[number]) < len(piece):
                raise OSError
            del self._held[number]


def hold_text(pieces: Iterable[str]) -> Iterator[str]:
    """Pieces of text that have all been made when this returns, and are read again one by one."""
    store = Pieces()
    for piece in pieces:
        store.add(piece.encode("utf-8", "surrogatepass"))  # a name of a file may have what is no text
    return (store.read(number).decode("utf-8", "surrogatepass") for number in range(len(store)))


def pack(rows: Iterable[_T], weigh: Callable[[_T], int] | None = None) -> Sequence[_T]:
    """Rows that can be looked at as often as wanted; packed where they are more than 512.

    Args:
        rows: The rows.
        weigh: How many small rows a row is as large as; one where it is not given.

    >>> pack(rank for rank in range(3))
    (0, 1, 2)
    """
    every, first, weight = iter(rows), [], 0
    for row in every:
        first.append(row)
        weight += weigh(row) if weigh else 1
        if weight > MANY_RANKS:
            return PackedRows(chain(first, every), weigh)
    return tuple(first)


def pack_names(names: Sequence[str]) -> Collection[str]:
    """Names that stand in order, to be looked for; packed where they are more than 512.

    >>> "b" in pack_names(["a", "b"])
    True
    """
    return PackedNames(names) if len(names) > MANY_RANKS else frozenset(names)


def pack_in_order(
    rows: Iterable[_T], key: Callable[[_T], _Key], weigh: Callable[[_T], int] | None = None
) -> Sequence[_T]:
    """The same, sorted; rows of the same key stay as they are.

    >>> pack_in_order(["b", "A", "a"], str.lower)
    ('A', 'a', 'b')
    """
    packed = pack(rows, weigh)
    if isinstance(packed, tuple):
        return tuple(sorted(packed, key=key))
    if all(first <= second for first, second in pairwise(map(key, packed))):
        return packed
    weights = array("q", map(weigh, packed)) if weigh else None
    return pack(_rows_at(packed, _order(map(key, packed)), weights), weigh)


def _order(keys: Iterator[_Key]) -> Sequence[int]:
    """The places of keys in their order; integers are a column, because as objects they may fill the memory."""
    numbers = array("q")
    for key in keys:
        if type(key) is not int or abs(key) > _LARGEST:
            every = [*numbers, key, *keys]
            return sorted(range(len(every)), key=every.__getitem__)
        numbers.append(key)
    return array("q", np.argsort(np.frombuffer(numbers, np.int64), kind="stable").tobytes())


def pack_at(
    rows: Sequence[_T],
    places: Sequence[int],
    weights: Sequence[int] | None = None,
    weigh: Callable[[_T], int] | None = None,
) -> Sequence[_T]:
    """The rows at some places, in the order of these.

    Args:
        rows: The rows.
        places: Their places, each as often as wanted.
        weights: What ``weigh`` gives for each row, where it is given.
        weigh: How many small rows a row is as large as; one where it is not given.
    """
    return pack(_rows_at(rows, places, weights), weigh)


def _rows_at(rows: Sequence[_T], places: Sequence[int], weights: Sequence[int] | None = None) -> Iterator[_T]:
    """Rows that lie far apart are read in turn, not in order: each reading of one is a reading of its neighbours."""
    for some in _cut(places, weights):
        row_at = {place: rows[place] for place in sorted(some)}
        yield from (row_at[place] for place in some)


def _cut(places: Sequence[int], weights: Sequence[int] | None) -> Iterator[list[int]]:
    """Places whose rows are as large as so many small ones that they may be objects at the same time."""
    some: list[int] = []
    weight = 0
    for place in places:
        some.append(place)
        weight += weights[place] if weights else 1
        if weight >= _AT_ONCE:
            yield some
            some, weight = [], 0
    yield some
