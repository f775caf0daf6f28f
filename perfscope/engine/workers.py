"""Three ways to measure many traces: here, in processes of this machine, or on a Dask cluster.

All of them yield one answer a trace, in the order in which they are done, and the same answers. A worker that dies
takes no more than its own trace with it: the traces that were in work when a process pool broke are measured again,
each in a process of its own, and the one that kills that too is reported.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from perfscope.engine.measuring import Measured
from perfscope.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

Measure: TypeAlias = Callable[[str], Measured]

_KEPT_READY = 2
_RETRIES = 1


class Engine(StrEnum):
    """What ``--engine`` takes."""

    SERIAL = "serial"
    PROCESS = "process"
    DASK = "dask"


def in_this_process(measure: Measure, paths: Sequence[str]) -> Iterator[Measured]:
    """One after the other."""
    for path in paths:
        yield measure(path)


def in_processes(measure: Measure, paths: Sequence[str], workers: int) -> Iterator[Measured]:
    """In as many processes of this machine."""
    from concurrent.futures.process import BrokenProcessPool

    waiting = deque(paths)
    while waiting:
        running: dict[Future[Measured], str] = {}
        try:
            yield from _until_broken(measure, waiting, running, workers)
        except BrokenProcessPool:
            for path in running.values():
                yield _alone(measure, path)


def available_workers() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _until_broken(
    measure: Measure, waiting: deque[str], running: dict[Future[Measured], str], workers: int
) -> Iterator[Measured]:
    """Measure what waits; where the pool breaks, ``running`` holds what was in work."""
    from concurrent.futures import FIRST_COMPLETED, wait

    with _pool(min(workers, len(waiting))) as pool:
        while waiting or running:
            while waiting and len(running) < _KEPT_READY * workers:
                future = pool.submit(measure, waiting[0])
                running[future] = waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                del running[future]
                yield result


def _alone(measure: Measure, path: str) -> Measured:
    from concurrent.futures.process import BrokenProcessPool

    try:
        with _pool(1) as pool:
            return pool.submit(measure, path).result()
    except BrokenProcessPool:
        return _lost(path)


def _lost(path: str) -> Measured:
    return Measured(path, None, (f"{path} could not be measured: its worker was killed, perhaps for want of memory",))


def _pool(workers: int) -> ProcessPoolExecutor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # A fork starts at once, but must not happen while another thread may hold a lock.
    methods = multiprocessing.get_all_start_methods()
    can_fork = "fork" in methods and threading.active_count() == 1
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork" if can_fork else "spawn"))


def on_dask(measure: Measure, paths: Sequence[str], workers: int, scheduler: str | None) -> Iterator[Measured]:
    """On the cluster of a scheduler, or on one that is started here with as many workers.

    Raises:
        UsageError: Dask is not installed, or the scheduler cannot be reached.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise UsageError("--engine dask needs dask.distributed", hint="pip install 'perfscope-toolkit[dask]'") from None
    with _cluster(Client, workers, scheduler) as client:
        path_of = {client.submit(measure, path, pure=False, retries=_RETRIES): path for path in paths}
        for future in as_completed(path_of):
            yield _lost(path_of[future]) if future.status == "error" else future.result()
            future.release()


def _cluster(client: Any, workers: int, scheduler: str | None) -> Any:  # noqa: ANN401 - dask's types are its own
    if scheduler is None:
        return client(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
    try:
        return client(scheduler)
    except (OSError, ValueError) as error:
        raise UsageError(f"the Dask scheduler at {scheduler} cannot be reached: {error}") from None
