"""Runs with partials beside their traces, as hosts leave them."""

from __future__ import annotations

import shutil
from pathlib import Path

from perfscope.engine.partials_at_capture import measure_process, process_of
from perfscope.sources.traces.files import find_traces


def copy_with_partials(run: Path, folder: Path) -> Path:
    """A copy of a run in which every process stored the partials of its traces."""
    copy = shutil.copytree(run, folder / run.name)
    store_partials(copy)
    return copy


def store_partials(run: Path) -> None:
    """Store the partials of all traces of a run."""
    traces = find_traces([str(run / "traces")])
    for trace in {process_of(path): path for path in traces}.values():
        measure_process(trace.removesuffix(".gz"), frozenset(traces))


def without_traces(run: Path) -> Path:
    """The same run, as it is where the traces stayed on their hosts."""
    for trace in find_traces([str(run / "traces")]):
        Path(trace).unlink()
    return run
