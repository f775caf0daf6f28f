"""Measures traces in processes of this machine.

A worker that dies costs no more than its own trace: the traces that were being measured when the pool broke are
measured again, each in a process of its own, and a trace that kills this process, too, is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from perfscope.engine.measuring import Measure, MeasuredTrace, worker_was_killed
from perfscope.engine.windows import TraceFiles
from perfscope.workers import start_workers

_QUEUED_PER_WORKER = 2


def measure_in_processes(measure: Measure, traces: Sequence[TraceFiles], workers: int) -> Iterator[MeasuredTrace]:
    """Measure every trace in as many processes; the answers come in any order."""
    waiting = deque(traces)
    while waiting:
        running: dict[Future[MeasuredTrace], TraceFiles] = {}
        try:
            yield from _measure_until_broken(measure, waiting, running, workers)
        except BrokenProcessPool:
            for files in running.values():
                yield _measure_alone(measure, files)


def _measure_until_broken(
    measure: Measure, waiting: deque[TraceFiles], running: dict[Future[MeasuredTrace], TraceFiles], workers: int
) -> Iterator[MeasuredTrace]:
    """Measure the waiting traces; where the pool breaks, ``running`` holds those that were in work."""
    with start_workers(min(workers, len(waiting))) as pool:
        while waiting or running:
            while waiting and len(running) < _QUEUED_PER_WORKER * workers:
                future = pool.submit(measure, waiting[0])
                running[future] = waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                measured = future.result()
                del running[future]
                yield measured


def _measure_alone(measure: Measure, files: TraceFiles) -> MeasuredTrace:
    try:
        with start_workers(1) as pool:
            return pool.submit(measure, files).result()
    except BrokenProcessPool:
        return worker_was_killed(files)
