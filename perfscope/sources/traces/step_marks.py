"""The marks of the steps of a light window, which records none itself.

The hooks make a call that nothing else makes at each edge of a step, and write down when that was. The call itself is
in the trace, on the trace's own clock, and exact; where it is not, the wall clock has to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfscope import wire
from perfscope.constants import NS_PER_MS
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, STEP_MARK, HostSpans, joined
from perfscope.wire.traces import EDGE_CALL, TraceMetadata

#: The call and the wall clock are read within microseconds of each other.
_LARGEST_CLOCK_ERROR_NS = NS_PER_MS


def mark_steps(
    metadata: TraceMetadata, base_ns: int, names: Sequence[str], calls: HostSpans, annotations: HostSpans
) -> tuple[dict[str, int], HostSpans]:
    """The names and the annotations of a trace with ``ProfilerStep#N`` for each step of a light window.

    Args:
        metadata: What the hooks wrote into the trace.
        base_ns: What the exporter adds for wall-clock time.
        names: Every name, at its number.
        calls: The calls that the trace contains.
        annotations: The annotations that the trace contains.

    Returns:
        Both as they are where the trace is not a light window's, or marks its steps itself.
    """
    numbered = {name: number for number, name in enumerate(names)}
    steps = len(metadata.edges_ns) - 1
    if metadata.activities != wire.LIGHT or metadata.first_step is None or steps < 1:
        return numbered, annotations
    if any(name.startswith(STEP_MARK) for name in names):
        return numbered, annotations
    edges = _find_edges(np.array(metadata.edges_ns, np.int64) - base_ns, numbered, calls)
    marks = [f"{STEP_MARK}{metadata.first_step + step}" for step in range(steps)]
    process = np.full(steps, ABSENT if metadata.pid is None else metadata.pid, np.int64)
    spans = HostSpans(
        name=np.array([numbered.setdefault(mark, len(numbered)) for mark in marks], np.int32),
        start_ns=edges[:-1],
        duration_ns=np.diff(edges),
        process=process,
        thread=process,  # on Linux the first thread's id is the process's
        correlation=np.full(steps, ABSENT, np.int64),
        external_id=np.full(steps, ABSENT, np.int64),
    )
    return numbered, joined(annotations, spans)


def _find_edges(clock_ns: Int64, names: Mapping[str, int], calls: HostSpans) -> Int64:
    """The beginnings of the calls that mark the edges; the times by the wall clock where a call is missing."""
    marks = [number for name, number in names.items() if name.endswith(EDGE_CALL)]
    marked = calls.start_ns[np.isin(calls.name, marks)]
    if not len(marked):
        return clock_ns
    behind = np.clip(np.searchsorted(marked, clock_ns), 1, max(1, len(marked) - 1))
    before_ns, after_ns = marked[behind - 1], marked[np.minimum(behind, len(marked) - 1)]
    nearest = np.where(np.abs(clock_ns - before_ns) <= np.abs(after_ns - clock_ns), before_ns, after_ns)
    is_near = np.abs(nearest - clock_ns) <= _LARGEST_CLOCK_ERROR_NS
    return nearest if is_near.all() and (np.diff(nearest) > 0).all() else clock_ns
