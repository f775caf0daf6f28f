"""What the paths of a command stand for: one run's folder, or traces."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.errors import SourceError
from perfscope.sources.partials import Refused, read_partials
from perfscope.sources.runs.folder import find_runs, is_folder_at, is_run_at
from perfscope.sources.stores.location import is_url, join
from perfscope.sources.stores.reading import FOLDER, kind_of
from perfscope.sources.traces.files import TRACE_ENDINGS, find_absent, find_traces
from perfscope.units import format_count
from perfscope.wire import LIGHT_FOLDER, TRACES_FOLDER
from perfscope.wire.traces import file_name, partials_path

if TYPE_CHECKING:
    from perfscope.tables.run import Run

#: How traces come to where their run is analyzed.
FETCH = "`perfscope collect --traces RANKS` brings them"


class Inputs(Struct, frozen=True):
    """One run, or traces.

    Attributes:
        locations: The paths as they were typed.
        run: The run; absent where traces were given.
        traces: The paths of the traces, of the run's or of those that were given.
        absent: Those of them of which the partials alone are at hand: the traces stayed on their hosts.
    """

    locations: tuple[str, ...]
    run: Run | None
    traces: Sequence[str]
    absent: Collection[str] = frozenset()

    @property
    def paths(self) -> Sequence[str]:
        """The files and folders that are read."""
        return tuple(chain(self.locations, self.traces)) if self.run else self.traces

    def missing_traces(self) -> list[str]:
        """The traces that the run's finished windows name and that do not exist, as sentences."""
        if self.run is None:
            return []
        existing = {Path(trace).name.removesuffix(".gz") for trace in self.traces}
        missing = [window for window in self.run.windows if Path(window.trace).name not in existing]
        return [f"rank {window.rank}: its trace {TRACES_FOLDER}/{window.trace} is missing" for window in missing]

    def at_hand(self) -> list[str]:
        """The traces that can be read."""
        return [trace for trace in self.traces if trace not in self.absent]

    def stayed_on_hosts(self) -> list[str]:
        """That traces are not at hand, as a sentence; none where all are."""
        return [f"{format_count(len(self.absent), 'trace')} stayed on the hosts; {FETCH}"] if self.absent else []


def split_into_runs(paths: Sequence[str | os.PathLike[str]]) -> list[tuple[str, ...]]:
    """The paths of each run, and those of all traces together; a run that is typed twice counts once.

    A folder of runs stands for the runs in it. Traces are of one job, whichever folders they are in.
    """
    runs: dict[str | Path, str] = {}
    traces: list[str] = []
    for path in paths:
        location = os.fspath(path)
        folders = [] if _may_be_traces(location) else find_runs(location)
        for folder in folders:
            runs.setdefault(folder.rstrip("/") if is_url(folder) else Path(folder).resolve(), folder)
        traces += [] if folders else [location]
    return [*((folder,) for folder in runs.values()), *([tuple(traces)] if traces else [])]


def _may_be_traces(location: str) -> bool:
    """Whether a URL names a trace, or is a pattern and no folder of that name: then it is no run."""
    if not is_url(location):
        return False
    return location.endswith(TRACE_ENDINGS) or (glob.has_magic(location) and kind_of(location) != FOLDER)


def find_inputs(paths: Sequence[str | os.PathLike[str]]) -> Inputs:
    """Read the run, and find the traces.

    Raises SourceError: a path does not exist, or there is neither a run nor a trace. UsageError: there are too many
    files that may be traces.
    """
    locations = tuple(os.fspath(path) for path in paths)
    if len(locations) == 1 and not _may_be_traces(locations[0]) and is_run_at(locations[0]):
        from perfscope.sources.runs.stored import read_run_at  # traces alone need nothing that reads runs

        run = read_run_at(locations[0])
        folder = join(locations[0], TRACES_FOLDER) if is_url(locations[0]) else str(Path(locations[0]) / TRACES_FOLDER)
        traces = find_traces([folder]) if is_folder_at(folder) else []
        absent = _find_absent([folder], traces) if is_folder_at(folder) else []
        return Inputs(locations, run, tuple(sorted([*traces, *absent])), frozenset(absent))
    traces = find_traces(locations)
    absent = _find_absent(locations, traces)
    if not traces and not absent:
        raise SourceError(locations[0], "contains no trace", hint=f"traces end in {' or '.join(TRACE_ENDINGS)}")
    return Inputs(locations, None, tuple(sorted([*traces, *absent])), frozenset(absent))


def _find_absent(locations: Sequence[str], traces: Sequence[str]) -> list[str]:
    """The traces of which the partials alone are at hand, and the windows that were measured with them."""
    absent = find_absent(locations, traces)
    partners: list[str] = []
    for light in absent:
        folder, _, _ = light.rpartition(f"{LIGHT_FOLDER}/{file_name(light)}")
        if folder:
            with suppress(Refused):
                partners += [f"{folder}{trace.name}" for trace in read_partials(partials_path(light)).traces[1:]]
    every, at_hand = dict.fromkeys([*absent, *partners]) if partners else absent, set(traces)
    return [trace for trace in every if trace not in at_hand]
