"""Measures traces on Ray: on a cluster that runs already, or on one with as many workers on this machine.

Ray starts the task of a worker that died again, elsewhere. Traces whose task died each time are measured one by one, so
that the others of their group are answered for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from perfscope.engine.cluster_choice import ClusterChoice
from perfscope.engine.groups import Group, Mergers, measure_group, split
from perfscope.engine.tasks import Measure, MeasuredTrace, could_not_be_measured
from perfscope.errors import PerfscopeError, UsageError

try:
    import ray
    from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
except ImportError:
    raise UsageError("--engine ray needs ray", hint="pip install 'perfscope-toolkit[ray]'") from None

_RETRIES = 3


def measure_on_cluster(
    measure: Measure,
    groups: Sequence[Group],
    mergers: Mergers,
    workers: int,
    scheduler: str | None = None,
    cluster: ClusterChoice | None = None,
) -> Iterator[MeasuredTrace]:
    """Measure on the cluster at an address, or on one that is started here.

    Raises:
        PerfscopeError: The cluster ended.
        UsageError: It cannot be reached, or its workers have no perfscope.
    """
    del cluster  # one of Dask, which the command refuses beside Ray
    with _connected(workers, scheduler):
        try:
            yield from _answers(measure, groups, mergers)
        except RayError as error:
            raise PerfscopeError(f"the Ray cluster ended before every trace was measured: {error}") from None


def _answers(measure: Measure, groups: Sequence[Group], mergers: Mergers) -> Iterator[MeasuredTrace]:
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(measure_group)
    running = {task.remote(group, measure, mergers): group for group in groups}
    suspects: deque[Group] = deque()
    while running or suspects:
        is_alone = not running
        if is_alone:  # whatever dies now, died of it
            group = suspects.popleft()
            running[task.remote(group, measure, {})] = group
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        group = running.pop(done)
        try:
            yield from ray.get(done)
        except (RayTaskError, WorkerCrashedError, OutOfMemoryError) as error:
            was_killed = not isinstance(error, RayTaskError)
            if not was_killed and isinstance(error.cause, (ImportError, AttributeError)):
                hint = "install the same version of perfscope-toolkit where the workers run"
                raise UsageError(f"the workers of the cluster cannot run perfscope: {error.cause}", hint=hint) from None
            if len(group) > 1 or (was_killed and not is_alone):
                suspects.extend(split(group))
            elif was_killed:
                yield from map(could_not_be_measured, group)
            else:
                reason = f"{type(error.cause).__name__}: {error.cause}"
                yield from (could_not_be_measured(files, reason) for files in group)


@contextmanager
def _connected(workers: int, address: str | None) -> Iterator[None]:
    own = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        # Without an address one that the environment names would be taken.
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"the Ray cluster at {address} cannot be reached: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()
