"""What a replay needs of one trace: the execution graph of each of its devices."""

from __future__ import annotations

from perfscope.analyzers.pipeline_bubble import measure as measure_passes
from perfscope.analyzers.replay.rank_graph import RankGraph, build_rank_graph
from perfscope.tables.trace import Trace, distinct


def measure(trace: Trace) -> tuple[RankGraph, ...] | None:
    """The execution graph of each device of a trace; None where there is none."""
    passes = measure_passes(trace)
    graphs = [build_rank_graph(trace, device, passes) for device in distinct(trace.device.device)]
    return tuple(graph for graph in graphs if graph is not None) or None
