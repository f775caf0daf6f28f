"""Python functions below those that called them, of the thread that trains, in the profiled steps: a flame graph.

The profiler records them with ``perfscope profile --stack``, on processors and on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from perfscope.analyzers.host import BUILT_IN, find_window, frames_of_training, nest
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import NotApplicable
from perfscope.measures.rank_labels import in_order
from perfscope.report import MOST_ROWS, Column, Section, long_table, percent_of
from perfscope.result import Doc, Figures, InUnit, ResultList
from perfscope.tables.trace import ABSENT, HostSpans, Trace, distinct

#: A frame of a smaller share of the window is too short to be drawn.
_LEAST_OF_WINDOW = 0.002


class StackFrame(Figures, frozen=True, array_like=True):
    """A Python function below those that called it, over all of its calls from there; a frame follows its caller."""

    name: Annotated[str, Doc("The function, as the profiler writes it.")]
    depth: Annotated[int, Doc("How many functions are around it.")]
    duration_ns: int
    us = InUnit("duration_ns", NS_PER_US, "How long.")


class RankStacks(Figures, frozen=True, array_like=True):
    """The functions of one rank's training thread that are not too short to be drawn."""

    rank: Annotated[int | None, Doc("The rank.")]
    trace: Annotated[str, Doc("The file.")]
    window_ns: int
    frames: Annotated[tuple[StackFrame, ...], Doc("Each distinct stack; a frame follows its caller.")]
    window_us = InUnit("window_ns", NS_PER_US, "From the first profiled step to the end of the last one.")


class Stacks(ResultList, frozen=True):
    """``results.stacks``: what the training threads were in."""

    ranks: tuple[RankStacks, ...]

    def sections(self) -> tuple[Section, ...]:
        """The functions of each rank, each below its caller."""
        columns = Column("Rank"), Column("Depth"), Column("Function"), Column("Time (ms)", 2), Column("Share (%)")
        rows = tuple(
            (
                None if rank.rank is None else str(rank.rank),
                frame.depth,
                frame.name,
                frame.duration_ns / NS_PER_MS,
                percent_of(frame.duration_ns, rank.window_ns),
            )
            for rank in self.ranks
            for frame in rank.frames
        )
        return (long_table("Python functions", columns, rows, ("Each function follows its caller.",), most=MOST_ROWS),)


def measure(trace: Trace) -> RankStacks | None:
    """The stacks of one trace; None where none were recorded."""
    frames = frames_of_training(trace) if len(trace.operators) or len(trace.steps) else None
    if frames is None or not len(frames):
        return None
    start, end = find_window(trace)
    return RankStacks(trace.rank, trace.path, end - start, sum_stacks(frames, trace.names, start, end))


def analyze(partials: Sequence[RankStacks]) -> Stacks:
    """Put the ranks in order; NotApplicable where no stacks were recorded."""
    if not partials:
        raise NotApplicable("no Python stacks were recorded: `perfscope profile --stack` does")
    return Stacks(in_order(partials, "trace"))


def sum_stacks(frames: HostSpans, names: Sequence[str], start_ns: int, end_ns: int) -> tuple[StackFrame, ...]:
    """The time of each distinct stack of a thread between two moments; of callees as their caller has them."""
    nesting = nest(frames)
    starts, ends = np.maximum(frames.start_ns, start_ns), np.minimum(frames.end_ns, end_ns)
    built_in = {name: BUILT_IN.fullmatch(names[name]) for name in distinct(frames.name)}
    texts = {name: names[name] if match is None else f"built-in {match['call']}" for name, match in built_in.items()}
    times_ns: dict[tuple[int, str], int] = {}
    node_of: dict[int, int] = {ABSENT: ABSENT}
    number_of: dict[tuple[int, str], int] = {}
    for row in nesting.order.tolist():
        caller = int(nesting.parent[row])
        if caller != ABSENT:
            ends[row] = min(ends[row], ends[caller])
        node = node_of[caller], texts[int(frames.name[row])]
        node_of[row] = number_of.setdefault(node, len(number_of))
        times_ns[node] = times_ns.get(node, 0) + max(int(ends[row] - starts[row]), 0)
    least_ns = _LEAST_OF_WINDOW * (end_ns - start_ns)
    stacks: dict[int, tuple[str, ...]] = {ABSENT: ()}
    for caller, text in (node for node, time_ns in times_ns.items() if time_ns > least_ns):
        stacks[number_of[caller, text]] = (*stacks[caller], text)
    found = sorted((stacks[number_of[node]], time_ns) for node, time_ns in times_ns.items() if time_ns > least_ns)
    return tuple(StackFrame(stack[-1], len(stack) - 1, time_ns) for stack, time_ns in found)
