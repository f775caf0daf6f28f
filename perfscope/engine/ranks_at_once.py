"""Stored partials of very many ranks: read group by group, in forked processes where processors are free.

Each process merges what can be merged, and packs the rest (``perfscope.engine.packing``), so that the driver neither
decodes the partials of a job nor keeps what all ranks have in common for each of them. What a process that ended had to
answer is read here instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial as bind
from typing import TypeAlias, cast

from perfscope.engine.execution import Mergers, merge_each
from perfscope.engine.packing import pack, unpack
from perfscope.engine.reading import read_each
from perfscope.engine.tasks import MeasuredTrace
from perfscope.engine.windows import TraceFiles
from perfscope.forks import Fork, NoAnswer, can_fork, forked
from perfscope.sources.partials.stored import Refused

#: What the partials of a trace answer, and the analyzers for which they say nothing; or why they are not taken.
Taken: TypeAlias = "tuple[MeasuredTrace, tuple[str, ...]] | Refused"
Take: TypeAlias = Callable[[TraceFiles], Taken]
_Running: TypeAlias = "tuple[ExitStack, Sequence[Fork[tuple[bytes, bytes]]], Sequence[TraceFiles]]"

#: Fewer are read before a process has started.
_FEWEST = 512
#: A process needs the memory of so many ranks at once.
_IN_A_GROUP = 256
#: So many are read here first: what they import and prepare, all processes have.
_FIRST = 8


def take_each(files: Sequence[TraceFiles], take: Take, mergers: Mergers, workers: int) -> Iterator[Taken]:
    """What ``take`` gives for each trace, in their order; merged partials stand in one of the answers of a group.

    Args:
        files: The traces.
        take: Reads the partials of one.
        mergers: See ``perfscope.engine.execution``.
        workers: In how many processes to read.
    """
    if len(files) < _FEWEST:
        yield from read_each(take, files)
        return
    yield from read_each(take, files[:_FIRST])
    begins = deque(range(_FIRST, len(files), _IN_A_GROUP))
    running: deque[_Running] = deque()
    try:
        while begins or running:
            while begins and len(running) < workers:
                begin = begins.popleft()
                running.append(_start(files[begin : begin + _IN_A_GROUP], take, mergers, workers))
            stack, forks, group = running.popleft()
            with stack:
                packed = _answer(forks, group, take, mergers)
            yield from cast("list[Taken]", unpack(packed))
    finally:
        for stack, _, _ in running:
            stack.close()


def _start(group: Sequence[TraceFiles], take: Take, mergers: Mergers, workers: int) -> _Running:
    """A process for a group; none where it is to be read here."""
    stack = ExitStack()
    is_forked = workers > 1 and can_fork()
    work = bind(_take_group, group, take, mergers)
    return stack, stack.enter_context(forked(work, 1)) if is_forked else (), group


def _answer(
    forks: Sequence[Fork[tuple[bytes, bytes]]], group: Sequence[TraceFiles], take: Take, mergers: Mergers
) -> tuple[bytes, bytes]:
    for fork in forks:
        try:
            return fork.answer()
        except NoAnswer:
            break
    return _take_group(group, take, mergers)


def _take_group(group: Sequence[TraceFiles], take: Take, mergers: Mergers) -> tuple[bytes, bytes]:
    """The answers of a group; what is joined with what must yet be measured is not merged."""
    every = list(read_each(take, group))
    whole = (taken[0] for taken in every if not isinstance(taken, Refused) and not taken[1])
    deque(merge_each(whole, mergers), maxlen=0)
    return pack(every)
