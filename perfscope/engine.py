"""Runs the analyzers: measure each trace where it is read, then reduce the partials.

A trace is opened once; every analyzer measures it while its tables are in memory, and only the small partials are kept.
An analyzer that lacks an input is listed with its reason. A trace that cannot be read is listed too, and the other
traces are still answered for.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.errors import MissingInput, NotATrace, SourceError
from perfscope.ranks import RankCheck
from perfscope.registry import Analyzer, Reads, Result, analyzers
from perfscope.sources.run import is_run, read_run
from perfscope.tables import Run
from perfscope.tables.trace import NO_EVENTS, Trace
from perfscope.wire import TRACE_SUFFIX, TRACES

TRACE_ENDINGS = (".json", ".json.gz")


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


def analyze(paths: Sequence[Path]) -> Analysis:
    """Analyze one run's folder, or traces.

    Raises:
        SourceError: A path does not exist, or nothing that was given can be read.
    """
    run, traces = _open(paths)
    reading = [analyzer for analyzer in analyzers() if analyzer.reads is Reads.TRACES]
    partials, damage = _measure(traces, frozenset(paths), reading)
    if run:
        damage = [*run.damage, *damage]
    results: dict[str, Result] = {}
    skipped: list[Skipped] = []
    for analyzer in analyzers():
        try:
            results[analyzer.name] = _reduce(analyzer, run, partials[analyzer.name] if traces else [])
        except MissingInput as missing:
            skipped.append(Skipped(analyzer.name, missing.problem))
    return Analysis(
        inputs=tuple(str(path) for path in ([paths[0], *traces] if run else traces)),
        results=results,
        skipped=tuple(skipped),
        damage=tuple(damage),
        run=run,
    )


def measure(name: str, paths: Sequence[Path]) -> tuple[Run | None, list[Any], list[str]]:
    """Measure every trace with one analyzer, for a command that reduces the partials itself.

    Returns:
        The run, where one was given; the partials; and what is missing or damaged, in words.

    Raises:
        SourceError: A path does not exist, or nothing that was given can be read.
    """
    run, traces = _open(paths)
    partials, damage = _measure(traces, frozenset(paths), [one for one in analyzers() if one.name == name])
    return run, partials[name], [*(run.damage if run else ()), *damage]


def _open(paths: Sequence[Path]) -> tuple[Run | None, list[Path]]:
    for path in paths:
        if not path.exists():
            raise SourceError(path, "does not exist")
    run = read_run(paths[0]) if len(paths) == 1 and paths[0].is_dir() and is_run(paths[0]) else None
    traces = find_traces([paths[0] / TRACES] if run else paths)
    if run is None and not traces:
        raise SourceError(paths[0], "holds no trace", hint=f"traces end in {' or '.join(TRACE_ENDINGS)}")
    return run, traces


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """The traces among files and below folders, each once, in the order of their names."""
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found.update(file for file in path.rglob("*") if file.name.endswith(TRACE_ENDINGS) and file.is_file())
        elif path.is_file():
            found.add(path)
    plain = {
        path.with_name(path.name.removesuffix(".gz")) for path in found if path.name.endswith(f"{TRACE_SUFFIX}.gz")
    }
    return sorted(path for path in found if path not in plain)


def _measure(
    traces: Sequence[Path], named: Set[Path], reading: Sequence[Analyzer]
) -> tuple[dict[str, list[Any]], list[str]]:
    """Measure every trace; one that cannot be read is damage, unless none can be read.

    Raises:
        SourceError: No trace can be read.
    """
    partials: dict[str, list[Any]] = {analyzer.name: [] for analyzer in analyzers()}
    damage: list[str] = []
    ranks = RankCheck()
    failures: list[SourceError] = []
    for path in traces:
        try:
            trace = _read(path, reading)
        except NotATrace as error:
            if path in named or "trace" in path.name:
                failures.append(error)
            continue
        except SourceError as error:
            failures.append(error)
            continue
        damage.extend(trace.damage)
        ranks.add(trace)
        for analyzer in reading:
            partial = analyzer.load().measure(trace)
            if partial is not None:
                partials[analyzer.name].append(partial)
    if failures and not ranks.facts:
        raise failures[0]
    return partials, [*(error.problem for error in failures), *damage, *ranks.findings()]


def _read(path: Path, reading: Sequence[Analyzer]) -> Trace:
    """Read what the analyzers need of a trace; what they need of the host alone only where no device is seen."""
    from perfscope.sources.trace import read_trace

    needs = needs_without_device = NO_EVENTS
    for analyzer in reading:
        needs |= analyzer.needs
        needs_without_device |= analyzer.needs_without_device
    trace = read_trace(path, needs)
    if len(trace.device) or needs_without_device in needs:
        return trace
    return read_trace(path, needs | needs_without_device)


def _reduce(analyzer: Analyzer, run: Run | None, partials: Sequence[Any]) -> Result:
    result: Result
    if analyzer.reads is Reads.TRACES:
        result = analyzer.load().analyze(partials)
        return result
    if run is None:
        raise MissingInput("needs a run of `perfscope profile`, not traces alone")
    result = analyzer.load().analyze(run)
    return result
