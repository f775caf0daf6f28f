"""Measures traces on a Dask cluster.

Whatever becomes of a worker, each trace is answered for once: a group whose worker died is measured elsewhere, one
whose worker does not get on is measured a second time by a worker that is idle, and the first answer counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias

from perfscope.engine.cluster_choice import ClusterChoice
from perfscope.engine.clusters import connect
from perfscope.engine.groups import Group, Mergers, measure_group, split
from perfscope.engine.tasks import Measure, MeasuredTrace, could_not_be_measured
from perfscope.errors import PerfscopeError, UsageError
from perfscope.hooks.messages import write_message

try:
    from distributed import Client, Future, KilledWorker
except ImportError:
    raise UsageError("--engine dask needs dask.distributed", hint="pip install 'perfscope-toolkit[dask]'") from None

_Answer: TypeAlias = tuple[float, tuple[MeasuredTrace, ...]]

_NO_SCHEDULER = "the Dask scheduler ended before every trace was measured"
_RETRIES = 1
_LOOK_EVERY_S = 1.0
#: Without an answer for so many times the longest that a group took, idle workers measure again what is missing.
_LATE_AFTER = 4.0
_LEAST_PATIENCE_S = 15.0
#: How long before anything is known of how long a group takes.
_FIRST_PATIENCE_S = 120.0
_MOST_COPIES = 3
#: A queue of jobs may start its first worker much later; whoever waits is told so once.
_NO_WORKERS_AFTER_S = 20.0


def measure_on_cluster(
    measure: Measure,
    groups: Sequence[Group],
    mergers: Mergers,
    workers: int,
    scheduler: str | None = None,
    cluster: ClusterChoice | None = None,
) -> Iterator[MeasuredTrace]:
    """Measure on the cluster of a scheduler, on one of a batch system, or on one with as many workers on this machine.

    Raises:
        PerfscopeError: The scheduler ended.
        UsageError: The scheduler cannot be reached, or its workers have no perfscope.
    """
    with connect(workers, scheduler, cluster) as client:
        try:
            yield from _Job(client, measure, mergers).answers(groups)
        except OSError:  # of the connection: what a worker raised is part of an answer
            raise PerfscopeError(_NO_SCHEDULER) from None


def _timed(group: Group, measure: Measure, mergers: Mergers) -> _Answer:
    """The answers for a group, and how long they took in seconds."""
    start_s = time.monotonic()
    answers = measure_group(group, measure, mergers)
    return time.monotonic() - start_s, answers


class _Job:
    """The groups that wait for an answer, each with its copies on the cluster."""

    def __init__(self, client: Client, measure: Measure, mergers: Mergers) -> None:
        self._client = client
        self._measure = measure
        self._mergers = mergers
        self._ended: SimpleQueue[Future] = SimpleQueue()
        self._groups: dict[str, Group] = {}
        self._copies: dict[Group, list[Future]] = {}
        self._suspects: deque[Group] = deque()
        self._on_trial: Group | None = None
        self._longest_s: float | None = None
        self._quiet_since_s = time.monotonic()
        self._said_that_none_works = False

    def answers(self, groups: Sequence[Group]) -> Iterator[MeasuredTrace]:
        """The answers of all traces, in any order."""
        for group in groups:
            self._submit(group)
        while self._copies or self._suspects:
            if not self._copies:  # alone on the cluster: whatever dies now, died of it
                self._on_trial = self._suspects.popleft()
                self._submit(self._on_trial)
            try:
                future = self._ended.get(timeout=_LOOK_EVERY_S)
            except Empty:
                self._look()
                continue
            if future.key not in self._groups:  # a copy was faster
                continue
            yield from self._settle(self._groups.pop(future.key), future)
            self._quiet_since_s = time.monotonic()

    def _submit(self, group: Group, workers: Sequence[str] | None = None) -> None:
        future = self._client.submit(
            _timed, group, self._measure, self._mergers,
            pure=False, retries=_RETRIES, workers=workers, allow_other_workers=workers is not None,
        )  # fmt: skip
        self._groups[future.key] = group
        self._copies.setdefault(group, []).append(future)
        future.add_done_callback(self._ended.put)

    def _settle(self, group: Group, future: Future) -> tuple[MeasuredTrace, ...]:
        """The answers for a group one copy of which has ended; none where its traces are measured again one by one."""
        copies = self._copies[group]
        if future.status != "finished":
            copies.remove(future)
            if copies:  # another one may yet succeed
                return ()
            del self._copies[group]
            return self._failed(group, future)
        seconds, answers = future.result()
        self._longest_s = max(self._longest_s or 0.0, seconds)
        del self._copies[group]
        for copy in copies:
            self._groups.pop(copy.key, None)
        self._client.cancel([copy for copy in copies if copy is not future])
        return tuple(answers)

    def _failed(self, group: Group, future: Future) -> tuple[MeasuredTrace, ...]:
        """What to do about a group that no worker could measure.

        Raises:
            PerfscopeError: The scheduler ended.
            UsageError: The workers have no perfscope, or another one.
        """
        if future.status != "error":
            raise PerfscopeError(_NO_SCHEDULER)
        error = future.exception()
        if isinstance(error, (ImportError, AttributeError)):
            hint = "install the same version of perfscope-toolkit where the workers run"
            raise UsageError(f"the workers of the cluster cannot run perfscope: {error}", hint=hint)
        was_killed = isinstance(error, KilledWorker)
        if len(group) > 1 or (was_killed and group != self._on_trial):  # it may have died of what ran beside it
            self._suspects.extend(split(group))
            return ()
        if was_killed:
            return tuple(map(could_not_be_measured, group))
        return tuple(could_not_be_measured(files, f"{type(error).__name__}: {error}") for files in group)

    def _look(self) -> None:
        """Nothing came for a while: say so where nobody works, and repeat what is late where somebody is idle."""
        quiet_s = time.monotonic() - self._quiet_since_s
        keys_of = {address: set(keys) for address, keys in self._client.processing().items()}
        if not keys_of and quiet_s > _NO_WORKERS_AFTER_S and not self._said_that_none_works:
            self._said_that_none_works = True
            write_message("the cluster has no worker at the moment; waiting for one (Ctrl-C ends this)")
        known_s = None if self._longest_s is None else max(_LEAST_PATIENCE_S, _LATE_AFTER * self._longest_s)
        if quiet_s < (_FIRST_PATIENCE_S if known_s is None else known_s):
            return
        self._quiet_since_s = time.monotonic()
        idle = [address for address, keys in keys_of.items() if not keys]
        for group, copies in list(self._copies.items()):
            busy = {address for address, keys in keys_of.items() for copy in copies if copy.key in keys}
            if busy and idle and len(copies) < _MOST_COPIES:
                self._submit(group, idle)
