"""The map step: one trace in, the small partials of all analyzers out.

It runs in a worker, and a failure in it is part of the answer for its trace, so that the other traces are not affected.
"""

from __future__ import annotations

from msgspec.structs import replace

from perfscope.engine.coverage import summarize
from perfscope.engine.partials import identities, put
from perfscope.engine.registry import Partial
from perfscope.engine.tasks import MeasuredTrace, MeasureTask, named_analyzers, wanted_events
from perfscope.engine.windows import TraceFiles
from perfscope.errors import NotATrace, SourceError
from perfscope.sources.traces.matching import NoMatch
from perfscope.sources.traces.pairing import pair_windows
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Events, Trace


def measure(files: TraceFiles, task: MeasureTask) -> MeasuredTrace:
    """Read one trace, or two windows as one, and let every analyzer measure it; a failure is part of the answer."""
    path, traces = files.path, identities(files) if task.stores else None
    try:
        trace = read_files(files, task)
    except NoMatch as error:
        return MeasuredTrace(path, None, error.damage, mismatch=error.reason, mismatched_rank=error.rank)
    except SourceError as error:
        return MeasuredTrace(path, None, (error.problem,), is_no_trace=isinstance(error, NotATrace))
    except MemoryError:
        return MeasuredTrace(path, None, (f"{path} does not fit in memory",))
    measured = measure_trace(path, trace, task)
    if traces is not None:
        put(files, measured, task, traces)
    return measured


def measure_trace(path: str, trace: Trace, task: MeasureTask) -> MeasuredTrace:
    """Let every analyzer measure a trace that was read."""
    partials: dict[str, Partial] = {}
    failed: dict[str, str] = {}
    for analyzer in named_analyzers(task):
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


def read_files(files: TraceFiles, task: MeasureTask) -> Trace:
    """Read the events that the analyzers need; those needed without a device only where there are no device events."""
    needs, needs_without_device = wanted_events(task)
    if files.operators is not None:
        return _read_pair(files.path, files.operators, needs, task)
    trace = read_trace(files.path, needs, task.rank_rule)
    if len(trace.device) or needs_without_device in needs:
        return trace
    return read_trace(files.path, needs | needs_without_device, task.rank_rule)


def _read_pair(light_path: str, operators_path: str, needs: Events, task: MeasureTask) -> Trace:
    """Read both windows of a process as one trace; the light one alone where the other cannot be read."""
    try:
        light = read_trace(light_path, needs, task.rank_rule)
    except SourceError as error:
        raise NoMatch("it cannot be read", None, (error.problem,)) from None
    try:
        operators = read_trace(operators_path, needs, task.rank_rule)
    except SourceError as error:
        return replace(light, damage=(*light.damage, error.problem))
    return pair_windows(operators, light)
