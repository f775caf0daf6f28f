"""A log of gigabytes, taken apart by several processes.

Finding lines and reading digits is what a long log costs, and it needs no memory of what came before. Each process
gets a stretch of the file by its place, reads it block by block, and hands back what ``swift`` made of every block; the
order of the file is kept, so that copies, restarts and saves are seen as if one process had read it all.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfscope.sources.joblog import swift
from perfscope.sources.joblog.text import BLOCK, blocks_between

_PIECE = 4 * BLOCK - (1 << 16)  # four blocks, each short of a line
_MOST_PROCESSES = 4
_AHEAD = 2

#: A block that could not be taken apart is handed back as it is.
Part = swift.Split | bytes


def take_apart(path: Path, begin: int, end: int) -> Iterator[Part]:
    """Yield what is made of every block of a file between two places, in order; a line belongs to where it begins."""
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    places = range(begin, end, _PIECE)
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        waiting: deque[tuple[int, Future[list[Part]]]] = deque()
        for place in places:
            waiting.append((place, _submit(pool, path, place, end)))
            if len(waiting) > _AHEAD * processes:
                yield from _result(path, end, *waiting.popleft())
        while waiting:
            yield from _result(path, end, *waiting.popleft())


def _submit(pool: ProcessPoolExecutor, path: Path, place: int, end: int) -> Future[list[Part]]:
    try:
        return pool.submit(piece, path, place, min(place + _PIECE, end))
    except BrokenProcessPool as error:
        broken: Future[list[Part]] = Future()
        broken.set_exception(error)
        return broken


def _result(path: Path, end: int, place: int, coming: Future[list[Part]]) -> list[Part]:
    try:
        return coming.result()
    except BrokenProcessPool:
        return piece(path, place, min(place + _PIECE, end))  # a process was killed; this one does its work


def piece(path: Path, begin: int, end: int) -> list[Part]:
    """Take one stretch apart."""
    text, scratch = _room()
    return [
        swift.split_in_place(text, length, scratch) or bytes(text[:length])
        for length in blocks_between(path, begin, end, text)
    ]


@cache
def _room() -> tuple[bytearray, npt.NDArray[np.bool_]]:
    """A process's buffers, used for every block: fresh memory costs as much as reading it."""
    return bytearray(BLOCK), np.empty(BLOCK, np.bool_)
