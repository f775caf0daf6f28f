"""Changes of ranks: as fast as the others."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.pipeline_changes import equalize_stages, find_stages
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import JobTimes, RankTimes
from perfscope.analyzers.shared.intervals import union
from perfscope.errors import MissingInput, UsageError
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import Work


def durations_of_peers(job: JobGraph, groups: Sequence[Sequence[int]]) -> tuple[Int64, ...]:
    """For each rank, for each event what the same work takes on the other ranks of its group, in nanoseconds.

    It is the median of the other ranks' durations; 0 for work that the rank with the fewest events does not do. An
    event of communication, and one outside of marked steps, keeps its own duration.

    Args:
        job: The graph.
        groups: The positions of ranks that do the same work; ranks of no group keep their durations.
    """
    durations = [graph.duration_ns.copy() for graph in job.ranks]
    for group in groups:
        if len(group) > 1:
            ranks = [job.ranks[position] for position in group]
            for step in ranks[0].marks:
                _compare_step(ranks, step, [durations[position] for position in group])
    return tuple(durations)


def _compare_step(ranks: Sequence[RankGraph], step: int, durations: Sequence[Int64]) -> None:
    rows = [_rows_of_step(graph, step) for graph in ranks]
    numbers: dict[str, int] = {}
    names = [
        np.array([numbers.setdefault(graph.names[name], len(numbers)) for name in graph.name[own]], np.int64)
        for graph, own in zip(ranks, rows, strict=True)
    ]
    shortest = min(range(len(ranks)), key=lambda position: len(rows[position]))
    table: npt.NDArray[np.float64] = np.full((len(ranks), len(rows[shortest])), np.nan)
    matches = []
    for position, (graph, own) in enumerate(zip(ranks, rows, strict=True)):
        common, matching = _match_names(names[shortest], names[position])
        table[position, common] = graph.duration_ns[own[matching]]
        matches.append((common, matching))
    for position, (own, (common, matching)) in enumerate(zip(rows, matches, strict=True)):
        durations[position][np.delete(own, matching)] = 0
        others = np.delete(table, position, axis=0)[:, common]
        has_peer = ~np.isnan(others).all(axis=0)
        durations[position][own[matching[has_peer]]] = np.nanmedian(others[:, has_peer], axis=0)


def _rows_of_step(graph: RankGraph, step: int) -> Int64:
    """The events of a step but communication, in the order of their launch."""
    rows = np.flatnonzero((graph.step == step) & (graph.work != Work.COMMUNICATION))
    return rows[np.argsort(graph.launch[rows], kind="stable")]


def _match_names(reference: Int64, names: Int64) -> tuple[Int64, Int64]:
    """The positions of common names in two sequences, in the same order."""
    if np.array_equal(reference, names):
        return np.arange(len(reference)), np.arange(len(names))
    blocks = SequenceMatcher(None, reference.tolist(), names.tolist(), autojunk=False).get_matching_blocks()
    common = [np.arange(block.a, block.a + block.size) for block in blocks]
    matching = [np.arange(block.b, block.b + block.size) for block in blocks]
    return np.concatenate(common), np.concatenate(matching)


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
