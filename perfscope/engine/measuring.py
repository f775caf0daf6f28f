"""The map step: one trace in, small partials out.

It runs in a worker, and whatever goes wrong in it stays with its trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfscope.analyzers.shared.ranks import TraceFacts, facts_of
from perfscope.engine.registry import Analyzer, Reads, analyzers
from perfscope.errors import NotATrace, SourceError
from perfscope.sources.traces.ahead import Pace
from perfscope.sources.traces.reader import RANK_IN_NAME, RankNames, read_trace
from perfscope.tables.trace import NO_EVENTS, Events, Trace


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be measured in every trace.

    Attributes:
        analyzers: Names of the analyzers that measure traces.
        extra: Events that were asked for besides what the analyzers need.
        ranks: How the rank of a trace that does not tell it is found.
        pace: Whether a trace is inflated ahead of its analysis.
    """

    analyzers: tuple[str, ...]
    extra: Events = NO_EVENTS
    ranks: RankNames = RANK_IN_NAME
    pace: Pace = Pace.IN_TURN


@dataclass(frozen=True, slots=True)
class Measured:
    """What is kept of one trace.

    Attributes:
        path: The file.
        facts: What it says of itself; absent where it could not be read.
        damage: What is lost or doubtful, in words; why, where it could not be read.
        is_no_trace: It is something else.
        partials: Each analyzer's partial by its name; an analyzer without one has nothing to say of this trace.
    """

    path: str
    facts: TraceFacts | None
    damage: tuple[str, ...]
    is_no_trace: bool = False
    partials: dict[str, Any] = field(default_factory=dict)


def measure(path: str, task: Task) -> Measured:
    """Read one trace and let every analyzer measure it; a failure is part of the answer."""
    chosen = [one for one in analyzers() if one.name in task.analyzers]
    try:
        trace = _read(path, chosen, task)
    except SourceError as error:
        return Measured(path, None, (error.problem,), is_no_trace=isinstance(error, NotATrace))
    except MemoryError:
        return Measured(path, None, (f"{path} does not fit in memory",))
    partials, damage = {}, list(trace.damage)
    for analyzer in chosen:
        try:
            partial = analyzer.load().measure(trace)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # A trace that breaks one analyzer must take neither the others nor the other ranks with it.
            damage.append(f"{path}: {analyzer.name} could not measure it: {type(error).__name__}: {error}")
            continue
        if partial is not None:
            partials[analyzer.name] = partial
    return Measured(path, facts_of(trace), tuple(damage), partials=partials)


def _read(path: str, chosen: list[Analyzer], task: Task) -> Trace:
    """Read what the analyzers need of a trace; what they need of the host alone only where no device is seen."""
    needs, needs_without_device = task.extra, NO_EVENTS
    for analyzer in chosen:
        needs |= analyzer.needs
        needs_without_device |= analyzer.needs_without_device
    trace = read_trace(path, needs, task.ranks, task.pace)
    if len(trace.device) or needs_without_device in needs:
        return trace
    return read_trace(path, needs | needs_without_device, task.ranks, task.pace)


def measuring_analyzers(only: frozenset[str]) -> tuple[str, ...]:
    """The analyzers that measure traces themselves, those that others' results rest on included."""
    wanted = {one.partials_of or one.name for one in analyzers() if one.reads is not Reads.RUN and one.name in only}
    return tuple(one.name for one in analyzers() if one.name in wanted)
