"""Runs the analyzers: measure each trace where it is read, then reduce the partials.

A trace is opened once; every analyzer measures it while its tables are in memory, and only the small partials are kept.
They are reduced in the order of the traces' names, so that the answer does not depend on which worker was fast. An
analyzer that lacks an input is listed with its reason. A trace that cannot be read is listed too, and the other traces
are still answered for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.constants import MANY_RANKS
from perfscope.engine.execution import Execution
from perfscope.engine.inputs import Inputs, find_inputs
from perfscope.engine.measurements import Measurements, measure_traces
from perfscope.engine.partials import storable
from perfscope.engine.registry import (
    FINDINGS,
    FINDINGS_MODULE,
    REPLAY,
    Analyzer,
    Reads,
    analyzers,
)
from perfscope.engine.tasks import MeasureTask, measuring_analyzers
from perfscope.engine.windows import WindowUse
from perfscope.errors import MissingInput, NoDevice, NotApplicable, SourceError, UsageError
from perfscope.result import Result
from perfscope.sources.traces.files import RANK_IN_FILE_NAME, RankRule
from perfscope.tables.ceiling import Ceiling
from perfscope.tables.stated import Stated
from perfscope.tables.trace import NO_EVENTS, Events
from perfscope.wire.traces import STORE_VARIABLE

if TYPE_CHECKING:
    from perfscope.tables.run import Run

#: Why nothing is said about devices where there were none.
_NO_GPU = "training ran without a GPU"
_CUT_OFF = "every trace is cut off or damaged before its GPU events"

#: Of more traces no results are derived that need large partials: they would fill the memory.
_MOST_TRACES = 64

_P = TypeVar("_P")  # the type of an analyzer's partials


class Skipped(Struct, frozen=True):
    """An analyzer without a result, and the reason."""

    analyzer: str
    reason: str


class Analysis(Struct, frozen=True):
    """The results of all analyzers.

    Attributes:
        inputs: The files and folders that were read.
        inapplicable: The analyzers that this training gives nothing to, with the reason; no report lists them.
        notes: How the traces were read, where that is worth a word, as sentences; they change no result.
        damage: Inputs that are missing or damaged, as sentences; the results rest on the rest.
        windows: Which windows the figures of the traces are of.
    """

    inputs: Sequence[str]
    results: dict[str, Result]
    skipped: tuple[Skipped, ...]
    damage: tuple[str, ...]
    run: Run | None
    windows: WindowUse = field(default_factory=WindowUse)
    inapplicable: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()


class Plan(Struct, frozen=True):
    """How to analyze.

    Attributes:
        only: Names of the analyzers to run; all of them where it is empty.
        besides: Extra analyzers to run; they do not affect other results.
        with_operators: Whether the operators of the host are read, to break kernels down by operator.
        depth: Levels that tables of trees show; the default ones where it is None.
        ceiling: What was measured on the machine, for operators to be compared with.
        rank_rule: How the rank of a trace that does not state it is found.
        is_fresh: Whether traces are read even where their partials stand beside them.
    """

    execution: Execution = field(default_factory=Execution)
    only: frozenset[str] = frozenset()
    besides: frozenset[str] = frozenset()
    with_operators: bool = False
    depth: int | None = None
    ceiling: Ceiling | None = None
    rank_rule: RankRule = RANK_IN_FILE_NAME
    stated: Stated = field(default_factory=Stated)
    is_fresh: bool = False


#: Every analyzer that runs where none is named, with the default options.
_EVERYTHING = Plan()


class MeasuredRun(Struct, Generic[_P], frozen=True):
    """What one analyzer measured of every trace, in their order; ``damage`` is sentences."""

    run: Run | None
    partials: list[_P]
    damage: list[str]
    windows: WindowUse


def analyze(paths: Sequence[str | os.PathLike[str]], plan: Plan = _EVERYTHING) -> Analysis:
    """Analyze one run's folder, or traces.

    Raises SourceError: a path does not exist, or no input can be read. UsageError: ``plan.only`` names an analyzer that
    does not exist.
    """
    require_analyzers(plan.only)  # said before anything is read
    return analyze_inputs(find_inputs(paths), plan)


def analyze_inputs(inputs: Inputs, plan: Plan = _EVERYTHING) -> Analysis:
    """Analyze what ``find_inputs`` read, as often as wanted.

    Raises SourceError: no input can be read. UsageError: ``plan.only`` names an analyzer that does not exist.
    """
    recorded = inputs.run.recorded if inputs.run else frozenset()
    chosen = _choose(plan.only, plan.besides, recorded)
    measurements = _measure(inputs, plan, chosen, _needed_by_findings(plan.only, chosen, len(inputs.traces)))
    if inputs.run is None and any(analyzer.reads is not Reads.RUN for analyzer in chosen):
        _require_a_trace(measurements, inputs)
    results: dict[str, Result] = {}
    skipped: list[Skipped] = []
    inapplicable: list[Skipped] = []
    run = None if inputs.run is None else replace(inputs.run, stated=plan.stated)
    last_of = {analyzer.measured_by: analyzer for analyzer in chosen}
    for analyzer in chosen:
        try:
            results[analyzer.name] = _reduce(analyzer, run, measurements)
        except MissingInput as missing:
            is_recorded = analyzer.recorded_by in recorded
            if isinstance(missing, NotApplicable) and not (is_recorded or analyzer.name in plan.only):
                inapplicable.append(Skipped(analyzer.name, missing.problem))
                continue
            reason = missing.problem
            needs_device = isinstance(missing, NoDevice) or (is_recorded and isinstance(missing, NotApplicable))
            if needs_device and _trained_without_gpu(run):
                reason = _NO_GPU
            elif isinstance(missing, NoDevice) and measurements.lost_device_events:
                reason = _CUT_OFF
            skipped.append(Skipped(analyzer.name, reason))
        finally:
            if last_of[analyzer.measured_by] is analyzer and analyzer.measured_by != REPLAY:
                measurements.partials.pop(analyzer.measured_by, None)  # of many ranks they fill the memory
    besides = {name: result for name, result in results.items() if name in plan.besides - plan.only}
    others = {name: result for name, result in results.items() if name not in besides}
    results = _with_findings(others, plan.only, measurements) | besides
    results = {name: _with_options(result, plan) for name, result in results.items()}
    damage = [*(inputs.run.damage if inputs.run else ()), *inputs.missing_traces(), *measurements.damage]
    damage += [line for partials in measurements.on_demand.values() for line in partials.damage]
    damage += [line for result in results.values() for line in getattr(result, "damage", ())]
    return Analysis(
        inputs=inputs.paths,
        results=results,
        skipped=tuple(skipped),
        damage=tuple(dict.fromkeys(damage)),
        run=inputs.run,
        windows=measurements.windows,
        inapplicable=tuple(inapplicable),
        notes=(
            *measurements.notes,
            *_why_without_replay(plan.only, measurements),
            *_why_not_replayed(results, len(inputs.traces)),
        ),
    )


def _with_options(result: Result, plan: Plan) -> Result:
    wanted = result
    if plan.depth is not None and hasattr(result, "with_depth"):
        wanted = result.with_depth(plan.depth)
    elif plan.ceiling is not None and hasattr(result, "with_ceiling"):
        wanted = result.with_ceiling(plan.ceiling)
    return wanted


def _has_findings(only: frozenset[str]) -> bool:
    return not only or FINDINGS in only


def _needed_by_findings(only: frozenset[str], chosen: Sequence[Analyzer], traces: int) -> list[Analyzer]:
    if traces > _MOST_TRACES or not _has_findings(only):
        return []
    return [analyzer for analyzer in analyzers() if analyzer.name == REPLAY and analyzer not in chosen]


def _why_without_replay(only: frozenset[str], measurements: Measurements) -> list[str]:
    reason = measurements.why_lacking(REPLAY) if _has_findings(only) else None
    return [f"{FINDINGS} rest on no {REPLAY}, which {reason}"] if reason else []


def _why_not_replayed(results: Mapping[str, Result], traces: int) -> list[str]:
    if FINDINGS not in results or traces <= MANY_RANKS:
        return []
    return [
        f"{FINDINGS} of more than {_MOST_TRACES} traces are not replayed, because the graphs of all ranks would fill "
        "the memory: `perfscope whatif TRACE...` replays those that it is given, such as late ranks and their peers"
    ]


def _with_findings(results: dict[str, Result], only: frozenset[str], measurements: Measurements) -> dict[str, Result]:
    """The results that are asked for, after the findings that follow from them."""
    if not _has_findings(only):
        return results
    findings: Result | None = import_module(FINDINGS_MODULE).derive(results, measurements.later(REPLAY))
    shown = {name: result for name, result in results.items() if FINDINGS not in only or name in only}
    return shown if findings is None else {FINDINGS: findings} | shown


def _trained_without_gpu(run: Run | None) -> bool:
    """Whether every rank says that it trained on processors."""
    return run is not None and bool(run.ranks) and all(rank.device_type == "cpu" for rank in run.ranks)


def measure_with(
    name: str, partial_type: type[_P], paths: Sequence[str | os.PathLike[str]], plan: Plan = _EVERYTHING
) -> MeasuredRun[_P]:
    """Measure every trace with one analyzer, for a command that reduces its partials of a type itself.

    Raises MissingInput: it needs traces that are not at hand. SourceError: a path does not exist, or no input can be
    read.
    """
    inputs = find_inputs(paths)
    measurements = _measure(inputs, plan, _choose(frozenset({name})))
    reason = measurements.why_lacking(name)
    if reason is not None:
        raise MissingInput(f"{inputs.locations[0]}: {name} {reason}")
    if inputs.absent:
        _require_a_trace(measurements, inputs)
    run_damage = inputs.run.damage if inputs.run else ()
    partials = [partial for partial in measurements.partials.get(name, []) if isinstance(partial, partial_type)]
    return MeasuredRun(inputs.run, partials, [*run_damage, *measurements.damage], measurements.windows)


def require_analyzers(names: frozenset[str]) -> None:
    """Raise UsageError where one of these does not exist."""
    _choose(names)


def _choose(
    only: frozenset[str], besides: frozenset[str] = frozenset(), recorded: frozenset[str] = frozenset()
) -> list[Analyzer]:
    """The analyzers to run: those that are named, else the default ones and those whose input a run has recorded."""
    unknown = sorted(only - {FINDINGS} - {analyzer.name for analyzer in analyzers()})
    if unknown:
        names = ", ".join((FINDINGS, *(analyzer.name for analyzer in analyzers())))
        raise UsageError(f"there is no analyzer {', '.join(unknown)}", hint=f"analyzers: {names}")
    takes_default = not only or FINDINGS in only  # findings follow from all other results
    return [
        analyzer
        for analyzer in analyzers()
        if analyzer.name in only | besides
        or (takes_default and (analyzer.is_default or analyzer.recorded_by in recorded))
    ]


def _measure(inputs: Inputs, plan: Plan, chosen: Sequence[Analyzer], beside: Sequence[Analyzer] = ()) -> Measurements:
    names = frozenset(measuring_analyzers((*chosen, *beside)))
    if not names or not inputs.traces:
        return Measurements()
    stores = STORE_VARIABLE in os.environ and inputs.run is not None
    if inputs.run is not None and stores:
        names |= storable(inputs.run.recorded)
    in_order = tuple(analyzer.name for analyzer in analyzers() if analyzer.name in names)
    extra_events = Events.OPERATORS if plan.with_operators else NO_EVENTS
    task = MeasureTask(in_order, extra_events, plan.rank_rule, stores=stores)
    return measure_traces(inputs, plan.execution, task, chosen, is_fresh=plan.is_fresh)


def _require_a_trace(measurements: Measurements, inputs: Inputs) -> None:
    """Traces alone are nothing to analyze where none can be read: raise SourceError."""
    if measurements.readable:
        return
    if measurements.damage:
        path = measurements.first_path
        raise SourceError(path, measurements.damage[0].removeprefix(path).removeprefix(":").strip())
    raise SourceError(inputs.locations[0], "contains no trace of torch.profiler")


def _reduce(analyzer: Analyzer, run: Run | None, measurements: Measurements) -> Result:
    if analyzer.reads is Reads.TRACES and not measurements.readable:
        raise MissingInput("no trace could be read" if measurements.damage else "the run contains no trace")
    reason = measurements.why_lacking(analyzer.measured_by)
    if reason is not None and analyzer.reads is Reads.TRACES:
        raise MissingInput(reason)
    return analyzer.analyze(run, measurements.partials.get(analyzer.measured_by, []))
