"""The execution graph of a job: the graphs of its ranks on one clock, joined by their communication."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from perfscope.analyzers.collectives.calls import GroupKey, OperationKind
from perfscope.analyzers.collectives.matching import match_rows
from perfscope.analyzers.collectives.process_groups import TRANSFER
from perfscope.analyzers.whatif.rank_graph import RankGraph
from perfscope.constants import NS_PER_S, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.measures.clock_offsets import find_offset, is_apart, is_one_host
from perfscope.measures.statistics import FEWEST_FOR_MEDIAN
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT

#: Windows of the same steps begin together; clocks of hosts differ by less than this.
_LONGEST_WINDOW_APART_NS = 60 * NS_PER_S
#: The ends of the two kernels of a transfer are at most this far apart.
_LONGEST_APART_NS = 25 * NS_PER_US

#: One rank's part in an operation: the position of the rank in ``JobGraph.ranks``, and its event.
Member: TypeAlias = tuple[int, int]


class JointOperation(Struct, frozen=True):
    """A communication operation that several ranks made together.

    ``transfer_ns`` is the shortest duration on any rank: the time from the arrival of the last one on.
    """

    group: GroupKey
    kind: OperationKind
    members: tuple[Member, ...]
    transfer_ns: int

    @property
    def is_point_to_point(self) -> bool:
        """Whether one rank sends to another, which needs what it receives."""
        return self.group.sender != ABSENT


class JobGraph(Struct, frozen=True, eq=False):
    """The graphs of all ranks whose traces were given; ``offset_ns`` brings a rank's times to the first one's clock."""

    ranks: tuple[RankGraph, ...]
    offset_ns: Int64
    operations: tuple[JointOperation, ...]
    notes: tuple[str, ...]

    @property
    def is_pipeline(self) -> bool:
        """Whether ranks send to each other: each does the work of its stage."""
        return any(operation.is_point_to_point for operation in self.operations)


def join_ranks(ranks: Sequence[RankGraph]) -> JobGraph:
    """Join the ranks of one job; of several windows the one that most ranks recorded. MissingInput for several runs."""
    windows: dict[tuple[int, ...], list[RankGraph]] = defaultdict(list)
    for graph in ranks:
        windows[graph.marks].append(graph)
    chosen = max(windows.values(), key=len)
    _require_one_run(ranks, chosen)
    ordered = tuple(sorted(chosen, key=lambda graph: (graph.rank is None, graph.rank or 0, graph.path)))
    notes = [f"{len(ranks) - len(chosen)} traces of other windows are left out."] if len(chosen) < len(ranks) else []
    notes += [
        f"{graph.path}: {graph.lost_events} launched kernels are missing: the profiler dropped events, and the replay "
        "does without them."
        for graph in ordered
        if graph.lost_events
    ]
    groups: dict[GroupKey, dict[int, int]] = defaultdict(dict)
    for position, graph in enumerate(ordered):
        for index, group in enumerate(graph.groups):
            groups[group.key][position] = index
    operations = [
        operation
        for key, members in groups.items()
        if len(members) > 1
        for operation in _match_group(ordered, key, members)
    ]
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


def _require_one_run(ranks: Sequence[RankGraph], chosen: Sequence[RankGraph]) -> None:
    sizes = {graph.world_size for graph in ranks if graph.world_size is not None}
    if len(sizes) > 1:
        raise MissingInput(f"the traces are of jobs of {' and '.join(map(str, sorted(sizes)))} ranks: name one run")
    named = [graph for graph in ranks if graph.rank is not None]
    repeated = [key for key, count in Counter((graph.rank, graph.marks) for graph in named).items() if count > 1]
    if repeated and len(named) == len(ranks):
        if len({graph.path for graph in named}) < len(named):
            raise MissingInput("one process drives several devices, which no replay joins")
        raise MissingInput(f"two traces are of the same steps of rank {repeated[0][0]}: name one run")
    if {graph.rank for graph in chosen} < {graph.rank for graph in named}:
        raise MissingInput("the ranks marked different steps, which one replay cannot join")
    starts = [
        graph.base_ns + int(graph.start_ns[graph.step != ABSENT].min())
        for graph in chosen
        if graph.base_ns and (graph.step != ABSENT).any()
    ]
    if starts and max(starts) - min(starts) > _LONGEST_WINDOW_APART_NS:
        seconds = (max(starts) - min(starts)) / NS_PER_S
        raise MissingInput(f"the traces were recorded {seconds:.0f} s apart: they are of different runs")


def _match_group(ranks: Sequence[RankGraph], key: GroupKey, members: dict[int, int]) -> Iterator[JointOperation]:
    calls = [ranks[position].groups[index] for position, index in members.items()]
    rows = match_rows(calls)
    events = [ranks[at].group_events[index][own] for (at, index), own in zip(members.items(), rows, strict=True)]
    shortest = np.min([ranks[at].duration_ns[own] for at, own in zip(members, events, strict=True)], axis=0)
    for kind, column, transfer_ns in zip(
        calls[0].kind[rows[0]].tolist(), np.stack(events).T.tolist(), shortest.tolist(), strict=True
    ):
        yield JointOperation(key, calls[0].kinds[kind], tuple(zip(members, column, strict=True)), transfer_ns)


def _offsets(ranks: Sequence[RankGraph], operations: Sequence[JointOperation]) -> Int64:
    offsets = np.array([graph.base_ns - ranks[0].base_ns for graph in ranks], np.int64)
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for operation in operations:
        (first, event), *others = operation.members
        for position, other in others:
            pairs[first, position].append((event, other))
    reached = [0]
    for position in reached:
        for (first, second), events in pairs.items():
            other = second if position == first else first
            if position in (first, second) and other not in reached and len(events) >= FEWEST_FOR_MEDIAN:
                ahead = _clock_offset(ranks[first], ranks[second], np.array(events, np.int64))
                offsets[other] = offsets[position] + (ahead if position == first else -ahead)
                reached.append(other)
    return offsets


def _clock_offset(first: RankGraph, second: RankGraph, events: Int64) -> int:
    base_ns = second.base_ns - first.base_ns
    if is_one_host(first.host, second.host):
        return base_ns
    of_first, of_second = events.T
    durations = first.duration_ns[of_first], second.duration_ns[of_second]
    difference_ns = second.end_ns[of_second] - first.end_ns[of_first] + base_ns
    offset = find_offset(difference_ns, durations[0] - durations[1], np.minimum(*durations))
    return base_ns - (round(offset.offset_ns) if is_apart(first.host, second.host, offset) else 0)


def match_unnamed_transfers(ranks: Sequence[RankGraph], offset_ns: Int64) -> list[JointOperation]:
    """The transfers between ranks of one machine, of kernels that belong to no group: those that end together."""
    if len({graph.host for graph in ranks}) != 1:
        return []
    rows = [_unnamed_transfers(graph) for graph in ranks]
    ends = [graph.end_ns[own] + offset for graph, own, offset in zip(ranks, rows, offset_ns.tolist(), strict=True)]
    partners: dict[Member, set[Member]] = defaultdict(set)
    for first in range(len(ranks)):
        for second in range(first + 1, len(ranks)):
            nearest, back = _nearest(ends[first], ends[second]), _nearest(ends[second], ends[first])
            for left, right in enumerate(nearest.tolist()):
                if back[right] == left and abs(ends[first][left] - ends[second][right]) <= _LONGEST_APART_NS:
                    one, other = (first, int(rows[first][left])), (second, int(rows[second][right]))
                    partners[one].add(other)
                    partners[other].add(one)
    return [_to_transfer(ranks, members) for members in _connected(partners)]


def _unnamed_transfers(graph: RankGraph) -> Int64:
    rows = np.array([bool(TRANSFER.search(name)) for name in graph.names], np.bool_)[graph.name]
    for events in graph.group_events:
        rows[events] = False
    found = np.flatnonzero(rows)
    return found[np.argsort(graph.end_ns[found], kind="stable")]


def _nearest(moments: Int64, others: Int64) -> Int64:
    if not len(others):
        return moments[:0]
    after = np.minimum(np.searchsorted(others, moments), len(others) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(np.abs(moments - others[before]) <= np.abs(others[after] - moments), before, after)


def _connected(partners: dict[Member, set[Member]]) -> Iterator[tuple[Member, ...]]:
    """Kernels that are connected by transfers, each rank once: who has several ends with the first of them."""
    waiting = set(partners)
    for start in sorted(partners):
        if start not in waiting:
            continue
        waiting.discard(start)
        members, border = {start[0]: start}, [start]
        while border:
            for member in sorted(partners[border.pop()]):
                if member in waiting and member[0] not in members:
                    members[member[0]] = member
                    waiting.discard(member)
                    border.append(member)
        if len(members) > 1:
            yield tuple(members[rank] for rank in sorted(members))


def _to_transfer(ranks: Sequence[RankGraph], members: tuple[Member, ...]) -> JointOperation:
    transfer_ns = min(int(ranks[rank].duration_ns[event]) for rank, event in members)
    key = GroupKey("", ",".join(str(rank) for rank, _ in members), members[0][0], members[-1][0], role="PP")
    return JointOperation(key, OperationKind("send_recv", "", -1), members, transfer_ns)
