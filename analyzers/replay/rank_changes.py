"""Changes of ranks: as fast as the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.peers import durations_of_peers
from perfscope.analyzers.replay.pipeline_changes import equalize_stages, find_stages
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import JobTimes, RankTimes
from perfscope.analyzers.shared.intervals import union
from perfscope.errors import MissingInput, UsageError
from perfscope.tables.columns import Bool
from perfscope.tables.trace import Work

#: Less of a difference than this is noise; the shorter one of two times would be too short on average.
_CLEARLY_SLOWER = 1.05


def remove_stragglers(measured: Measured, _value: str) -> Changed:
    """Every rank is at least as fast as the median of the others, its device and its host."""
    every_rank = range(len(measured.job.ranks))
    changed = _equalize_devices(measured, every_rank)
    ranks = _host_peers(measured, every_rank)
    ranks = [replace(times, gap_ns=host.gap_ns) for times, host in zip(changed.times.ranks, ranks, strict=True)]
    return replace(changed, times=changed.times.with_ranks(ranks))


_PEERS = (
    "Each kernel takes its own time or the median of the same kernel on the other ranks, whichever is less; work that "
    "the other ranks do not do takes none."
)


def take_median_device(measured: Measured, value: str) -> Changed:
    """The device of one rank is as fast as the median of the others, which then wait for it no longer."""
    position = _position(measured.job, value)
    changed = _equalize_devices(measured, [position])
    return replace(changed, assumptions=(*changed.assumptions, *(() if changed.added_ns else (_WAITING,))))


def _equalize_devices(measured: Measured, positions: Sequence[int]) -> Changed:
    """Devices as fast as those of ranks that do the same work; in a single pipeline, as the other stages."""
    if len(measured.job.ranks) == 1:
        raise MissingInput("the traces of one rank cannot be compared with other ranks'")
    groups = _ranks_of_same_work(measured)
    if groups:
        return Changed(_faster_devices(measured, positions, groups), (_PEERS,))
    return equalize_stages(measured, [measured.job.ranks[position].rank for position in positions])


def _ranks_of_same_work(measured: Measured) -> list[list[int]]:
    """Groups of ranks that do the same work; none where each is a stage of its own."""
    if not measured.job.is_pipeline:
        return [list(range(len(measured.job.ranks)))]
    position_of = {graph.rank: position for position, graph in enumerate(measured.job.ranks)}
    stages = [[position_of[rank] for rank in ranks if rank in position_of] for ranks in find_stages(measured)]
    return stages if any(len(stage) > 1 for stage in stages) else []


_WAITING = "Kernels of the others that ran beside communication that waited for this rank take its time for them."


def take_median_host(measured: Measured, value: str) -> Changed:
    """The host of one rank is as fast as the median of the others."""
    if len(measured.job.ranks) == 1:
        raise MissingInput("the traces of one rank cannot be compared with other ranks'")
    hosts = _host_peers(measured, [_position(measured.job, value)])
    groups = _ranks_of_same_work(measured)
    devices = _faster_devices(measured, (), groups) if groups else measured.times
    ranks = [replace(times, gap_ns=host.gap_ns) for times, host in zip(devices.ranks, hosts, strict=True)]
    sentence = "The host's n-th shortest time between two calls is at most that of the other ranks' median."
    return Changed(measured.times.with_ranks(ranks), (sentence, *((_WAITING,) if groups else ())))


def _faster_devices(measured: Measured, positions: Sequence[int], groups: Sequence[Sequence[int]]) -> JobTimes:
    """Devices that take their peers' times where these are clearly less.

    On the other ranks that holds for kernels beside communication: what waits for a slow rank slows them.
    """
    peers = durations_of_peers(measured.job, groups)
    ranks = list(measured.times.ranks)
    for position, (graph, times) in enumerate(zip(measured.job.ranks, ranks, strict=True)):
        chosen = times.event_ns > _CLEARLY_SLOWER * peers[position]
        if position not in positions:
            chosen &= _beside_communication(graph)
        ranks[position] = replace(times, event_ns=np.where(chosen, peers[position], times.event_ns))
    return measured.times.with_ranks(ranks)


def _beside_communication(graph: RankGraph) -> Bool:
    """Which events run while their rank communicates."""
    chosen = graph.work == Work.COMMUNICATION
    communicating = union(graph.start_ns[chosen], graph.end_ns[chosen])
    return np.asarray(communicating.measure_within(graph.start_ns, graph.end_ns) > 0)


def _host_peers(measured: Measured, positions: Sequence[int]) -> list[RankTimes]:
    """Hosts whose n-th shortest time between calls is that of the other ranks' median where that is less.

    So a host that is slow everywhere is made faster everywhere, and one that slept once no longer does.
    """
    # Before its first call each rank waits for its own profiler, which says nothing about its host.
    gaps = [np.sort(np.maximum(times.gap_ns[1:], 0)) for times in measured.times.ranks]
    first_ns = [max(int(times.gap_ns[0]), 0) for times in measured.times.ranks]
    ranks = list(measured.times.ranks)
    for position in positions:
        times, own = ranks[position], gaps[position]
        places = np.linspace(0, 1, len(own))
        others = [
            np.interp(places, np.linspace(0, 1, len(gap)), gap)
            for other, gap in enumerate(gaps)
            if other != position and len(gap)
        ]
        if not others or not len(own) or own.sum() <= np.median([other.sum() for other in others]):
            continue
        expected = np.minimum(own, np.rint(np.median(others, axis=0))).astype(np.int64)
        order = 1 + np.argsort(np.maximum(times.gap_ns[1:], 0), kind="stable")
        gap_ns = times.gap_ns.copy()
        gap_ns[0] = min(first_ns[position], round(float(np.median(np.delete(first_ns, position)))))
        gap_ns[order] = np.where(times.gap_ns[order] > 0, expected, times.gap_ns[order])
        ranks[position] = replace(times, gap_ns=gap_ns)
    return ranks


def _position(job: JobGraph, value: str) -> int:
    ranks = [graph.rank for graph in job.ranks]
    if not value.isdigit() or int(value) not in ranks:
        raise UsageError(f"{value!r} is no rank of the traces", hint=f"ranks: {', '.join(map(str, ranks))}")
    return ranks.index(int(value))
