"""The map step: one trace in, the small partials of all analyzers out.

It runs in a worker, and a failure in it is part of the answer for its trace, so that the other traces are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial as bind
from importlib import import_module
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.engine.coverage import TraceSummary, summarize
from perfscope.engine.registry import Analyzer, Partial, Reads, analyzers
from perfscope.engine.windows import TraceFiles
from perfscope.errors import NotATrace, SourceError
from perfscope.sources.traces.ahead import Pace
from perfscope.sources.traces.matching import NoMatch
from perfscope.sources.traces.pairing import pair_windows
from perfscope.sources.traces.reader import RANK_IN_FILE_NAME, RankRule, read_trace
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events, Trace

_KILLED = "its worker was killed, perhaps because memory ran out"


class Task(Struct, frozen=True):
    """What to measure in every trace.

    Attributes:
        analyzers: Names of the analyzers that measure traces.
        extra_events: Events to read besides those that the analyzers need.
        rank_rule: How the rank of a trace that does not state it is found.
        pace: Whether a trace is inflated ahead of its analysis.
        extra_without_device: Events to read besides of a trace without device events.
        processes: In how many processes one trace is read, where it is large.
        modules: What is imported while other processes begin to read it.
    """

    analyzers: tuple[str, ...]
    extra_events: Events = NO_EVENTS
    rank_rule: RankRule = RANK_IN_FILE_NAME
    pace: Pace = Pace.IN_TURN
    extra_without_device: Events = NO_EVENTS
    processes: int = 1
    modules: tuple[str, ...] = ()


class MeasuredTrace(Struct, frozen=True):
    """One trace after the map step.

    Attributes:
        path: The file.
        summary: What its coverage is judged by; absent where it could not be read.
        damage: What is lost or doubtful, as sentences; the reason, where it could not be read.
        is_no_trace: The file is something else than a trace.
        mismatch: Why the two windows that it is of cannot be matched; it is not measured then.
        mismatched_rank: Its rank, where it is stated.
        activities: What its times are of: see ``Trace``.
        partials: Each analyzer's partial by its name; an analyzer that finds nothing of interest has none.
        failed: Analyzers that could not measure it, each with a sentence that says why.
    """

    path: str
    summary: TraceSummary | None
    damage: tuple[str, ...]
    is_no_trace: bool = False
    mismatch: str | None = None
    mismatched_rank: int | None = None
    activities: str = ""
    partials: dict[str, Partial] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


Measure: TypeAlias = Callable[[TraceFiles], MeasuredTrace]


def measure(files: TraceFiles, task: Task) -> MeasuredTrace:
    """Read one trace, or two windows as one, and let every analyzer measure it; a failure is part of the answer."""
    path = files.path
    try:
        trace = read_files(files, task)
    except NoMatch as error:
        return MeasuredTrace(path, None, error.damage, mismatch=error.reason, mismatched_rank=error.rank)
    except SourceError as error:
        return MeasuredTrace(path, None, (error.problem,), is_no_trace=isinstance(error, NotATrace))
    except MemoryError:
        return MeasuredTrace(path, None, (f"{path} does not fit in memory",))
    return measure_trace(path, trace, task)


def measure_trace(path: str, trace: Trace, task: Task) -> MeasuredTrace:
    """Let every analyzer measure a trace that was read."""
    partials: dict[str, Partial] = {}
    failed: dict[str, str] = {}
    for analyzer in _named(task):
        try:
            partial = analyzer.measure(trace)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # A trace that breaks one analyzer must take neither the others nor the other ranks with it.
            failed[analyzer.name] = f"{path}: {analyzer.name} could not measure it: {type(error).__name__}: {error}"
            continue
        if partial is not None:
            partials[analyzer.name] = partial
    return MeasuredTrace(
        path, summarize(trace), trace.damage, activities=trace.activities, partials=partials, failed=failed
    )


def could_not_be_measured(files: TraceFiles, reason: str = _KILLED) -> MeasuredTrace:
    """The answer for a trace that no worker could measure."""
    return MeasuredTrace(files.path, None, (f"{files.path} could not be measured: {reason}",))


def measuring_analyzers(chosen: Iterable[Analyzer]) -> tuple[str, ...]:
    """The names of the analyzers that must measure the traces, so that the chosen ones get their partials."""
    names = {analyzer.measured_by for analyzer in chosen if analyzer.reads is not Reads.RUN}
    return tuple(analyzer.name for analyzer in analyzers() if analyzer.name in names)


def task_for_some(task: Task, names: tuple[str, ...]) -> Task:
    """The same task for some of its analyzers, which see the events that are read for all of them."""
    needs, needs_without_device = wanted_events(task)
    return replace(task, analyzers=names, extra_events=needs, extra_without_device=needs_without_device)


def wanted_events(task: Task) -> tuple[Events, Events]:
    """The events to read of a trace, and those to read besides where it holds no device events."""
    needs, needs_without_device = task.extra_events | BASIC_EVENTS, task.extra_without_device
    for analyzer in _named(task):
        needs |= analyzer.needs
        needs_without_device |= analyzer.needs_without_device
    return needs, needs_without_device


def read_events(measured: MeasuredTrace, files: TraceFiles, task: Task) -> Events:
    """The events that were read of a trace that was measured."""
    return events_of(measured, files, wanted_events(task))


def events_of(measured: MeasuredTrace, files: TraceFiles, wanted: tuple[Events, Events]) -> Events:
    """The events that were read of a trace of which these were wanted: see ``wanted_events``."""
    needs, needs_without_device = wanted
    has_device = measured.summary is None or measured.summary.device_events > 0
    return needs if has_device or files.operators is not None else needs | needs_without_device


def _named(task: Task) -> list[Analyzer]:
    return [analyzer for analyzer in analyzers() if analyzer.name in task.analyzers]


def read_files(files: TraceFiles, task: Task) -> Trace:
    """Read the events that the analyzers need; those needed without a device only where there are no device events.

    Raises:
        NoMatch: The two windows cannot be matched.
        SourceError: A file cannot be read.
    """
    needs, needs_without_device = wanted_events(task)
    if files.operators is not None:
        return _read_pair(files.path, files.operators, needs, task)
    trace = _read_file(files.path, needs, task)
    if len(trace.device) or needs_without_device in needs:
        return trace
    return _read_file(files.path, needs | needs_without_device, task)


def _read_file(path: str, needs: Events, task: Task) -> Trace:
    return read_trace(path, needs, task.rank_rule, task.pace, task.processes, bind(_import_all, task.modules))


def _import_all(modules: Iterable[str]) -> None:
    for name in modules:
        import_module(name)


def _read_pair(light_path: str, operators_path: str, needs: Events, task: Task) -> Trace:
    """Read both windows of a process as one trace; the light one alone where the other cannot be read.

    Raises:
        NoMatch: They cannot be matched, or the light one cannot be read.
    """
    try:
        light = _read_file(light_path, needs, task)
    except SourceError as error:
        raise NoMatch("it cannot be read", None, (error.problem,)) from None
    try:
        operators = _read_file(operators_path, needs, task)
    except SourceError as error:
        return replace(light, damage=(*light.damage, error.problem))
    return pair_windows(operators, light)
