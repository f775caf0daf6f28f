"""The execution graph of a job: the graphs of its ranks on one clock, joined by their communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.communication.calls import GroupKey
from perfscope.analyzers.communication.matching import match_rows
from perfscope.analyzers.replay.joined_operations import Operation
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.same_run import describe_losses, select_window
from perfscope.analyzers.replay.unnamed_transfers import match_unnamed_transfers
from perfscope.analyzers.shared.clock_offsets import find_offset, is_apart, is_one_host
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT

_FEWEST_ENDS = 3


class JobGraph(Struct, frozen=True, eq=False):
    """The graphs of all ranks whose traces were given.

    Attributes:
        ranks: The graphs, by rank.
        offset_ns: For each rank what is added to its times to get those of the first rank's clock.
        operations: The communication operations that ranks made together.
        notes: What could not be joined, as sentences.
    """

    ranks: tuple[RankGraph, ...]
    offset_ns: Int64
    operations: tuple[Operation, ...]
    notes: tuple[str, ...]

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks send to each other: each does the work of its stage."""
        return any(operation.is_point_to_point for operation in self.operations) or any(
            graph.passes is not None for graph in self.ranks
        )


def join_ranks(ranks: Sequence[RankGraph]) -> JobGraph:
    """Join the graphs of the ranks of one job.

    Raises:
        MissingInput: They are of different runs.
    """
    ranks, notes = select_window(ranks)
    ordered = tuple(sorted(ranks, key=lambda graph: (graph.rank is None, graph.rank or 0, graph.path)))
    notes += [note for graph in ordered for note in describe_losses(graph)]
    operations: list[Operation] = []
    for key, members in _by_group(ordered).items():
        if len(members) > 1:
            operations += _match_group(ordered, key, members)
    alone = sum(len(events) for graph in ordered for events in graph.group_events) - sum(
        len(operation.members) for operation in operations
    )
    if alone and len(ordered) > 1:
        notes.append(f"{alone} communication kernels have no counterpart in the traces: they are taken as measured.")
    if len(ordered) == 1 and ordered[0].groups:
        notes.append("Only one rank's trace was given: waiting for the others is taken as measured.")
    offset_ns = _offsets(ordered, operations)
    operations += match_unnamed_transfers(ordered, offset_ns)
    return JobGraph(ordered, offset_ns, tuple(operations), tuple(notes))


def _by_group(ranks: Sequence[RankGraph]) -> dict[GroupKey, dict[int, int]]:
    """For each group the ranks that use it, by position, and the position of the group in each rank's groups."""
    groups: dict[GroupKey, dict[int, int]] = {}
    for position, graph in enumerate(ranks):
        for index, group in enumerate(graph.groups):
            groups.setdefault(group.key, {})[position] = index
    return groups


def _match_group(ranks: Sequence[RankGraph], key: GroupKey, members: Mapping[int, int]) -> list[Operation]:
    positions = sorted(members)
    calls = [ranks[position].groups[members[position]] for position in positions]
    rows = match_rows(calls)
    events = [
        ranks[position].group_events[members[position]][index] for position, index in zip(positions, rows, strict=True)
    ]
    durations = np.stack(
        [ranks[position].duration_ns[index] for position, index in zip(positions, events, strict=True)]
    )
    role = next((group.role for group in calls if group.role), "")
    kinds = [calls[0].kinds[number] for number in calls[0].kind[rows[0]].tolist()]
    columns = np.stack(events).T.tolist()
    return [
        Operation(key, role, kind, tuple(zip(positions, column, strict=True)), transfer_ns)
        for kind, column, transfer_ns in zip(kinds, columns, durations.min(axis=0).tolist(), strict=True)
    ]


def _offsets(ranks: Sequence[RankGraph], operations: Sequence[Operation]) -> Int64:
    """The exporters' clocks, and between hosts what aligns the ends of common operations, which nearly coincide."""
    offsets = np.array([graph.base_ns - ranks[0].base_ns for graph in ranks], np.int64)
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for operation in operations:
        (first, event), *others = operation.members
        for position, other in others:
            pairs.setdefault((first, position), []).append((event, other))
    is_aligned = {0}
    reached = [0]
    while reached:
        position = reached.pop()
        for (first, second), events in pairs.items():
            if position not in (first, second) or len(events) < _FEWEST_ENDS:
                continue
            other = second if position == first else first
            if other in is_aligned:
                continue
            ahead = _clock_offset(ranks[first], ranks[second], np.array(events, np.int64))
            offsets[other] = offsets[position] + (ahead if position == first else -ahead)
            is_aligned.add(other)
            reached.append(other)
    return offsets


def _clock_offset(first: RankGraph, second: RankGraph, events: Int64) -> int:
    """What is added to times of the second rank to get those of the first, by pairs of events that both made."""
    base_ns = second.base_ns - first.base_ns
    if is_one_host(first.host, second.host):
        return base_ns
    of_first, of_second = events.T
    durations = first.duration_ns[of_first], second.duration_ns[of_second]
    difference_ns = second.end_ns[of_second] - first.end_ns[of_first] + base_ns
    offset = find_offset(difference_ns, durations[0] - durations[1], np.minimum(*durations))
    return base_ns - (round(offset.offset_ns) if is_apart(first.host, second.host, offset) else 0)


def step_of_calls(graph: RankGraph) -> Int64:
    """For each call of a rank the number of the marked step of the next event that is launched, or ABSENT."""
    step = np.full(len(graph.call_start_ns), ABSENT, np.int64)
    launched = graph.launch != ABSENT
    step[graph.launch[launched]] = graph.step[launched]
    return step
