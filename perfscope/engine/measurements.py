"""What the map step gives for all traces: each analyzer's partials in the order of the traces, and what is wrong.

Partials that stand beside a trace are taken in its place; what they do not hold is measured. A file of partials that
cannot be taken costs nothing but a note: its trace is read. Where a trace is not at hand, as its run was collected
without it, its partials are all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial as bind
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.engine.coverage import find_problems
from perfscope.engine.execution import Execution
from perfscope.engine.inputs import FETCH, Inputs
from perfscope.engine.partials import get, load, paths_of, require_traces
from perfscope.engine.registry import Analyzer, Partial
from perfscope.engine.tasks import MeasuredTrace, MeasureTask, measuring, task_for_some
from perfscope.engine.windows import (
    TraceFiles,
    WindowPlan,
    WindowUse,
    describe_events_without_twin,
    plan_windows,
    read_each,
)
from perfscope.sources.partials import Missing, Refused
from perfscope.sources.traces.files import RANK_IN_FILE_NAME
from perfscope.sources.traces.metadata import read_metadata
from perfscope.units import format_count
from perfscope.wire.traces import TraceMetadata, file_name, partials_path

#: Why the other windows are measured, which are at hand.
_STAYED = "their traces stayed on the hosts, without partials that can be taken"
#: What merges two partials of an analyzer, by its name; None for one whose partials stay apart.
Mergers: TypeAlias = Mapping[str, Callable[[Partial, Partial], Partial] | None]


class OnDemand(Struct):
    """The partials that only a derived result may ask for, such as the graphs that findings replay.

    Where a trace is read anyway they are measured with it; where its partials stand in for it, it is read when they are
    asked for. What goes wrong with them is said only then, so that an answer is the same either way.

    Attributes:
        answers: What was measured of all traces, in their order.
        measure: Reads those that were not read for it, and answers in any order.
        damage: What went wrong; empty before they are asked for.
    """

    name: str
    answers: Sequence[MeasuredTrace]
    measure: Callable[[], Iterable[MeasuredTrace]]
    damage: list[str] = field(default_factory=list)

    def partials(self) -> Sequence[Partial]:
        """The partials, in the order of the traces; none where one cannot be measured, which is damage then."""
        later = {answer.path: answer for answer in self.measure()}
        answers = [later.get(answer.path, answer) for answer in self.answers]
        unread = [line for answer in later.values() if answer.summary is None for line in answer.damage]
        self.damage = [*unread, *(answer.failed[self.name] for answer in answers if self.name in answer.failed)]
        # A replay of some ranks alone would say something else.
        found = [answer.partials[self.name] for answer in answers if self.name in answer.partials]
        return [] if self.damage else found


class Measurements(Struct):
    """What the map step gave.

    Attributes:
        partials: Each analyzer's partials, in the order of the traces.
        damage: What is wrong with the traces, as sentences.
        readable: How many traces could be read, whole or in part.
        notes: What a reader should know of partials that were not taken, as sentences.
        lacking: How many traces that are not at hand have nothing stored for an analyzer, by its name.
        on_demand: The partials of analyzers whose own results nobody wants, with their own damage.
        lost_device_events: Whether every trace is of a GPU, and was cut off before its events.
    """

    partials: dict[str, Sequence[Partial]] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    readable: int = 0
    first_path: str = ""
    windows: WindowUse = field(default_factory=WindowUse)
    notes: list[str] = field(default_factory=list)
    lacking: Mapping[str, int] = field(default_factory=dict)
    on_demand: dict[str, OnDemand] = field(default_factory=dict)
    lost_device_events: bool = False

    def later(self, name: str) -> Callable[[], Sequence[Partial]]:
        """What gives the partials of an analyzer where they are asked for."""
        return self.on_demand[name].partials if name in self.on_demand else (lambda: self.partials.get(name, ()))

    def why_lacking(self, analyzer: str) -> str | None:
        """Why an analyzer has no partials of some traces; None where it has those of all."""
        if analyzer not in self.lacking:
            return None
        return f"needs {format_count(self.lacking[analyzer], 'trace')} that stayed on the hosts; {FETCH}"


class _Answers(Struct):
    """The answers for all traces, in the order of the files.

    Attributes:
        merged: The partials of all traces, of analyzers whose partials can be merged.
        postponed: The traces whose partials are all there but for those that are asked for on demand.
        refused: The files of partials that were not taken, by the reason.
        lacking: How many absent traces have nothing stored for an analyzer, by its name.
    """

    traces: list[MeasuredTrace] = field(default_factory=list)
    merged: dict[str, Partial] = field(default_factory=dict)
    postponed: list[TraceFiles] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    lacking: dict[str, int] = field(default_factory=dict)

    def notes(self) -> list[str]:
        return [
            f"{paths[0]} {reason}: its trace is read"
            if len(paths) == 1
            else f"{paths[0]} and {len(paths) - 1} more: each {reason}: their traces are read"
            for reason, paths in sorted(self.refused.items())
        ]

    def partials_of(self, name: str) -> Sequence[Partial]:
        if name in self.merged:
            return [self.merged[name]]
        return [measured.partials[name] for measured in self.traces if name in measured.partials]


class _Request(NamedTuple):
    """What is asked for: see ``measure_traces``. No trace is read for the analyzers ``on_demand`` alone."""

    inputs: Inputs
    task: MeasureTask
    on_demand: frozenset[str]
    mergers: Mergers
    is_fresh: bool

    def read_metadata(self, path: str) -> TraceMetadata | None:
        is_absent = path in self.inputs.absent
        hooks = None
        if is_absent or not self.is_fresh:
            with suppress(Refused):
                stored = load(partials_path(path))
                require_traces(stored.traces[:1], TraceFiles(path), self.inputs.absent)
                hooks = stored.hooks
        return read_metadata(path) if hooks is None and not is_absent else hooks

    def take(self, files: TraceFiles) -> tuple[MeasuredTrace, tuple[str, ...]] | Refused:
        # A rule of the user's changes the rank of a trace that states none, which partials do not tell.
        is_ruled = self.task.rank_rule != RANK_IN_FILE_NAME
        if files.path not in self.inputs.absent and (self.is_fresh or is_ruled):
            return Missing("")
        try:
            return get(files, self.task, self.inputs.absent)
        except Refused as refusal:
            return refusal


def measure_traces(
    inputs: Inputs, execution: Execution, task: MeasureTask, chosen: Sequence[Analyzer], *, is_fresh: bool
) -> Measurements:
    """Measure every trace, or take its partials; one that cannot be read is damage.

    Where the windows of a pair cannot be matched, no pair is used: the times of ranks are compared with each other.
    Those of the task's analyzers whose results are not ``chosen`` are there on demand. ``is_fresh`` reads traces also
    where their partials are at hand.
    """
    on_demand = frozenset(task.analyzers) - {analyzer.measured_by for analyzer in chosen}
    request = _Request(inputs, task, on_demand, {}, is_fresh)
    windows = plan_windows(inputs.traces, inputs.run, request.read_metadata)
    if len(windows.files) > 1:  # there is nothing to merge of one
        mergers = {analyzer.name: analyzer.merger() for analyzer in chosen if analyzer.name in task.analyzers}
        request = request._replace(mergers=mergers)
    answers = _answer(request, execution, windows.files)
    mismatched = [measured for measured in answers.traces if measured.mismatch is not None]
    if mismatched:
        windows = windows.unpaired([(measured.mismatch or "", measured.mismatched_rank) for measured in mismatched])
        answers = _answer(request, execution, windows.files)
    measurements = _assemble(inputs, windows, [name for name in task.analyzers if name not in on_demand], answers)
    measurements.damage[:0] = [line for measured in mismatched for line in measured.damage]
    for name in answers.lacking:  # those of some ranks alone would say something else
        measurements.partials[name] = []
    for name in on_demand - answers.lacking.keys():
        again = bind(_measure_later, execution, task_for_some(task, (name,)), answers.postponed)
        measurements.on_demand[name] = OnDemand(name, answers.traces, again)
    return measurements


def _measure_later(execution: Execution, task: MeasureTask, files: Sequence[TraceFiles]) -> Iterable[MeasuredTrace]:
    return execution.map(measuring(task), files) if files else ()


def _answer(request: _Request, execution: Execution, files: Sequence[TraceFiles]) -> _Answers:
    """Answer for every trace, by its partials where they can be taken, else by measuring it."""
    answers = _Answers()
    by_path: dict[str, MeasuredTrace] = {}
    to_measure: dict[tuple[str, ...], list[TraceFiles]] = {}
    for trace, taken in zip(files, read_each(request.take, files), strict=True):
        absent = [path for path in paths_of(trace) if path in request.inputs.absent]
        if isinstance(taken, Refused) and absent:
            line = f"{trace.path} stayed on its host, and {file_name(partials_path(trace.path))} {taken}"
            is_other_at_hand = trace.operators is not None and trace.operators not in absent
            mismatch = _STAYED if is_other_at_hand else None
            by_path[trace.path] = MeasuredTrace(trace.path, None, (line,), mismatch=mismatch)
        elif isinstance(taken, Refused):
            if not isinstance(taken, Missing):
                answers.refused.setdefault(str(taken), []).append(partials_path(trace.path))
            to_measure.setdefault(request.task.analyzers, []).append(trace)
        else:
            by_path[trace.path], lacking = taken
            _merge(answers, by_path[trace.path], request.mergers)
            if absent:
                for name in lacking:
                    answers.lacking[name] = answers.lacking.get(name, 0) + 1
            elif lacking and request.on_demand.issuperset(lacking):
                answers.postponed.append(trace)
            elif lacking:
                to_measure.setdefault(lacking, []).append(trace)
    for names, group in to_measure.items():
        for rest in execution.map(measuring(task_for_some(request.task, names)), group):
            _merge(answers, rest, request.mergers)
            begun = by_path.get(rest.path)
            partials = begun.partials if begun is not None and rest.summary is not None else {}
            by_path[rest.path] = replace(rest, partials=partials | rest.partials)
    answers.traces = [by_path[trace.path] for trace in files]
    return answers


def _merge(answers: _Answers, measured: MeasuredTrace, mergers: Mergers) -> None:
    """Take partials that can be merged out of an answer: of many ranks they would fill the memory."""
    for name, merge in mergers.items():
        if merge is not None and name in measured.partials:
            partial = measured.partials.pop(name)
            answers.merged[name] = merge(answers.merged[name], partial) if name in answers.merged else partial


def _assemble(inputs: Inputs, windows: WindowPlan, names: Sequence[str], answers: _Answers) -> Measurements:
    # Other JSON of a folder is left out, but no file that was named, or whose name says that it is a trace.
    typed = set(inputs.locations)
    measured_traces = [
        measured
        for measured in answers.traces
        if not measured.is_no_trace or measured.path in typed or "trace" in Path(measured.path).name
    ]
    summaries = [measured.summary for measured in measured_traces if measured.summary is not None]
    damage = [
        line
        for measured in measured_traces
        for line in (*measured.damage, *(measured.failed[name] for name in names if name in measured.failed))
    ]
    activities = {measured.activities for measured in measured_traces if measured.summary is not None}
    return Measurements(
        partials={name: answers.partials_of(name) for name in names},
        damage=[*damage, *find_problems(summaries)],
        readable=len(summaries),
        first_path=measured_traces[0].path if measured_traces else "",
        windows=WindowUse(
            times=activities.pop() if len(activities) == 1 else "",
            is_paired=any(files.operators is not None for files in windows.files),
            notes=(*windows.notes, *describe_events_without_twin(summaries)),
        ),
        notes=answers.notes(),
        lacking=answers.lacking,
        lost_device_events=bool(summaries) and all(summary.lost_device_events for summary in summaries),
    )
