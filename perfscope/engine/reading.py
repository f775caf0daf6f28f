"""Small reads of many files: one after the other while they are at hand, in threads where they must be waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

#: Threads for what waits: for a store, a network's disk, or the hash of a whole trace.
_READERS = 8
#: How many files are read ahead.
_AHEAD = 256
#: A read of what is at hand takes so long at most: to hand it from thread to thread would take longer.
_AT_HAND_S = 0.001
#: So many reads tell how long the next ones take.
_TRIED = 8
#: Loaded by name where it is needed: files at hand do without it.
_POOLS = "concurrent.futures"

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def read_each(read: Callable[[_Item], _Answer], items: Sequence[_Item]) -> Iterator[_Answer]:
    """What ``read`` gives for each item, in their order; it may be called in threads, for some items ahead."""
    for begin in range(0, len(items), _TRIED):
        seconds = []
        for item in items[begin : begin + _TRIED]:
            began = time.perf_counter()
            answer = read(item)
            seconds.append(time.perf_counter() - began)
            yield answer
        if sorted(seconds)[len(seconds) // 2] > _AT_HAND_S:
            yield from _read_in_threads(read, items[begin + _TRIED :])
            return


def _read_in_threads(read: Callable[[_Item], _Answer], items: Sequence[_Item]) -> Iterator[_Answer]:
    if not items:
        return
    batches = (items[begin : begin + _AHEAD] for begin in range(0, len(items), _AHEAD))
    pool: ThreadPoolExecutor = import_module(_POOLS).ThreadPoolExecutor(_READERS)
    with pool as readers:
        yield from chain.from_iterable(readers.map(read, batch) for batch in batches)
