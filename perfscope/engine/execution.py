"""Where the traces are measured: in this process, in a pool of processes, or on a Dask cluster.

Every backend yields one answer a trace, in the order in which they are done, and the same answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from importlib import import_module

from msgspec import Struct

from perfscope.engine.cluster_choice import ClusterChoice
from perfscope.engine.groups import Mergers, form_groups
from perfscope.engine.tasks import Measure, MeasuredTrace
from perfscope.engine.windows import TraceFiles


class Backend(StrEnum):
    """The execution backends, as ``--engine`` names them."""

    SERIAL = "serial"
    PROCESS = "process"
    DASK = "dask"
    RAY = "ray"


#: What measures on a cluster, by its `measure_on_cluster`: loaded by name, for it needs what may not be there.
_CLUSTERS = {Backend.DASK: "perfscope.engine.dask_cluster", Backend.RAY: "perfscope.engine.ray_cluster"}


class Execution(Struct, frozen=True):
    """How the map step is executed.

    Attributes:
        backend: Where.
        workers: How many traces are measured in parallel; the cluster of a scheduler has workers of its own.
        scheduler: Address of a Dask scheduler, or of a Ray cluster; absent where a cluster is to be started.
        cluster: The cluster to start with as many workers; absent where it is to be on this machine.
        shows_progress: Whether standard error shows how far the reading is.
    """

    backend: Backend = Backend.SERIAL
    workers: int = 1
    scheduler: str | None = None
    cluster: ClusterChoice | None = None
    shows_progress: bool = False

    def map(
        self, measure: Measure, traces: Sequence[TraceFiles], mergers: Mergers | None = None
    ) -> Iterator[MeasuredTrace]:
        """Measure every trace; a worker may merge the partials of several, which then stand in one of their answers.

        Raises:
            UsageError: What the backend needs is not installed, or its cluster cannot be reached.
        """
        answers = self._start(measure, traces, mergers or {})
        if self.shows_progress and len(traces) > 1:
            from perfscope.engine.progress import with_progress  # rich takes as long to import as a small trace to read

            return with_progress(answers, len(traces))
        return answers

    def _start(self, measure: Measure, traces: Sequence[TraceFiles], mergers: Mergers) -> Iterator[MeasuredTrace]:
        if self.backend in _CLUSTERS:
            start = import_module(_CLUSTERS[self.backend]).measure_on_cluster
            groups = form_groups(traces, self.workers)
            answers: Iterator[MeasuredTrace] = start(
                measure, groups, mergers, self.workers, self.scheduler, self.cluster
            )
            return answers
        if self.backend is Backend.SERIAL or min(self.workers, len(traces)) == 1:
            return map(measure, traces)
        from perfscope.engine.process_pool import measure_in_processes  # multiprocessing: one trace does not need it

        return measure_in_processes(measure, form_groups(traces, self.workers), mergers, self.workers)


def available_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
