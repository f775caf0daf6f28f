"""Where the traces are measured: in this process, in several processes, or by the workers of a Dask cluster.

Every way yields one answer a trace, in the order in which they are done, and the same answers. A worker measures a
group of traces one after the other, and merges what can be merged before it sends it. A worker that dies costs no more
than its own trace: its group is measured again, each trace alone. A trace that kills its worker again is reported.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from perfscope.engine.progress import with_progress
from perfscope.engine.registry import Partial
from perfscope.engine.tasks import Measure, MeasuredTrace, could_not_be_measured
from perfscope.engine.windows import TraceFiles
from perfscope.errors import PerfscopeError, UsageError
from perfscope.hooks.messages import write_message

if TYPE_CHECKING:
    from concurrent.futures import Future

    from distributed import Client
    from distributed import Future as DaskFuture

Group: TypeAlias = tuple[TraceFiles, ...]
#: The functions that merge two partials of an analyzer, by its name; None for an analyzer whose partials stay apart.
Mergers: TypeAlias = Mapping[str, Callable[[Partial, Partial], Partial] | None]

#: A group is lost with its worker, and shown as progress when all of it is measured.
_LARGEST_GROUP = 16
#: So many groups a worker, so that none of them has work for long when the others have none left.
_FEWEST_PER_WORKER = 8
_QUEUED_PER_WORKER = 2

_SCHEDULER_ENDED = "the Dask scheduler ended before every trace was measured"
_LOOK_EVERY_S = 1.0
#: A queue of jobs may start its first worker much later; whoever waits is told so once.
_NO_WORKERS_AFTER_S = 20.0


class Execution(Struct, frozen=True):
    """How the map step is executed.

    Attributes:
        workers: How many processes measure traces; 1 measures them in this one. A cluster has workers of its own.
        dask: Address of the scheduler of a Dask cluster.
        shows_progress: Whether standard error shows how far the reading is.
    """

    workers: int = 1
    dask: str | None = None
    shows_progress: bool = False

    def map(
        self, measure: Measure, traces: Sequence[TraceFiles], mergers: Mergers | None = None
    ) -> Iterator[MeasuredTrace]:
        """Measure every trace; a worker may merge the partials of several, which then stand in one of their answers.

        Raises:
            UsageError: Dask is not installed, or its cluster cannot be reached.
        """
        answers = self._start(measure, traces, mergers or {})
        return with_progress(answers, len(traces)) if self.shows_progress and len(traces) > 1 else answers

    def _start(self, measure: Measure, traces: Sequence[TraceFiles], mergers: Mergers) -> Iterator[MeasuredTrace]:
        groups = form_groups(traces, self.workers)
        if self.dask is not None:
            return measure_on_dask(measure, groups, mergers, self.dask)
        if min(self.workers, len(traces)) == 1:
            return map(measure, traces)
        return measure_in_processes(measure, groups, mergers, self.workers)


def form_groups(traces: Sequence[TraceFiles], workers: int) -> list[Group]:
    """Groups of neighbours, all traces alone where there are few of them for each worker."""
    size = max(1, min(_LARGEST_GROUP, len(traces) // (_FEWEST_PER_WORKER * max(1, workers))))
    return [tuple(traces[start : start + size]) for start in range(0, len(traces), size)]


def measure_group(group: Group, measure: Measure, mergers: Mergers) -> tuple[MeasuredTrace, ...]:
    """Measure each trace; a partial that can be merged stands in the first answer that had one, merged."""
    return tuple(merge_each(map(measure, group), mergers))


def merge_each(answers: Iterable[MeasuredTrace], mergers: Mergers) -> Iterator[MeasuredTrace]:
    """The answers, which lose what can be merged to the first of them that had such a partial."""
    first: dict[str, MeasuredTrace] = {}
    for measured in answers:
        for name, merge in mergers.items():
            if merge is None or name not in measured.partials:
                continue
            owner = first.setdefault(name, measured)
            if owner is not measured:
                owner.partials[name] = merge(owner.partials[name], measured.partials.pop(name))
        yield measured


def measure_in_processes(
    measure: Measure, groups: Sequence[Group], mergers: Mergers, workers: int
) -> Iterator[MeasuredTrace]:
    """Measure every trace in as many processes; the answers come in any order."""
    # One trace needs none of them, and they take long to import.
    from concurrent.futures import FIRST_COMPLETED, wait
    from concurrent.futures.process import BrokenProcessPool

    from perfscope.workers import start_workers

    waiting, suspects = deque(groups), list[TraceFiles]()
    with start_workers(max(1, min(workers, len(groups)))) as pool:
        running: dict[Future[tuple[MeasuredTrace, ...]], Group] = {}
        while waiting or running:
            while waiting and len(running) < _QUEUED_PER_WORKER * workers:
                group = waiting.popleft()
                running[pool.submit(measure_group, group, measure, mergers)] = group
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                group = running.pop(future)
                try:
                    yield from future.result()
                except BrokenProcessPool:
                    suspects.extend(group)
        for files in suspects:  # nothing else runs: whatever dies now, died of it
            try:
                yield pool.submit(measure, files).result()
            except BrokenProcessPool:
                yield could_not_be_measured(files)


def measure_on_dask(
    measure: Measure, groups: Sequence[Group], mergers: Mergers, scheduler: str
) -> Iterator[MeasuredTrace]:
    """Measure every trace on the cluster of a scheduler; the answers come in any order.

    Dask measures the group of a worker that died elsewhere. A group whose workers died each time is measured again
    trace by trace, alone on the cluster.

    Raises:
        PerfscopeError: The scheduler ended.
        UsageError: Dask is not installed, the cluster cannot be reached, or its workers have no perfscope.
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
            yield from _answers_of_dask(client, measure, groups, mergers)
        except OSError:  # of the connection: what a worker raised is part of an answer
            raise PerfscopeError(_SCHEDULER_ENDED) from None


def _answers_of_dask(
    client: Client, measure: Measure, groups: Sequence[Group], mergers: Mergers
) -> Iterator[MeasuredTrace]:
    ended: SimpleQueue[DaskFuture] = SimpleQueue()
    running: dict[str, tuple[Group, DaskFuture]] = {}
    suspects: deque[Group] = deque()

    def submit(group: Group) -> None:
        future = client.submit(measure_group, group, measure, mergers, pure=False)
        running[future.key] = group, future
        future.add_done_callback(ended.put)

    for group in groups:
        submit(group)
    while running or suspects:
        is_alone = not running
        if is_alone:  # whatever dies now, died of it
            submit(suspects.popleft())
        future = _wait(client, ended)
        group, _ = running.pop(future.key)
        if future.status == "finished":
            yield from future.result()
        else:
            was_killed, reason = _why_failed(future)
            if len(group) > 1 or (was_killed and not is_alone):  # it may have died of what ran next to it
                suspects.extend((files,) for files in group)
            else:
                yield from (could_not_be_measured(files, *reason) for files in group)


def _wait(client: Client, ended: SimpleQueue[DaskFuture]) -> DaskFuture:
    """The next future that ends; where nobody works for a while, a line says so."""
    since_s, is_said = time.monotonic(), False
    while True:
        try:
            return ended.get(timeout=_LOOK_EVERY_S)
        except Empty:
            is_late = time.monotonic() - since_s > _NO_WORKERS_AFTER_S
            if is_late and not is_said and not client.processing():
                is_said = True
                write_message("the cluster has no worker at the moment; waiting for one (Ctrl-C ends this)")


def _why_failed(future: DaskFuture) -> tuple[bool, tuple[str, ...]]:
    """Whether the workers of a group were killed, and else the reason why they could not measure it.

    Raises:
        PerfscopeError: The scheduler ended.
        UsageError: The workers have no perfscope, or another one.
    """
    if future.status != "error":
        raise PerfscopeError(_SCHEDULER_ENDED)
    from distributed import KilledWorker  # it is there: its client is in use

    error = future.exception()
    if isinstance(error, (ImportError, AttributeError)):
        hint = "install the same version of perfscope-toolkit where the workers run"
        raise UsageError(f"the workers of the cluster cannot run perfscope: {error}", hint=hint)
    return (True, ()) if isinstance(error, KilledWorker) else (False, (f"{type(error).__name__}: {error}",))


def available_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
