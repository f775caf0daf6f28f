"""A log of gigabytes, split into plain lines and the rest by several processes.

Most of the time for a long log goes into finding lines and reading digits, which does not depend on earlier lines. Each
process gets a range of the file's bytes, reads it block by block, and returns every block as the splitter splits it.
The results keep the order of the file, so that copies, restarts and saves are found as if one process had read it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from perfscope.sources.joblog.splitting.split_block import SplitBlock, Text
from perfscope.sources.joblog.text.blocks import BLOCK, read_blocks_between
from perfscope.tables.columns import Bool
from perfscope.workers import Workers, start_workers

_BUFFER = 2 * BLOCK  # larger ones leave the processor's cache, smaller ones pay more calls of NumPy
_RANGE = 4 * _BUFFER - (1 << 16)  # four buffers, each short of a line
_MOST_PROCESSES = 4
_AHEAD = 2

#: Splits the first bytes of a text, or gives parts of it as they are; see ``Splitter``.
TextSplitter: TypeAlias = Callable[[Text, int, Bool], list[SplitBlock | bytes]]


def split_blocks_between(path: Path, begin: int, end: int, split: TextSplitter) -> Iterator[SplitBlock | bytes]:
    """Yield every block between two places of a file in order, split or as it is; a line belongs to its beginning."""
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    with start_workers(processes) as pool:
        waiting: deque[tuple[range, Future[list[SplitBlock | bytes]]]] = deque()
        for start in range(begin, end, _RANGE):
            places = range(start, min(start + _RANGE, end))
            waiting.append((places, _submit(pool, path, places, split)))
            if len(waiting) > _AHEAD * processes:
                yield from _result(path, split, *waiting.popleft())
        while waiting:
            yield from _result(path, split, *waiting.popleft())


def _submit(pool: Workers, path: Path, places: range, split: TextSplitter) -> Future[list[SplitBlock | bytes]]:
    try:
        return pool.submit(_split_range, path, places, split)
    except BrokenProcessPool as error:
        broken: Future[list[SplitBlock | bytes]] = Future()
        broken.set_exception(error)
        return broken


def _result(
    path: Path, split: TextSplitter, places: range, future: Future[list[SplitBlock | bytes]]
) -> list[SplitBlock | bytes]:
    try:
        return future.result()
    except BrokenProcessPool:
        return _split_range(path, places, split)  # a process was killed; this one does its work


def _split_range(path: Path, places: range, split: TextSplitter) -> list[SplitBlock | bytes]:
    text, scratch = _buffers()
    return [
        block
        for length in read_blocks_between(path, places.start, places.stop, text)
        for block in split(text, length, scratch)
    ]


@cache
def _buffers() -> tuple[bytearray, Bool]:
    """A process's buffers, used for every block: fresh memory costs as much as reading it."""
    return bytearray(_BUFFER), np.empty(_BUFFER, np.bool_)
