"""Changes of the host: launches and data loading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.measured import Measured
from perfscope.errors import MissingInput


def free_launches(measured: Measured, _value: str) -> Changed:
    """The host needs no time between launches, as where CUDA graphs replay a step; it still waits where it waited."""
    ranks = []
    for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True):
        gap_ns = np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns)
        ranks.append(replace(times, gap_ns=gap_ns, call_ns=np.zeros_like(times.call_ns)))
    return Changed(
        measured.times.with_ranks(ranks), ("Waiting for data and for the device stays; a graph's own launch is free.",)
    )


def free_data_loading(measured: Measured, _value: str) -> Changed:
    """The host never waits for the data loader."""
    ranks = [
        replace(times, gap_ns=times.gap_ns - np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns))
        for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True)
    ]
    if not any(graph.data_wait_ns.any() for graph in measured.job.ranks):
        raise MissingInput("the traces contain no `enumerate(DataLoader)`")
    return Changed(measured.times.with_ranks(ranks), ())
