"""Measures traces in processes of this machine.

A worker that dies costs no more than its own trace: the traces that were being measured when the pool broke are
measured again, each in a process of its own, and a trace that kills this process, too, is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from perfscope.engine.groups import Group, Mergers, measure_group, split
from perfscope.engine.tasks import Measure, MeasuredTrace, could_not_be_measured
from perfscope.workers import start_workers

_QUEUED_PER_WORKER = 2


def measure_in_processes(
    measure: Measure, groups: Sequence[Group], mergers: Mergers, workers: int
) -> Iterator[MeasuredTrace]:
    """Measure every trace in as many processes; the answers come in any order."""
    waiting = deque(groups)
    while waiting:
        running: dict[Future[tuple[MeasuredTrace, ...]], Group] = {}
        try:
            yield from _measure_until_broken(measure, waiting, running, mergers, workers)
        except BrokenProcessPool:
            for group in running.values():
                for alone in split(group):
                    yield from _measure_alone(measure, alone)


def _measure_until_broken(
    measure: Measure,
    waiting: deque[Group],
    running: dict[Future[tuple[MeasuredTrace, ...]], Group],
    mergers: Mergers,
    workers: int,
) -> Iterator[MeasuredTrace]:
    """Measure the waiting groups; where the pool breaks, ``running`` holds those that were in work."""
    with start_workers(min(workers, len(waiting))) as pool:
        while waiting or running:
            while waiting and len(running) < _QUEUED_PER_WORKER * workers:
                future = pool.submit(measure_group, waiting[0], measure, mergers)
                running[future] = waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                answers = future.result()
                del running[future]
                yield from answers


def _measure_alone(measure: Measure, group: Group) -> tuple[MeasuredTrace, ...]:
    try:
        with start_workers(1) as pool:
            return pool.submit(measure_group, group, measure, {}).result()
    except BrokenProcessPool:
        return tuple(map(could_not_be_measured, group))
