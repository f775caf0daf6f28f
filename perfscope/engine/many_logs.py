"""Summaries of many logs: small files by several processes, and lines of progress on standard error."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeAlias

from perfscope.analyzers.logs.setup import Overrides
from perfscope.analyzers.logs.summary import LogSummary, summarize_log
from perfscope.constants import MIB
from perfscope.engine.progress_lines import with_lines
from perfscope.errors import SourceError
from perfscope.sources.joblog import read_log
from perfscope.workers import Workers, start_workers

#: A summary, or why a file cannot be read: a sentence, because an error does not come back from another process.
Answer: TypeAlias = "LogSummary | str"

_MANY = 256
_CHUNK = 64
_AHEAD = 3
_MOST_PROCESSES = 4
_SMALL_BYTES = MIB  # a large log is read by several processes itself


def summarize_logs(paths: Sequence[Path], overrides: Overrides) -> Iterator[tuple[Path, Answer]]:
    """Yield every log with its summary, or with why it cannot be read, in the order of the paths."""
    processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
    answers = _by_processes(paths, overrides, processes) if len(paths) >= _MANY and processes > 1 else None
    alone = ((path, _summarize(path, overrides)) for path in paths)
    return with_lines(alone if answers is None else answers, len(paths))


def _by_processes(paths: Sequence[Path], overrides: Overrides, processes: int) -> Iterator[tuple[Path, Answer]]:
    with start_workers(processes) as pool:
        waiting: deque[tuple[Sequence[Path], Future[list[Answer | None]]]] = deque()
        for start in range(0, len(paths), _CHUNK):
            chunk = paths[start : start + _CHUNK]
            waiting.append((chunk, _submit(pool, chunk, overrides)))
            if len(waiting) > _AHEAD * processes:
                yield from _answers(*waiting.popleft(), overrides)
        while waiting:
            yield from _answers(*waiting.popleft(), overrides)


def _submit(pool: Workers, chunk: Sequence[Path], overrides: Overrides) -> Future[list[Answer | None]]:
    try:
        return pool.submit(_summarize_small, chunk, overrides)
    except BrokenProcessPool as error:
        broken: Future[list[Answer | None]] = Future()
        broken.set_exception(error)
        return broken


def _answers(
    chunk: Sequence[Path], future: Future[list[Answer | None]], overrides: Overrides
) -> Iterator[tuple[Path, Answer]]:
    try:
        answers = future.result()
    except BrokenProcessPool:
        answers = [None] * len(chunk)  # a process was killed; this one does its work
    for path, answer in zip(chunk, answers, strict=True):
        yield path, _summarize(path, overrides) if answer is None else answer


def _summarize_small(paths: Sequence[Path], overrides: Overrides) -> list[Answer | None]:
    """Summarize the small files among some paths; None for each of the others."""
    return [_summarize(path, overrides) if _is_small(path) else None for path in paths]


def _is_small(path: Path) -> bool:
    try:
        return path.stat().st_size <= _SMALL_BYTES
    except OSError:
        return False


def _summarize(path: Path, overrides: Overrides) -> Answer:
    try:
        return summarize_log(read_log(path), overrides)
    except SourceError as error:
        return str(error)
