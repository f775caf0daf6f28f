"""Changes of the host: launches and data loading."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import RankTimes
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput
from perfscope.tables.trace import ABSENT


def free_launches(measured: Measured, value: str) -> Changed:
    """CUDA graphs replay a step: the host needs no time between launches, and kernels follow each other faster."""
    changed = free_host(measured, value)
    ranks = [replace(times, lag_ns=np.minimum(times.lag_ns, _LAG_IN_GRAPH_NS)) for times in changed.times.ranks]
    sentence = (
        "Waiting for data and for the device stays; a graph's own launch is free, and its kernels follow each other "
        f"within {_LAG_IN_GRAPH_NS / NS_PER_US} us."
    )
    return Changed(changed.times.with_ranks(ranks), (sentence,))


#: Between two kernels of a CUDA graph, of 575 kernels on an H200. Those that a host launches one by one follow each
#: other in twice that, however early they were launched.
_LAG_IN_GRAPH_NS = 600


def free_host(measured: Measured, _value: str) -> Changed:
    """The host needs no time between launches; it still waits where it waited."""
    ranks = []
    for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True):
        gap_ns = np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns)
        lag_ns = np.minimum(times.lag_ns, _usual_lag_ns(graph, times))
        ranks.append(replace(times, gap_ns=gap_ns, call_ns=np.zeros_like(times.call_ns), lag_ns=lag_ns))
    return Changed(
        measured.times.with_ranks(ranks), ("Waiting for data and for the device stays; a graph's own launch is free.",)
    )


_FEWEST_FOLLOWING = 20


def _usual_lag_ns(graph: RankGraph, times: RankTimes) -> int:
    """The median time between two events of a stream of which the second was launched long before.

    Behind a launch that came late the device needs longer, which is the launch's.
    """
    following = np.flatnonzero((np.diff(graph.stream) == 0) & (graph.launch[1:] != ABSENT)) + 1
    ready_ns = graph.call_start_ns[graph.launch[following]] + 2 * times.latency_ns
    following = following[ready_ns <= graph.end_ns[following - 1]]
    if len(following) < _FEWEST_FOLLOWING:
        return _LAG_IN_GRAPH_NS
    return max(int(np.median(times.lag_ns[following])), _LAG_IN_GRAPH_NS)


def free_data_loading(measured: Measured, _value: str) -> Changed:
    """The host never waits for the data loader."""
    ranks = [
        replace(times, gap_ns=times.gap_ns - np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns))
        for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True)
    ]
    if not any(graph.data_wait_ns.any() for graph in measured.job.ranks):
        raise MissingInput("the traces contain no `enumerate(DataLoader)`")
    return Changed(measured.times.with_ranks(ranks), ())
