"""Where the traces are measured: in this process, in several processes, or by the workers of a Dask cluster.

Every way yields one answer a trace, in the order in which they are done, and the same answers. A worker that dies costs
no more than its own trace. That one is measured again, alone; where it kills its worker again, it is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from perfscope.engine.tasks import Measure, MeasuredTrace, could_not_be_measured
from perfscope.engine.windows import TraceFiles
from perfscope.errors import PerfscopeError, UsageError
from perfscope.hooks.messages import write_line, write_message

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as DaskFuture

_T = TypeVar("_T")
_LINE_PERIOD_S = 10.0
_SCHEDULER_ENDED = "the Dask scheduler ended before every trace was measured"


class Execution(Struct, frozen=True):
    """How the map step is executed: in ``workers`` processes (1: in this one), or on Dask.

    ``dask`` is the address of a cluster's scheduler, which has workers of its own.
    """

    workers: int = 1
    dask: str | None = None
    shows_progress: bool = False

    def map(self, measure: Measure, traces: Sequence[TraceFiles]) -> Iterator[MeasuredTrace]:
        """Measure every trace. Raises UsageError: Dask is not installed, or its cluster cannot be reached."""
        if self.dask is not None:
            answers = measure_on_dask(measure, traces, self.dask)
        elif min(self.workers, len(traces)) == 1:
            answers = map(measure, traces)
        else:
            answers = measure_in_processes(measure, traces, self.workers)
        return with_progress(answers, len(traces)) if self.shows_progress and len(traces) > 1 else answers


def with_progress(answers: Iterable[_T], total: int) -> Iterator[_T]:
    """Pass the answers on, and write a line of progress each time that ten seconds have passed."""
    due_s = time.monotonic() + _LINE_PERIOD_S
    for count, answer in enumerate(answers, start=1):
        if time.monotonic() >= due_s:
            write_line(f"perfscope: {count:,} of {total:,} files are read")
            due_s = time.monotonic() + _LINE_PERIOD_S
        yield answer


def measure_in_processes(measure: Measure, traces: Sequence[TraceFiles], workers: int) -> Iterator[MeasuredTrace]:
    """Measure every trace in as many processes; the answers come in any order."""
    # One trace needs none of them, and they take long to import.
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    from perfscope.workers import start_workers

    left = list(traces)
    while left:
        broken: list[TraceFiles] = []
        with start_workers(max(1, min(workers, len(left)))) as pool:
            running = {pool.submit(measure, files): files for files in left}
            for future in as_completed(running):
                files = running.pop(future)
                try:
                    yield future.result()
                except BrokenProcessPool:
                    broken.append(files)
        lost = set(map(id, broken))
        left = [files for files in left if id(files) in lost]
        for files in left[:workers]:  # one of them was measured when a worker died; alone, whatever dies died of it
            with start_workers(1) as pool:
                try:
                    yield pool.submit(measure, files).result()
                except BrokenProcessPool:
                    yield could_not_be_measured(files)
        left = left[workers:]


def measure_on_dask(measure: Measure, traces: Sequence[TraceFiles], scheduler: str) -> Iterator[MeasuredTrace]:
    """Measure every trace on the cluster of a scheduler; the answers come in any order.

    Raises PerfscopeError: the scheduler ended. UsageError: Dask is not installed, the cluster cannot be reached, or its
    workers have no perfscope.
    """
    try:
        from distributed import Client  # an optional dependency
    except ImportError:
        raise UsageError("--dask needs dask.distributed", hint="pip install 'perfscope-toolkit[dask]'") from None
    try:
        client = Client(scheduler)
    except (OSError, ValueError) as error:
        raise UsageError(f"the Dask scheduler at {scheduler} cannot be reached: {error}") from None
    with client:
        try:
            yield from _answers_of_dask(client, measure, traces)
        except OSError:  # of the connection: what a worker raised is part of an answer
            raise PerfscopeError(_SCHEDULER_ENDED) from None


def _answers_of_dask(client: Client, measure: Measure, traces: Sequence[TraceFiles]) -> Iterator[MeasuredTrace]:
    from distributed import KilledWorker, as_completed  # they are there: their client is in use

    def reason_of(future: DaskFuture) -> tuple[str, ...]:
        if future.status != "error":
            raise PerfscopeError(_SCHEDULER_ENDED)
        error = future.exception()
        if isinstance(error, (ImportError, AttributeError)):
            hint = "install the same version of perfscope-toolkit where the workers run"
            raise UsageError(f"the workers of the cluster cannot run perfscope: {error}", hint=hint)
        # Dask measures a trace whose worker died elsewhere, some times.
        return () if isinstance(error, KilledWorker) else (f"{type(error).__name__}: {error}",)

    if not client.scheduler_info()["workers"]:
        write_message("the cluster has no worker yet; waiting for one (Ctrl-C ends this)")
    futures = [client.submit(measure, files, pure=False) for files in traces]
    running = {future.key: files for future, files in zip(futures, traces, strict=True)}
    for future in as_completed(futures):
        files = running.pop(future.key)
        if future.status == "finished":
            yield future.result()
        else:
            yield could_not_be_measured(files, *reason_of(future))


def available_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
