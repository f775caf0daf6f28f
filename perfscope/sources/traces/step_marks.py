"""The marks of the steps of a window of the hooks.

A light window records none itself. The hooks make a call that nothing else makes at each edge of a step, and write down
when that was. The call itself is in the trace, on the trace's own clock, and exact; where it is not, the wall clock has
to do.

A window with operators has marks of its own. A profiler of the script may add marks with its own numbers, also while it
waits: they do not count. The first mark is the window's own, and each of its marks begins where the previous one ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfscope import wire
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, STEP_MARK, HostSpans, joined
from perfscope.wire.traces import EDGE_CALL, TraceMetadata

#: The call and the wall clock are read within microseconds of each other.
_LARGEST_CLOCK_ERROR_NS = NS_PER_MS
#: Times of older exporters are whole microseconds.
_ROUNDING_NS = NS_PER_US


def mark_steps(
    metadata: TraceMetadata, base_ns: int, names: Sequence[str], calls: HostSpans, annotations: HostSpans
) -> tuple[dict[str, int], HostSpans]:
    """The names and the annotations of a trace with one ``ProfilerStep#N`` for each step of a window of the hooks.

    Both are as they are where the trace is not one of the hooks, or has no marks of theirs.
    """
    numbered = {name: number for number, name in enumerate(names)}
    steps = len(metadata.edges_ns) - 1
    if metadata.first_step is None:
        return numbered, annotations
    is_mark = np.isin(annotations.name, [number for name, number in numbered.items() if name.startswith(STEP_MARK)])
    if metadata.activities != wire.LIGHT:
        own = _find_own(metadata.first_step, numbered, annotations)
        return numbered, annotations.take(~is_mark | own) if own.any() else annotations
    if steps < 1:
        return numbered, annotations
    annotations = annotations.take(~is_mark)
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


def _find_own(number: int, names: Mapping[str, int], annotations: HostSpans) -> Bool:
    """The marks of the window's own profiler: each has the next number, and is the first to begin behind the last."""
    own = np.zeros(len(annotations), np.bool_)
    rows = np.flatnonzero(annotations.name == names.get(f"{STEP_MARK}{number}", ABSENT))
    while len(rows):
        row = rows[annotations.start_ns[rows].argmin()]
        own[row], number = True, number + 1
        is_next = annotations.name == names.get(f"{STEP_MARK}{number}", ABSENT)
        rows = np.flatnonzero(is_next & (annotations.start_ns >= annotations.end_ns[row] - _ROUNDING_NS))
    return own


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
