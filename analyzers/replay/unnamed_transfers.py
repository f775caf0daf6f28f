"""Sends and receives whose kernels name no peer, as coalesced ones of torch.distributed: matched by when they end.

The kernel of a send and that of its receive end together, a few microseconds apart, because NCCL hands the last bytes
over; each lasts for some ten microseconds at least. So kernels of two ranks of one machine that end together, each the
other one's nearest, are one transfer. A kernel may send to one rank and receive from another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.communication.calls import GroupKey, Kind
from perfscope.analyzers.communication.process_groups import is_transfer
from perfscope.analyzers.replay.joined_operations import Member, Operation
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Int64

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
