"""What the paths of a command stand for: one run's folder, or traces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.errors import SourceError
from perfscope.sources.runs.folder import is_run
from perfscope.sources.traces.files import MOST_FILES, TRACE_ENDINGS, find_traces, is_url
from perfscope.wire import TRACES_FOLDER

if TYPE_CHECKING:
    from perfscope.tables.run import Run


@dataclass(frozen=True, slots=True)
class Inputs:
    """One run, or traces.

    Attributes:
        locations: The paths as they were typed.
        run: The run; absent where traces were given.
        traces: The paths of the traces, of the run's or of those that were given.
    """

    locations: tuple[str, ...]
    run: Run | None
    traces: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders that are read."""
        return (self.locations[0], *self.traces) if self.run else self.traces

    def missing_traces(self) -> list[str]:
        """The traces that the run's finished windows name and that do not exist, as sentences."""
        if self.run is None:
            return []
        existing = {Path(trace).name.removesuffix(".gz") for trace in self.traces}
        missing = [window for window in self.run.windows if Path(window.trace).name not in existing]
        return [f"rank {window.rank}: its trace {TRACES_FOLDER}/{window.trace} is missing" for window in missing]


def split_into_runs(paths: Sequence[str | os.PathLike[str]]) -> list[tuple[str, ...]]:
    """The paths of each run, and those of all traces together; a run that is typed twice counts once.

    A folder of runs stands for the runs in it. Traces are of one job, whichever folders they are in.
    """
    runs: dict[Path, str] = {}
    traces: list[str] = []
    for path in paths:
        location = os.fspath(path)
        folders = _find_runs(location)
        runs.update((folder.resolve(), os.fspath(folder)) for folder in folders if folder.resolve() not in runs)
        traces += [] if folders else [location]
    return [*((folder,) for folder in runs.values()), *([tuple(traces)] if traces else [])]


def _find_runs(location: str) -> list[Path]:
    """The run that a path is, or the runs that a folder holds."""
    path = Path(location)
    if is_url(location) or not path.is_dir():
        return []
    return [path] if is_run(path) else sorted(child for child in path.iterdir() if child.is_dir() and is_run(child))


def find_inputs(paths: Sequence[str | os.PathLike[str]], most_files: int = MOST_FILES) -> Inputs:
    """Read the run, and find the traces.

    Raises:
        SourceError: A path does not exist, or there is neither a run nor a trace.
        UsageError: There are more files than ``most_files`` that may be traces.
    """
    locations = tuple(os.fspath(path) for path in paths)
    if len(locations) == 1 and is_run(Path(locations[0])):
        from perfscope.sources.runs.run import read_run  # traces alone need nothing that reads runs

        folder = Path(locations[0]) / TRACES_FOLDER
        traces = find_traces([str(folder)], most_files) if folder.is_dir() else []
        return Inputs(locations, read_run(Path(locations[0])), tuple(traces))
    traces = find_traces(locations, most_files)
    if not traces:
        raise SourceError(locations[0], "contains no trace", hint=f"traces end in {' or '.join(TRACE_ENDINGS)}")
    return Inputs(locations, None, tuple(traces))
