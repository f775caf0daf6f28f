"""A whole job for a replay: from a file of operations, or from a run's passes of micro-batches."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.job_replay.from_micro_batches import job_from_micro_batches
from perfscope.analyzers.job_replay.from_operations import job_from_operations
from perfscope.analyzers.job_replay.job import Job
from perfscope.errors import MissingInput, SourceError
from perfscope.sources.operations.reading import read_operations
from perfscope.sources.runs.run import read_run


def read_job(path: Path) -> tuple[Job, tuple[str, ...]]:
    """Read a job, and what of it is damaged.

    Raises:
        SourceError: The path has neither operations nor passes of micro-batches.
        PerfscopeError: No step can be replayed.
    """
    if not path.is_dir():
        return job_from_operations(read_operations(path)), ()
    run = read_run(path)
    try:
        return job_from_micro_batches(run), tuple(run.damage)
    except MissingInput as missing:
        raise SourceError(
            path, f"cannot be replayed: {missing.problem}", hint="traces are replayed without --operations"
        ) from None
