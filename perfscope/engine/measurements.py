"""What the map step gives for all traces: each analyzer's partials in the order of the traces, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial as bind
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from perfscope.engine.coverage import find_problems
from perfscope.engine.execution import Execution, Mergers
from perfscope.engine.inputs import Inputs
from perfscope.engine.on_demand import OnDemand
from perfscope.engine.registry import Analyzer, Partial
from perfscope.engine.taking import Taking, answer_each
from perfscope.engine.tasks import MeasuredTrace, Task, measuring, task_for_some
from perfscope.engine.windows import TraceFiles, WindowPlan, WindowUse, describe_events_without_twin, plan_windows

_T = TypeVar("_T")


class Measurements(Struct):
    """What the map step gave.

    Attributes:
        partials: Each analyzer's partials, in the order of the traces.
        damage: What is wrong with the traces, as sentences.
        readable: How many traces could be read, whole or in part.
        first_path: The path of the first trace.
        windows: Which windows they are of.
        taking: What came of the partials that stand beside the traces.
        on_demand: The partials of analyzers whose own results nobody wants.
        lost_device_events: Whether every trace is of a GPU, and was cut off before its events.
    """

    partials: dict[str, Sequence[Partial]] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    readable: int = 0
    first_path: str = ""
    windows: WindowUse = field(default_factory=WindowUse)
    taking: Taking = field(default_factory=Taking)
    on_demand: dict[str, OnDemand] = field(default_factory=dict)
    lost_device_events: bool = False

    def later(self, name: str) -> Callable[[], Sequence[Partial]]:
        """What gives the partials of an analyzer where they are asked for."""
        return self.on_demand.get(name) or (lambda: self.partials.get(name, ()))

    def damage_in_all(self) -> list[str]:
        """What is wrong with the traces, and with partials that were asked for."""
        return [*self.damage, *(line for partials in self.on_demand.values() for line in partials.damage)]


def measure_traces(
    inputs: Inputs, execution: Execution, task: Task, chosen: Sequence[Analyzer], *, is_fresh: bool
) -> Measurements:
    """Measure every trace, or take its partials; one that cannot be read is damage.

    Where the windows of a pair cannot be matched, no pair is used: the times of ranks are compared with each other.

    Args:
        inputs: The traces.
        execution: Where they are measured.
        task: What is measured.
        chosen: The analyzers whose results are wanted: the partials of some can be merged as they arrive. Those of
            the task's other analyzers are there on demand.
        is_fresh: Whether the traces are read even where their partials are at hand.
    """
    on_demand = frozenset(task.analyzers) - {analyzer.measured_by for analyzer in chosen}
    taking = Taking(is_fresh, inputs.absent, on_demand)
    windows = plan_windows(inputs.traces, inputs.run, taking.read_metadata)
    mergers: Mergers = {}
    if len(windows.files) > 1:  # there is nothing to merge of one, which is read while their modules are imported
        mergers = {analyzer.name: analyzer.merger() for analyzer in chosen if analyzer.name in task.analyzers}
    names = [name for name in task.analyzers if name not in on_demand]
    answers, partials = _map(execution, windows.files, task, names, mergers, taking)
    mismatched = [measured for measured in answers if measured.mismatch is not None]
    if mismatched:
        windows = windows.unpaired([(measured.mismatch or "", measured.mismatched_rank) for measured in mismatched])
        taking = Taking(is_fresh, inputs.absent, on_demand)
        answers, partials = _map(execution, windows.files, task, names, mergers, taking)
    measurements = _assemble(inputs, windows, names, answers, partials)
    measurements.damage[:0] = [line for measured in mismatched for line in measured.damage]
    measurements.taking = taking
    for name in taking.lacking:  # those of some ranks alone would say something else
        measurements.partials[name] = []
    for name in on_demand - taking.lacking.keys():
        again = bind(_measure_later, execution, task_for_some(task, (name,)))
        measurements.on_demand[name] = OnDemand(name, answers, taking.postponed, again)
    return measurements


def _measure_later(execution: Execution, task: Task, files: Sequence[TraceFiles]) -> Iterator[MeasuredTrace]:
    return execution.map(measuring(task), files, {})


def _map(
    execution: Execution,
    files: Sequence[TraceFiles],
    task: Task,
    names: Sequence[str],
    mergers: Mergers,
    taking: Taking,
) -> tuple[list[MeasuredTrace], dict[str, Sequence[Partial]]]:
    """The answers in the order of the files, and each analyzer's partials; one where they were merged."""
    merged: dict[str, Partial] = {}
    answers: dict[int, MeasuredTrace] = {}
    for number, measured in answer_each(execution, files, task, mergers, taking):
        for name, merge in mergers.items():
            if merge is not None and name in measured.partials:  # of many ranks they would fill the memory
                partial = measured.partials.pop(name)
                merged[name] = merge(merged[name], partial) if name in merged else partial
        answers[number] = measured
    in_order = [answers[number] for number in sorted(answers)]
    partials: dict[str, Sequence[Partial]] = {
        name: [merged[name]] if name in merged else [each.partials[name] for each in in_order if name in each.partials]
        for name in names
    }
    return in_order, partials


def _assemble(
    inputs: Inputs,
    windows: WindowPlan,
    names: Sequence[str],
    answers: Sequence[MeasuredTrace],
    partials: dict[str, Sequence[Partial]],
) -> Measurements:
    measured_traces = _without_other_files(inputs, answers)
    summaries = tuple(measured.summary for measured in measured_traces if measured.summary is not None)
    damage = [
        line
        for measured in measured_traces
        for line in (*measured.damage, *(measured.failed[name] for name in names if name in measured.failed))
    ]
    activities = {measured.activities for measured in measured_traces if measured.summary is not None}
    return Measurements(
        partials,
        [*damage, *find_problems(summaries)],
        len(summaries),
        measured_traces[0].path if measured_traces else "",
        WindowUse(
            times=activities.pop() if len(activities) == 1 else "",
            is_paired=any(files.operators is not None for files in windows.files),
            notes=(*windows.notes, *describe_events_without_twin(summaries)),
        ),
        lost_device_events=bool(summaries) and all(summary.lost_device_events for summary in summaries),
    )


def _without_other_files(inputs: Inputs, answers: Sequence[MeasuredTrace]) -> Sequence[MeasuredTrace]:
    """Leave out other JSON of a folder, but no file that was named, or whose name says that it is a trace."""
    typed = set(inputs.locations)
    return tuple(
        measured
        for measured in answers
        if not measured.is_no_trace or measured.path in typed or "trace" in Path(measured.path).name
    )
