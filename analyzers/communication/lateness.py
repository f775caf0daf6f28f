"""Which of many ranks arrive later than their peers, where several of them are late at once.

In each collective the others wait for the last rank alone: who is late by less causes no wait of its own. But it waits
for less time than its peers do. So a rank's *lateness* in a group is by how much less it waited there than the median
rank of the group. A rank that is late because it waited for another one, in a group that communicated before, is not to
blame: what it waited in its other groups beyond the median rank of all groups of their axis and size is subtracted. The
largest difference over its groups counts, so that lateness that is seen in two groups counts once.

Groups whose ranks are stages of one pipeline do not count: see ``perfscope.analyzers.stragglers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.communication.waits import GroupWait
from perfscope.analyzers.shared.step_profile import Reason
from perfscope.constants import NS_PER_US
from perfscope.report import Json
from perfscope.tables.columns import Int64


class LateRank(Struct, frozen=True):
    """A rank that arrives later than its peers.

    Attributes:
        rank: The rank.
        late_ns: By how much, over all operations that count.
        group: Index of the group in which this shows most.
        reason: Why; absent where its steps cannot be compared with those of its peers.
    """

    rank: int
    late_ns: int
    group: int
    reason: Reason | None = None

    def data(self, group: GroupWait) -> dict[str, Json]:
        """One entry of ``results.stragglers.late``."""
        return {
            "rank": self.rank,
            "late_us": self.late_ns / NS_PER_US,
            "group": group.name or None,
            "axis": group.role or None,
            "reason": self.reason.text if self.reason else None,
        }


def find_late_ranks(groups: Sequence[GroupWait], significant_ns: float) -> list[LateRank]:
    """The ranks whose lateness is significant, the latest first."""

    def chosen() -> Iterator[tuple[int, GroupWait]]:  # one after the other: all together may fill the memory
        return ((index, group) for index, group in enumerate(groups) if not group.has_stages)

    waits = {index: np.array([rank.wait for rank in group.ranks], np.int64) for index, group in chosen()}
    typical = _typical_waits(chosen(), waits)
    excess: dict[int, int] = {}
    for index, group in chosen():
        for rank, more in zip(group.ranks, _beyond(waits[index], typical[_axis(group)]).tolist(), strict=True):
            excess[rank.rank] = excess.get(rank.rank, 0) + more
    latest: dict[int, LateRank] = {}
    for index, group in chosen():
        own_excess = _beyond(waits[index], typical[_axis(group)])
        behind = _upper_median(waits[index]) - waits[index] + own_excess
        for rank, behind_ns in zip(group.ranks, behind.tolist(), strict=True):
            late_ns = behind_ns - excess[rank.rank]
            if rank.rank < 0 or late_ns < significant_ns:
                continue
            if rank.rank not in latest or late_ns > latest[rank.rank].late_ns:
                latest[rank.rank] = LateRank(rank.rank, late_ns, index)
    return sorted(latest.values(), key=lambda late: (-late.late_ns, late.rank))


def _axis(group: GroupWait) -> tuple[str, int]:
    return group.role, len(group.ranks)


def _typical_waits(groups: Iterable[tuple[int, GroupWait]], waits: Mapping[int, Int64]) -> dict[tuple[str, int], int]:
    """The median wait of the ranks of all groups of an axis and a size."""
    of_axis: dict[tuple[str, int], list[Int64]] = {}
    for index, group in groups:
        of_axis.setdefault(_axis(group), []).append(waits[index])
    return {axis: _upper_median(np.concatenate(every)) for axis, every in of_axis.items()}


def _upper_median(values: Int64) -> int:
    """The median; of two in the middle the larger one, which of two ranks is the one that waits."""
    middle = len(values) // 2
    return int(np.partition(values, middle)[middle])


def _beyond(values: Int64, typical: int) -> Int64:
    return np.maximum(values - typical, 0)
