"""Partials where traces are made: measured after their compression, one trace at a time on a host.

``hooks/profiler/compress.py`` starts it at its own idle priority, and nobody waits for it: what is not measured in
time, or not at all, is simply not there, and its trace is read when it is analyzed.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from perfscope.constants import GIB
from perfscope.engine.measuring import measure_trace, read_files
from perfscope.engine.partials import paths_of, store
from perfscope.engine.registry import BUILT_IN, Analyzer, Reads
from perfscope.engine.tasks import MeasuredTrace, Task, read_events
from perfscope.engine.windows import TraceFiles, plan_windows
from perfscope.errors import SourceError
from perfscope.sources.partials.values import Unstorable, pack_value
from perfscope.sources.runs.objects import read_object, recorded_options
from perfscope.sources.traces.matching import NoMatch
from perfscope.sources.traces.metadata import read_metadata
from perfscope.tables.trace import ABSENT, Events, Trace
from perfscope.wire import LIGHT_FOLDER, RUN_FILE, TRACE_SUFFIX
from perfscope.wire.traces import TraceMetadata, partials_path

#: How long all of it may take, waiting for other processes of the host included.
LONGEST_S = 600
_LONGEST_CPU_S = 300
_LARGEST_MEMORY = 16 * GIB
_LOCK_EVERY_S = 0.2
#: Where all jobs of a host find the same lock, whatever folder for temporary files each of them has.
_TEMPORARY = "/tmp"
_BY_NAME = {analyzer.name: analyzer for analyzer in BUILT_IN}


def serve(words: Sequence[str]) -> None:
    """Measure all traces of the queue of a host, and end.

    Args:
        words: The folder of the queue, and the number of an open file that holds its lock, which no other process has.
    """
    queue, lock = Path(words[0]), int(words[1])
    while True:
        for entry in _entries(queue):
            try:
                queued_s = entry.stat().st_mtime
                traces = entry.read_bytes().decode(errors="surrogateescape").split("\0")
                entry.unlink()  # first: what ends this process is not met again
            except FileNotFoundError:  # it lay there so long that who queued another one took it out
                continue
            main(traces, queued_s + LONGEST_S - time.time())
        fcntl.flock(lock, fcntl.LOCK_UN)
        if not _entries(queue):
            return
        try:  # who queued it may have found the lock taken a moment ago
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return


def _entries(queue: Path) -> list[Path]:
    """What is queued, the oldest first."""
    return sorted(queue.glob("*.traces"))


def main(traces: Sequence[str], longest_s: float = LONGEST_S) -> None:
    """Measure traces that were just compressed, and the light windows among them with the windows that explain them.

    Args:
        traces: Paths of the traces as they were before they were compressed.
        longest_s: After how many seconds no further trace is begun.
    """
    limit_resources()
    until = time.monotonic() + longest_s
    for path in {process_of(trace): trace for trace in traces}.values():
        measure_process(path, frozenset(f"{trace}.gz" for trace in traces), until)


def measure_process(trace: str, compressed: frozenset[str], until: float = float("inf")) -> None:
    """Measure the traces of one process that were just compressed.

    Args:
        trace: One of them.
        compressed: All traces that were just compressed.
        until: When no further trace is begun, on the monotonic clock.
    """
    folder = Path(trace).parent
    folder = folder.parent if folder.name == LIGHT_FOLDER else folder
    of_process = f"{process_of(trace)}.*{TRACE_SUFFIX}.gz"
    siblings = sorted(str(path) for path in folder.rglob(of_process))
    task = task_at_capture(folder.parent)
    for files in plan_windows(siblings, None).files:
        if files.path in compressed and time.monotonic() < until:
            with alone_on_host(until) as is_alone:
                # Where two windows cannot be matched, the analysis reads the one with operators.
                if is_alone and not store_beside(files, task) and files.operators is not None:
                    store_beside(TraceFiles(files.operators), task)


def store_beside(files: TraceFiles, task: Task) -> bool:
    """Measure one trace, and write its partials beside it; False where there is nothing to write."""
    try:
        before = [Path(path).stat() for path in paths_of(files)]
        trace = read_files(files, task)
        measured = measure_trace(files.path, trace, task)
        content = store(
            measured,
            files,
            task.analyzers,
            read_events(measured, files, task),
            alike_without_grids=_find_alike(trace, measured, task),
            hooks=read_metadata(files.path) or TraceMetadata(),
        )
        if not all(map(_is_unchanged, paths_of(files), before)):
            return False  # it says what it measured of one trace, and has the hash of another
        _replace(partials_path(files.path), content)
    except (MemoryError, NoMatch, OSError, SourceError, Unstorable):
        return False
    return True


def _is_unchanged(path: str, before: os.stat_result) -> bool:
    """Whether a file is the one that it was, and nobody wrote into it.

    Raises:
        OSError: It is gone.
    """
    now = Path(path).stat()
    return (now.st_ino, now.st_size, now.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def _replace(path: str, content: bytes) -> None:
    """Write a file so that nobody reads a part; after a crash of the host it may be cut, which who reads it notices.

    What a process began that was killed is removed: only one measures on a host.

    Raises:
        OSError: It cannot be written.
    """
    target = Path(path)
    for begun in target.parent.glob(f"{escape(target.name)}.*.tmp"):
        begun.unlink(missing_ok=True)
    unfinished = Path(f"{path}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def task_at_capture(run: Path) -> Task:
    """What an analysis of the run measures where nothing is chosen, and what comparisons of runs measure."""
    recorded = recorded_options(read_object(run / RUN_FILE, []))
    names = [analyzer.name for analyzer in BUILT_IN if _is_measured(analyzer, recorded)]
    return Task(tuple(names), Events.GRIDS)


def process_of(trace: str) -> str:
    """The host and the process of a trace, as its name begins.

    >>> process_of("RUN/traces/light/vm_17.1795.pt.trace.json")
    'vm_17'
    """
    return Path(trace).name.removesuffix(TRACE_SUFFIX).rpartition(".")[0]


def limit_resources() -> None:
    """Let this process end where it takes too much of the host's processors, from now on, or of its memory."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    most_s = math.ceil(usage.ru_utime + usage.ru_stime) + _LONGEST_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    resource.setrlimit(resource.RLIMIT_AS, (_LARGEST_MEMORY, _LARGEST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def alone_on_host(until: float) -> Iterator[bool]:
    """Wait for the user's other processes of this host that measure traces; False where time is over before."""
    path = Path(_TEMPORARY) / f"perfscope-measuring-{os.getuid()}.lock"
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield _locked(lock, until)
    finally:
        os.close(lock)


def _locked(lock: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOCK_EVERY_S)
        else:
            return True


def _is_measured(analyzer: Analyzer, recorded: frozenset[str]) -> bool:
    return (
        analyzer.reads is not Reads.RUN
        and analyzer.partials_of is None
        and analyzer.is_stored
        and (analyzer.is_default or analyzer.recorded_by is None or analyzer.recorded_by in recorded)
    )


def _find_alike(trace: Trace, measured: MeasuredTrace, task: Task) -> frozenset[str]:
    """The analyzers whose partials are the same without the grids of kernels, which one trace alone is read without."""
    if (trace.world_size or 1) > 1:
        return frozenset()
    grid = np.full(len(trace.device), ABSENT, np.int64)
    without = replace(trace, device=replace(trace.device, grid=grid))
    varying = [name for name in task.analyzers if Events.GRIDS in _BY_NAME[name].varies_with]
    again = measure_trace(measured.path, without, replace(task, analyzers=tuple(varying)))
    return frozenset(name for name in varying if _content(name, again) == _content(name, measured))


def _content(name: str, measured: MeasuredTrace) -> bytes:
    return pack_value(measured.partials.get(name), _BY_NAME[name].partial_kind())
