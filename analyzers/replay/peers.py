"""What the same work takes on the other ranks: events of the same step in the same order, matched by their names."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.tables.columns import Int64
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
