"""Which traces belong together: a light window has the times of its process, a window with operators what caused them.

A run's records say which window a trace is of, and so does the metadata of a trace. Figures are of light windows where
every process has one, else of the windows with operators: those of all ranks are of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct, field

from perfscope import wire
from perfscope.report import Json
from perfscope.sources.traces.metadata import read_metadata
from perfscope.units import format_ranges
from perfscope.wire.traces import TraceMetadata, file_name

if TYPE_CHECKING:
    from perfscope.engine.coverage import TraceSummary
    from perfscope.tables.run import Run, Window

#: What gives the metadata that the hooks wrote into a trace; None where there is none.
ReadMetadata: TypeAlias = "Callable[[str], TraceMetadata | None]"

#: Threads that read small files, and how many files they read ahead: partials of all ranks would fill the memory.
_READERS, _AHEAD = 8, 256
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class TraceFiles(Struct, frozen=True):
    """The files that are measured as one trace: the times of ``path`` count.

    ``operators`` is the trace of the window with operators, where ``path`` is that of a light window.
    """

    path: str
    operators: str | None = None


class WindowPlan(Struct, frozen=True):
    """Which windows are measured.

    Attributes:
        files: The traces to measure.
        without_pairs: The traces to measure where a pair among them cannot be matched.
        notes: Which windows are left out, and why.
    """

    files: Sequence[TraceFiles]
    without_pairs: Sequence[TraceFiles]
    notes: tuple[str, ...] = ()

    def unpaired(self, mismatches: Sequence[tuple[str, int | None]]) -> WindowPlan:
        """The plan where pairs cannot be matched, for a reason on each of some ranks."""
        ranks_of: dict[str, list[int]] = {}
        for reason, rank in mismatches:
            ranks_of.setdefault(reason, []).extend([] if rank is None else [rank])
        reasons = [f"on {_ranks(ranks)} {reason}" if ranks else reason for reason, ranks in ranks_of.items()]
        return WindowPlan(self.without_pairs, self.without_pairs, tuple(map(_without_light, reasons)))


class WindowUse(Struct, frozen=True):
    """Which windows the figures of traces are of.

    Attributes:
        times: What the times of all traces are of: see ``Trace.activities``; ``""`` where they do not say so.
        is_paired: Whether windows with operators tell what caused them.
        notes: Which windows are left out, and why.
    """

    times: str = ""
    is_paired: bool = False
    notes: tuple[str, ...] = ()

    def describe(self) -> tuple[str, ...]:
        """Which windows they are, as sentences; none where there is only one kind."""
        if self.times == wire.LIGHT:
            causes = "Operators, shapes and causes: window with operators." if self.is_paired else "No operators."
            return (f"Times: light window. {causes}",)
        return ("Times: window with operators.",) if self.notes else ()

    def data(self) -> Json:
        """The value of ``windows`` in JSON."""
        causes = wire.OPERATORS if self.is_paired or self.times == wire.OPERATORS else None
        return {"times": self.times or None, "causes": causes, "notes": list(self.notes)}


class _Window(NamedTuple):
    rank: int | None
    process: str
    first_step: int
    path: str
    is_light: bool


class _ProcessWindows(Struct):
    """The windows of a process, in order; a trace that states no process is one of its own."""

    rank: int | None
    operators: list[_Window] = field(default_factory=list)
    light: list[_Window] = field(default_factory=list)
    is_stated: bool = True

    def files(self) -> list[TraceFiles]:
        """Each light window with the window before it, or the first one."""
        if not self.is_stated:
            return [TraceFiles(window.path) for window in self.operators]
        return [TraceFiles(light.path, self._partner(light)) for light in self.light]

    def _partner(self, light: _Window) -> str | None:
        earlier = [window.path for window in self.operators if window.first_step < light.first_step]
        return earlier[-1] if earlier else self.operators[0].path if self.operators else None


def read_each(read: Callable[[_Item], _Answer], items: Sequence[_Item]) -> Iterator[_Answer]:
    """What ``read`` gives for each item, in their order; of many it is called in threads, for stores and networks."""
    if len(items) <= _READERS:
        yield from map(read, items)
        return
    with ThreadPoolExecutor(_READERS) as readers:
        for begin in range(0, len(items), _AHEAD):
            yield from readers.map(read, items[begin : begin + _AHEAD])


def plan_windows(traces: Sequence[str], run: Run | None, read: ReadMetadata = read_metadata) -> WindowPlan:
    """Put the traces of each process together.

    ``read`` reads what the hooks wrote into a trace that no run recorded.
    """
    windows = tuple(_describe(traces, run, read))
    alone = tuple(TraceFiles(path) for path in traces)
    if len({window.is_light for window in windows}) <= 1:
        return WindowPlan(alone, alone)
    processes = _group(windows)
    is_light = {window.path for process in processes for window in process.light}
    operators = tuple(files for files in alone if files.path not in is_light)
    lacking = [process for process in processes if not process.light and process.is_stated]
    if lacking:
        reason = f"there is none on {_ranks([process.rank for process in lacking])}"
        return WindowPlan(operators, operators, (_without_light(reason),))
    pairs = [files for process in processes for files in process.files()]
    place = {path: index for index, path in enumerate(traces)}
    in_order = sorted(pairs, key=lambda files: place[files.operators or files.path])
    used = {files.operators for files in pairs}
    unused = [
        process
        for process in processes
        if process.is_stated and any(window.path not in used for window in process.operators)
    ]
    unexplained = [process for process in processes if not process.operators]
    notes = []
    if unused:
        ranks = _ranks([process.rank for process in unused])
        notes.append(f"Windows that no light window follows are left out, on {ranks}.")
    if unexplained:
        ranks = _ranks([process.rank for process in unexplained])
        notes.append(f"No window with operators tells what caused the times of {ranks}.")
    return WindowPlan(tuple(in_order), operators, tuple(notes))


def describe_events_without_twin(summaries: Sequence[TraceSummary]) -> list[str]:
    """How many device events of light windows have no twin, as a sentence; none where all have."""
    differing = [summary for summary in summaries if summary.without_twin]
    if not differing:
        return []
    count = sum(summary.without_twin for summary in differing)
    total = sum(summary.device_events for summary in differing)
    ranks = _ranks([summary.rank for summary in differing])
    return [
        f"{count:,} of {total:,} device events in the light windows of {ranks} "
        "did not run in the windows with operators: what caused them is not known."
    ]


def _without_light(reason: str) -> str:
    return f"The light windows are left out: {reason}."


def _ranks(ranks: Sequence[int | None]) -> str:
    stated = sorted({rank for rank in ranks if rank is not None})
    return f"rank {format_ranges(stated)}" if stated else "a rank that no trace states"


def _group(windows: Sequence[_Window]) -> list[_ProcessWindows]:
    processes: dict[tuple[int | None, str], _ProcessWindows] = {}
    for window in sorted(windows, key=lambda window: (window.first_step, window.path)):
        is_stated = window.process != window.path
        process = processes.setdefault((window.rank, window.process), _ProcessWindows(window.rank, is_stated=is_stated))
        (process.light if window.is_light else process.operators).append(window)
    return list(processes.values())


def _describe(traces: Sequence[str], run: Run | None, read: ReadMetadata) -> Iterator[_Window]:
    """The window of each trace: as the run recorded it, else as the trace itself says.

    A trace that says nothing is a process of its own, as far as pairs are concerned.
    """
    recorded = {file_name(window.trace): window for window in run.windows} if run else {}

    def recording(path: str) -> Window | None:
        return recorded.get(file_name(path).removesuffix(".gz"))

    for path in traces:
        window = recording(path)
        if window is not None:
            is_light = window.activities == wire.LIGHT
            yield _Window(window.rank, f"attempt {window.attempt}", window.first_step, path, is_light)
    unrecorded = tuple(path for path in traces if recording(path) is None)
    if len(traces) == 1:
        yield from (_Window(None, path, 0, path, is_light=False) for path in unrecorded)
        return
    for path, metadata in zip(unrecorded, read_each(read, unrecorded), strict=True):
        if metadata is None or metadata.pid is None:
            yield _Window(None, path, 0, path, is_light=False)
            continue
        process = f"{metadata.host} {metadata.pid}"
        is_light = metadata.activities == wire.LIGHT
        yield _Window(metadata.rank, process, metadata.first_step or 0, path, is_light)
