"""Reads one large trace in several processes, each of which inflates and scans some of its parts.

What they give is joined in the order of the file, and is what a reading in one piece gives, to the last bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool

from perfscope.sources.traces.collecting import Collector, Request, Stretch
from perfscope.sources.traces.inflate import keep_freed_memory
from perfscope.sources.traces.parts import Part, inflate_parts
from perfscope.workers import can_fork, start_workers

__all__ = ["BrokenProcessPool", "can_fork", "collect_apart"]


def collect_apart(
    path: str,
    begun: Collector,
    blocks: Iterator[bytes],
    groups: Sequence[Sequence[Part]],
    request: Request,
    processes: int,
) -> None:
    """Collect the events of a trace in this process and some that are forked.

    Device events, which take longer than others, stand together: so each process claims one group after the other.

    Args:
        path: The trace.
        begun: What collects the events.
        blocks: What the first group contains, from the first event on.
        groups: The parts of the trace in groups, at most 256: a claim is one byte.
        request: What to read.
        processes: How many, with this one.

    Raises:
        BrokenProcessPool: A process was killed.
        DoesNotFit: The layout is not kept.
        PartsDiffer: A part is not what the index says.
        TimesDoNotFit: A time is too large for a double.
    """
    claims, unclaimed = os.pipe()
    try:
        os.write(unclaimed, bytes(range(1, len(groups))))
        os.close(unclaimed)
        with start_workers(processes - 1) as pool:
            answers = [pool.submit(_collect_claimed, path, groups, request, claims) for _ in range(processes - 1)]
            begun.collect(blocks)
            stretches = dict(_collect_claimed(path, groups, request, claims))
            for answer in answers:
                stretches.update(answer.result())
    finally:
        os.close(claims)
    for number in range(1, len(groups)):
        begun.absorb(stretches.pop(number))


def _collect_claimed(
    path: str, groups: Sequence[Sequence[Part]], request: Request, claims: int
) -> Mapping[int, Stretch]:
    """Collect the events of groups that no other process has claimed, until there are none."""
    keep_freed_memory()
    stretches = {}
    while claim := os.read(claims, 1):
        stretches[claim[0]] = Collector(request).collect_stretch(inflate_parts(path, groups[claim[0]]))
    return stretches
