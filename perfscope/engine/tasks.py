"""What to measure in every trace, and what comes of it: the task of the map step, and its answer for one trace.

Where the partials of all traces are at hand, an analysis needs no more of the map step than this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial as bind
from importlib import import_module
from typing import TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.engine.coverage import TraceSummary
from perfscope.engine.registry import Analyzer, Partial, Reads, analyzers
from perfscope.engine.windows import TraceFiles
from perfscope.sources.traces.files import RANK_IN_FILE_NAME, RankRule
from perfscope.tables.trace import BASIC_EVENTS, NO_EVENTS, Events

#: Loaded by name where a trace must be read.
_MEASURING = "perfscope.engine.measuring"
_KILLED = "its worker was killed, perhaps because memory ran out"


class MeasureTask(Struct, frozen=True):
    """What the analyzers of some names measure in every trace.

    Attributes:
        extra_events: Events to read besides those that the analyzers need.
        rank_rule: How the rank of a trace that does not state it is found.
        extra_without_device: Events to read besides of a trace without device events.
        stores: Whether what is measured of a trace is stored beside it.
    """

    analyzers: tuple[str, ...]
    extra_events: Events = NO_EVENTS
    rank_rule: RankRule = RANK_IN_FILE_NAME
    extra_without_device: Events = NO_EVENTS
    stores: bool = False


class MeasuredTrace(Struct, frozen=True, array_like=True):
    """One trace after the map step.

    Attributes:
        summary: What its coverage is judged by; absent where it could not be read.
        damage: What is lost or doubtful, as sentences; the reason, where it could not be read.
        is_no_trace: The file is something else than a trace.
        mismatch: Why the two windows that it is of cannot be matched; it is not measured then.
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


def measuring(task: MeasureTask) -> Measure:
    """What measures one trace after the other; nothing is loaded that reads traces before it is asked for."""
    measure: Measure = bind(import_module(_MEASURING).measure, task=task)
    return measure


def could_not_be_measured(files: TraceFiles, reason: str = _KILLED) -> MeasuredTrace:
    """The answer for a trace that no worker could measure."""
    return MeasuredTrace(files.path, None, (f"{files.path} could not be measured: {reason}",))


def measuring_analyzers(chosen: Iterable[Analyzer]) -> tuple[str, ...]:
    """The names of the analyzers that must measure the traces, so that the chosen ones get their partials."""
    names = {analyzer.measured_by for analyzer in chosen if analyzer.reads is not Reads.RUN}
    return tuple(analyzer.name for analyzer in analyzers() if analyzer.name in names)


def task_for_some(task: MeasureTask, names: tuple[str, ...]) -> MeasureTask:
    """The same task for some of its analyzers, which see the events that are read for all of them."""
    needs, needs_without_device = wanted_events(task)
    # A file of some partials alone would take the place of one with all of them.
    stores = task.stores and names == task.analyzers
    return replace(task, analyzers=names, extra_events=needs, extra_without_device=needs_without_device, stores=stores)


def wanted_events(task: MeasureTask) -> tuple[Events, Events]:
    """The events to read of a trace, and those to read besides where it holds no device events."""
    needs, needs_without_device = task.extra_events | BASIC_EVENTS, task.extra_without_device
    for analyzer in named_analyzers(task):
        needs |= analyzer.needs
        needs_without_device |= analyzer.needs_without_device
    return needs, needs_without_device


def events_of(measured: MeasuredTrace, files: TraceFiles, wanted: tuple[Events, Events]) -> Events:
    """The events that were read of a trace of which these were wanted: see ``wanted_events``."""
    needs, needs_without_device = wanted
    has_device = measured.summary is None or measured.summary.device_events > 0
    return needs if has_device or files.operators is not None else needs | needs_without_device


def named_analyzers(task: MeasureTask) -> list[Analyzer]:
    """The analyzers that measure."""
    return [analyzer for analyzer in analyzers() if analyzer.name in task.analyzers]
