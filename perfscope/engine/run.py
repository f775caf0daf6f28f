"""Runs the analyzers: measure each trace where it is read, then reduce the partials.

A trace is opened once; every analyzer measures it while its tables are in memory, and only the small partials are kept.
They are reduced in the order of the traces' names, so that the answer does not depend on who measured what when. An
analyzer that lacks an input is listed with its reason. A trace that cannot be read is listed too, and the other traces
are still answered for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.shared.ranks import findings
from perfscope.engine.registry import DERIVATIONS, Analyzer, Reads, Result, analyzers
from perfscope.errors import MissingInput, SourceError, UsageError
from perfscope.sources.runs.run import is_run, read_run
from perfscope.sources.traces.files import TRACE_ENDINGS, find_traces, is_folder
from perfscope.tables.run import Run
from perfscope.wire import TRACES

if TYPE_CHECKING:
    from perfscope.engine.measuring import Measured, Task


@dataclass(frozen=True, slots=True)
class Skipped:
    """An analyzer that gave no result, and why."""

    analyzer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of the inputs.

    Attributes:
        inputs: The files and folders that were read.
        results: Each analyzer's result by its name.
        skipped: The analyzers without a result.
        damage: Inputs that are missing or damaged, in words; the answers rest on what is left.
        run: The run, where one was given.
    """

    inputs: tuple[str, ...]
    results: dict[str, Result]
    skipped: tuple[Skipped, ...]
    damage: tuple[str, ...]
    run: Run | None


def _one_after_the_other(measure: Callable[[str], Measured], paths: Sequence[str]) -> Iterator[Measured]:
    return map(measure, paths)


@dataclass(frozen=True, slots=True)
class Plan:
    """How to analyze.

    Attributes:
        map_traces: Measures traces and yields the answers in any order; see ``perfscope.engine.workers``.
        only: Names of the analyzers to run; all of them where it is empty.
        with_operators: Whether the operators of the host are read, for kernels by operator.
        ranks: How the rank of a trace that does not tell it is found; by its name where absent.
    """

    map_traces: Callable[[Callable[[str], Measured], Sequence[str]], Iterator[Measured]] = _one_after_the_other
    only: frozenset[str] = frozenset()
    with_operators: bool = False
    ranks: Any = None


@dataclass(slots=True)
class _Answers:
    """What the traces gave.

    Attributes:
        partials: Each analyzer's partials, in the order of the traces.
        damage: What is wrong with the traces, in words.
        readable: How many traces could be read, whole or in part.
        first: The path of the first trace.
    """

    partials: dict[str, list[Any]] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    readable: int = 0
    first: str = ""


def analyze(paths: Sequence[str | os.PathLike[str]], plan: Plan = Plan()) -> Analysis:
    """Analyze one run's folder, or traces.

    Raises:
        SourceError: A path does not exist, or nothing that was given can be read.
        UsageError: An analyzer that does not exist was asked for.
    """
    chosen = _chosen(plan.only)
    locations = [os.fspath(path) for path in paths]
    run = read_run(Path(locations[0])) if len(locations) == 1 and is_run(Path(locations[0])) else None
    traces = _traces(locations, run)
    reads_traces = any(analyzer.reads is not Reads.RUN for analyzer in chosen)
    answers = _measure(traces, locations, plan, chosen) if traces and reads_traces else _Answers()
    if run is None and reads_traces:
        _require_a_trace(answers, locations)
    results: dict[str, Result] = {}
    skipped: list[Skipped] = []
    for analyzer in chosen:
        try:
            results[analyzer.name] = _reduce(analyzer, run, answers)
        except MissingInput as missing:
            skipped.append(Skipped(analyzer.name, missing.problem))
    for derivation in DERIVATIONS:
        derived = derivation.derive(results)
        if derived is not None:
            results[derivation.name] = derived
    return Analysis(
        inputs=tuple([locations[0], *traces] if run else traces),
        results=results,
        skipped=tuple(skipped),
        damage=(*(run.damage if run else ()), *_lost_traces(run, traces), *answers.damage),
        run=run,
    )


def measure_one(
    name: str, paths: Sequence[str | os.PathLike[str]], plan: Plan = Plan()
) -> tuple[Run | None, list[Any], list[str]]:
    """Measure every trace with one analyzer, for a command that reduces the partials itself.

    Returns:
        The run, where one was given; the partials; and what is missing or damaged, in words.

    Raises:
        SourceError: A path does not exist, or nothing that was given can be read.
    """
    locations = [os.fspath(path) for path in paths]
    run = read_run(Path(locations[0])) if len(locations) == 1 and is_run(Path(locations[0])) else None
    traces = _traces(locations, run)
    answers = _measure(traces, locations, plan, _chosen(frozenset({name}))) if traces else _Answers()
    return run, answers.partials.get(name, []), [*(run.damage if run else ()), *answers.damage]


def _chosen(only: frozenset[str]) -> list[Analyzer]:
    unknown = sorted(only - {analyzer.name for analyzer in analyzers()})
    if unknown:
        known = ", ".join(analyzer.name for analyzer in analyzers())
        raise UsageError(f"there is no analyzer {', '.join(unknown)}", hint=f"there are {known}")
    return [analyzer for analyzer in analyzers() if not only or analyzer.name in only]


def _traces(locations: Sequence[str], run: Run | None) -> list[str]:
    if run is not None:
        folder = Path(locations[0]) / TRACES
        return find_traces([str(folder)]) if folder.is_dir() else []
    traces = find_traces(locations)
    if not traces:
        raise SourceError(locations[0], "holds no trace", hint=f"traces end in {' or '.join(TRACE_ENDINGS)}")
    return traces


def _measure(traces: Sequence[str], locations: Sequence[str], plan: Plan, chosen: Sequence[Analyzer]) -> _Answers:
    """Measure every trace; one that cannot be read is damage."""
    from perfscope.engine.measuring import measure, measuring_analyzers

    names = measuring_analyzers(frozenset(analyzer.name for analyzer in chosen))
    by_path: dict[str, Measured] = {}
    merged: dict[str, Any] = {}
    mergers = {one.name: one.merger() for one in chosen if one.name in names}
    for answer in plan.map_traces(partial(measure, task=_task(plan, names, len(traces))), traces):
        by_path[answer.path] = answer
        for name, merge in mergers.items():
            if merge is not None and name in answer.partials:
                one = answer.partials.pop(name)
                merged[name] = merge(merged[name], one) if name in merged else one
    named = {location for location in locations if not is_folder(location)}
    # A folder may hold other JSON; a file that was named, or whose name says trace, was meant.
    answers = [by_path[path] for path in traces]
    answers = [one for one in answers if not one.is_no_trace or one.path in named or "trace" in Path(one.path).name]
    facts = [answer.facts for answer in answers if answer.facts is not None]
    damage = [line for answer in answers for line in answer.damage]
    partials = {name: [one.partials[name] for one in answers if name in one.partials] for name in names}
    partials.update((name, [one]) for name, one in merged.items())
    return _Answers(partials, [*damage, *findings(facts)], len(facts), answers[0].path if answers else "")


def _require_a_trace(answers: _Answers, locations: Sequence[str]) -> None:
    """Traces alone are nothing to analyze where none can be read.

    Raises:
        SourceError: None can.
    """
    if not answers.readable:
        if answers.damage:
            raise SourceError(answers.first, answers.damage[0].removeprefix(answers.first).removeprefix(":").strip())
        raise SourceError(locations[0], "holds no trace of torch.profiler")


def _lost_traces(run: Run | None, traces: Sequence[str]) -> list[str]:
    """The traces that a run's finished windows name and that are not there, in words."""
    if run is None:
        return []
    there = {Path(trace).name.removesuffix(".gz") for trace in traces}
    lost = [window for window in run.windows if window.trace not in there]
    return [f"rank {window.rank}: its trace {TRACES}/{window.trace} is missing" for window in lost]


def _task(plan: Plan, names: tuple[str, ...], traces: int) -> Task:
    from perfscope.engine.measuring import Task
    from perfscope.sources.traces.ahead import Pace
    from perfscope.sources.traces.reader import RANK_IN_NAME
    from perfscope.tables.trace import NO_EVENTS, Events

    extra = Events.OPERATORS if plan.with_operators else NO_EVENTS
    # Among many traces the workers keep the processors busy; threads of theirs would only be in each other's way.
    pace = Pace.AHEAD if traces == 1 else Pace.IN_TURN
    return Task(names, extra, RANK_IN_NAME if plan.ranks is None else plan.ranks, pace)


def _reduce(analyzer: Analyzer, run: Run | None, answers: _Answers) -> Result:
    result: Result
    if analyzer.reads is Reads.TRACES:
        if not answers.readable:
            raise MissingInput("no trace could be read" if answers.damage else "the run holds no trace")
        result = analyzer.load().analyze(answers.partials.get(analyzer.partials_of or analyzer.name, []))
        return result
    if run is None:
        raise MissingInput("needs a run of `perfscope profile`, not traces alone")
    if analyzer.reads is Reads.RUN_AND_TRACES:
        result = analyzer.load().analyze(run, answers.partials.get(analyzer.partials_of or analyzer.name, []))
    else:
        result = analyzer.load().analyze(run)
    return result
