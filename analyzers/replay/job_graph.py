"""The execution graph of a job: the graphs of its ranks on one clock, joined by their communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from perfscope.analyzers.communication.calls import GroupKey, Kind
from perfscope.analyzers.communication.matching import match_rows
from perfscope.analyzers.communication.process_groups import is_transfer
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.shared.clock_offsets import find_offset, is_apart, is_one_host
from perfscope.constants import NS_PER_MS, NS_PER_S, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT

#: Windows of the same steps begin together; clocks of hosts differ by less than this.
_LONGEST_WINDOW_APART_NS = 60 * NS_PER_S
#: Fewer lost events than this share change no figure.
_FEWEST_LOST = 0.001
#: What was launched before the trace began may still run for so long.
_LONGEST_LAUNCHED_BEFORE_NS = 20 * NS_PER_MS


def select_window(ranks: Sequence[RankGraph]) -> tuple[list[RankGraph], list[str]]:
    """The graphs of the window that most ranks recorded, of several the first; and what is left out.

    Raises:
        MissingInput: They are of different runs, or the ranks marked different steps.
    """
    sizes = {graph.world_size for graph in ranks if graph.world_size is not None}
    if len(sizes) > 1:
        raise MissingInput(f"the traces are of jobs of {' and '.join(map(str, sorted(sizes)))} ranks: name one run")
    named = [graph for graph in ranks if graph.rank is not None]
    has_windows = any(count > 1 for count in Counter((graph.rank, graph.marks) for graph in named).values())
    if has_windows and len(named) == len(ranks):
        if len({graph.path for graph in named}) < len(named):
            raise MissingInput("one process drives several devices, which no replay joins")
        repeated = next(key for key, count in Counter((g.rank, g.marks) for g in named).items() if count > 1)
        raise MissingInput(f"two traces are of the same steps of rank {repeated[0]}: name one run")
    windows: dict[tuple[int, ...], list[RankGraph]] = {}
    for graph in ranks:
        windows.setdefault(graph.marks, []).append(graph)
    ranks_seen = {graph.rank for graph in named}
    chosen = max(windows.values(), key=len)
    if len(windows) > 1 and {graph.rank for graph in chosen} < ranks_seen:
        raise MissingInput("the ranks marked different steps, which one replay cannot join")
    _require_same_time(chosen)
    left_out = len(ranks) - len(chosen)
    return chosen, [f"{left_out} traces of other windows are left out."] if left_out else []


def _require_same_time(ranks: Sequence[RankGraph]) -> None:
    """Ranks of one run recorded the same steps at the same time, as far as their clocks tell."""
    starts = [
        graph.base_ns + int(graph.start_ns[graph.step != ABSENT].min())
        for graph in ranks
        if graph.base_ns and (graph.step != ABSENT).any()
    ]
    if starts and max(starts) - min(starts) > _LONGEST_WINDOW_APART_NS:
        seconds = (max(starts) - min(starts)) / NS_PER_S
        raise MissingInput(f"the traces were recorded {seconds:.0f} s apart: they are of different runs")


def describe_losses(graph: RankGraph) -> list[str]:
    """What a trace lost, as sentences."""
    notes = []
    events = int((graph.step != ABSENT).sum())
    if graph.lost_events > _FEWEST_LOST * max(events, 1):
        notes.append(
            f"{graph.path}: {graph.lost_events} launched kernels are missing: the profiler dropped events, and the "
            "replay does without them."
        )
    in_steps = graph.step != ABSENT
    if events:
        is_inside = graph.start_ns > int(graph.start_ns[in_steps].min()) + _LONGEST_LAUNCHED_BEFORE_NS
        unlaunched = int((is_inside & (graph.launch == ABSENT)).sum())
        if unlaunched > _FEWEST_LOST * events:
            notes.append(
                f"{graph.path}: {unlaunched} events name no launch: they begin as measured, whatever is changed."
            )
    return notes


#: One rank's part in an operation: the position of the rank in ``JobGraph.ranks``, and its event.
Member: TypeAlias = tuple[int, int]


class Operation(Struct, frozen=True):
    """A communication operation that several ranks made together.

    Attributes:
        group: Its group.
        role: The axis of parallelism that the group serves; ``""`` where unknown.
        kind: Operation, element type and size.
        members: Each rank's part in it.
        transfer_ns: The shortest duration on any rank: the time from the arrival of the last rank on.
    """

    group: GroupKey
    role: str
    kind: Kind
    members: tuple[Member, ...]
    transfer_ns: int

    @property
    def is_point_to_point(self) -> bool:
        """Whether one rank sends to another, which needs what it receives."""
        return self.group.sender != ABSENT


#: The ends of the two kernels of a transfer are at most this far apart.
_LONGEST_APART_NS = 25 * NS_PER_US


def match_unnamed_transfers(ranks: Sequence[RankGraph], offset_ns: Int64) -> list[Operation]:
    """The transfers between ranks of one machine, of kernels that belong to no group.

    Args:
        ranks: The graphs, by rank.
        offset_ns: For each what is added to its times to get those of the first one's clock.
    """
    if len({graph.host for graph in ranks}) != 1:
        return []
    rows = [_unnamed_transfers(graph) for graph in ranks]
    ends = [graph.end_ns[own] + offset for graph, own, offset in zip(ranks, rows, offset_ns.tolist(), strict=True)]
    partners: dict[Member, set[Member]] = {}
    for first in range(len(ranks)):
        for second in range(first + 1, len(ranks)):
            for left, right in _pairs(ends[first], ends[second]):
                one, other = (first, int(rows[first][left])), (second, int(rows[second][right]))
                partners.setdefault(one, set()).add(other)
                partners.setdefault(other, set()).add(one)
    return [_to_operation(ranks, members) for members in _connected(partners)]


def _unnamed_transfers(graph: RankGraph) -> Int64:
    is_kernel = np.array([is_transfer(name) for name in graph.names], np.bool_)
    rows = is_kernel[graph.name]
    for events in graph.group_events:
        rows[events] = False
    found = np.flatnonzero(rows)
    return found[np.argsort(graph.end_ns[found], kind="stable")]


def _pairs(first: Int64, second: Int64) -> list[tuple[int, int]]:
    """Positions in two sorted columns of moments that are each other's nearest, and near."""
    if not len(first) or not len(second):
        return []
    nearest, back = _nearest(first, second), _nearest(second, first)
    return [
        (index, other)
        for index, other in enumerate(nearest.tolist())
        if back[other] == index and abs(int(first[index]) - int(second[other])) <= _LONGEST_APART_NS
    ]


def _nearest(moments: Int64, others: Int64) -> Int64:
    behind = np.clip(np.searchsorted(others, moments), 1, max(len(others) - 1, 1)) if len(others) > 1 else None
    if behind is None:
        return np.zeros(len(moments), np.int64)
    is_before = np.abs(moments - others[behind - 1]) <= np.abs(others[behind] - moments)
    return np.asarray(np.where(is_before, behind - 1, behind))


def _connected(partners: dict[Member, set[Member]]) -> list[tuple[Member, ...]]:
    """Kernels that are connected by transfers, each rank once: who has several ends with the first of them."""
    groups: list[tuple[Member, ...]] = []
    waiting = set(partners)
    for start in sorted(partners):
        if start not in waiting:
            continue
        members, border = {start[0]: start}, [start]
        waiting.discard(start)
        while border:
            for member in sorted(partners[border.pop()]):
                if member in waiting and member[0] not in members:
                    members[member[0]] = member
                    waiting.discard(member)
                    border.append(member)
        if len(members) > 1:
            groups.append(tuple(members[rank] for rank in sorted(members)))
    return groups


def _to_operation(ranks: Sequence[RankGraph], members: tuple[Member, ...]) -> Operation:
    transfer_ns = min(int(ranks[rank].duration_ns[event]) for rank, event in members)
    first, last = members[0][0], members[-1][0]
    key = GroupKey("", ",".join(str(rank) for rank, _ in members), sender=first, receiver=last)
    return Operation(key, "PP", Kind("send_recv", "", -1), members, transfer_ns)


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
