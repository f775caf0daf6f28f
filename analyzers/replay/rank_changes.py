"""Changes of ranks: as fast as the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.peers import durations_of_peers
from perfscope.analyzers.replay.replay import JobTimes, RankTimes
from perfscope.errors import MissingInput, UsageError


def remove_stragglers(measured: Measured, _value: str) -> Changed:
    """Every rank is at least as fast as the median of the others, its device and its host."""
    _require_peers(measured.job)
    changed = _faster_devices(measured, range(len(measured.job.ranks)))
    hosts = _host_peers(measured, range(len(measured.job.ranks)))
    ranks = [replace(times, gap_ns=host.gap_ns) for times, host in zip(changed.ranks, hosts, strict=True)]
    return Changed(changed.with_ranks(ranks), (_PEERS,))


_PEERS = (
    "Each kernel takes its own time or the median of the same kernel on the other ranks, whichever is less; work that "
    "the other ranks do not do takes none."
)


def take_median_device(measured: Measured, value: str) -> Changed:
    """The device of one rank is as fast as the median of the others."""
    _require_peers(measured.job)
    return Changed(_faster_devices(measured, [_position(measured.job, value)]), (_PEERS,))


def take_median_host(measured: Measured, value: str) -> Changed:
    """The host of one rank is as fast as the median of the others."""
    _require_peers(measured.job)
    return Changed(
        measured.times.with_ranks(_host_peers(measured, [_position(measured.job, value)])),
        ("The host's time of a step is that of the other ranks' median, in the same proportions.",),
    )


def _faster_devices(measured: Measured, positions: Sequence[int]) -> JobTimes:
    peers = durations_of_peers(measured.job)
    ranks = list(measured.times.ranks)
    for position in positions:
        times = ranks[position]
        ranks[position] = replace(times, event_ns=np.minimum(times.event_ns, peers[position]))
    return measured.times.with_ranks(ranks)


def _host_peers(measured: Measured, positions: Sequence[int]) -> list[RankTimes]:
    """The hosts of some ranks, their time between calls scaled to the other ranks' median where that is less."""
    totals = [int(np.maximum(times.gap_ns, 0).sum()) for times in measured.times.ranks]
    ranks = list(measured.times.ranks)
    for position in positions:
        others = float(np.median(np.delete(totals, position)))
        if totals[position] > others:
            times = ranks[position]
            scale = others / totals[position]
            gap_ns = np.where(times.gap_ns > 0, np.rint(times.gap_ns * scale), times.gap_ns)
            ranks[position] = replace(times, gap_ns=gap_ns.astype(np.int64))
    return ranks


def _require_peers(job: JobGraph) -> None:
    if len(job.ranks) == 1:
        raise MissingInput("the traces of one rank cannot be compared with other ranks'")
    if job.is_pipeline:
        raise MissingInput("the stages of a pipeline do different work, so that their ranks are not compared")


def _position(job: JobGraph, value: str) -> int:
    ranks = [graph.rank for graph in job.ranks]
    if not value.isdigit() or int(value) not in ranks:
        raise UsageError(f"{value!r} is no rank of the traces", hint=f"ranks: {', '.join(map(str, ranks))}")
    return ranks.index(int(value))
