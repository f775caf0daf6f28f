"""Changes of the host: launches and data loading."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.measured import Measured
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput


def free_launches(measured: Measured, _value: str) -> Changed:
    """The host needs no time between launches, as where CUDA graphs replay a step; it still waits where it waited."""
    ranks = []
    for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True):
        gap_ns = np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns)
        lag_ns = np.minimum(times.lag_ns, _LAG_IN_GRAPH_NS)
        ranks.append(replace(times, gap_ns=gap_ns, call_ns=np.zeros_like(times.call_ns), lag_ns=lag_ns))
    sentence = (
        "Waiting for data and for the device stays; a graph's own launch is free, and its kernels follow each other "
        f"within {_LAG_IN_GRAPH_NS / NS_PER_US} us."
    )
    return Changed(measured.times.with_ranks(ranks), (sentence,))


#: Between two kernels of a CUDA graph, of 575 kernels on an H200. Those that a host launches one by one follow each
#: other in twice that, however early they were launched.
_LAG_IN_GRAPH_NS = 600


def free_data_loading(measured: Measured, _value: str) -> Changed:
    """The host never waits for the data loader."""
    ranks = [
        replace(times, gap_ns=times.gap_ns - np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns))
        for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True)
    ]
    if not any(graph.data_wait_ns.any() for graph in measured.job.ranks):
        raise MissingInput("the traces contain no `enumerate(DataLoader)`")
    return Changed(measured.times.with_ranks(ranks), ())
