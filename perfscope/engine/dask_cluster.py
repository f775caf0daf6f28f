"""Measures traces on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.engine.measuring import Measure, MeasuredTrace, worker_was_killed
from perfscope.engine.windows import TraceFiles
from perfscope.errors import UsageError

try:
    from distributed import Client, as_completed
except ImportError:
    raise UsageError("--engine dask needs dask.distributed", hint="pip install 'perfscope-toolkit[dask]'") from None

_RETRIES = 1


def measure_on_cluster(
    measure: Measure, traces: Sequence[TraceFiles], workers: int, scheduler: str | None
) -> Iterator[MeasuredTrace]:
    """Measure on the cluster of a scheduler, or on one that is started here with as many workers.

    Raises:
        UsageError: The scheduler cannot be reached.
    """
    with _connect(workers, scheduler) as client:
        files_of = {client.submit(measure, files, pure=False, retries=_RETRIES): files for files in traces}
        for future in as_completed(files_of):
            yield worker_was_killed(files_of[future]) if future.status == "error" else future.result()
            future.release()


def _connect(workers: int, scheduler: str | None) -> Client:
    if scheduler is None:
        return Client(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0")
    try:
        return Client(scheduler)
    except (OSError, ValueError) as error:
        raise UsageError(f"the Dask scheduler at {scheduler} cannot be reached: {error}") from None
