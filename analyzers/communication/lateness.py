"""Which of many ranks arrive later than their peers, where several of them are late at once.

In each collective the others wait for the last rank alone: who is late by less causes no wait of its own. But it waits
for less time than its peers do. So a rank's *lateness* in a group is by how much less it waited there than the median
rank of the group. A rank that is late because it waited for another one, in a group that communicated before, is not to
blame: what it waited in its other groups beyond the median rank of all groups of their axis and size is subtracted. The
largest difference over its groups counts, so that lateness that is seen in two groups counts once.

Groups whose ranks are stages of one pipeline do not count: see ``perfscope.analyzers.stragglers``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.communication.waits import GroupWait
from perfscope.analyzers.shared.step_profile import Reason
from perfscope.constants import NS_PER_US
from perfscope.report import Json
from perfscope.tables.columns import Int64
from perfscope.tables.trace import distinct_column


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

    waits = _Waits(group for _, group in chosen())
    typical = waits.typical()
    ranks = distinct_column(waits.ranks)
    excess = np.zeros(len(ranks), np.int64)
    for number, axis in enumerate(waits.axes):
        # A rank is in a group once.
        excess[ranks.searchsorted(waits.ranks_of(number))] += _beyond(waits.of(number), typical[axis])
    latest: dict[int, LateRank] = {}
    for number, (index, group) in enumerate(chosen()):
        own = waits.of(number)
        behind = _upper_median(own) - own + _beyond(own, typical[waits.axes[number]])
        late = behind - excess[ranks.searchsorted(waits.ranks_of(number))]
        for row in np.flatnonzero(late >= significant_ns).tolist():
            rank, late_ns = group.ranks[row].rank, int(late[row])
            if rank >= 0 and (rank not in latest or late_ns > latest[rank].late_ns):
                latest[rank] = LateRank(rank, late_ns, index)
    return sorted(latest.values(), key=lambda late: (-late.late_ns, late.rank))


class _Waits:
    """The waits of the ranks of groups, as columns of all of them, because a job has many of both.

    Attributes:
        ranks: The ranks of the groups, one group after the other.
        axes: For each group the number of its axis and size, from 0.
    """

    def __init__(self, groups: Iterable[GroupWait]) -> None:
        ranks, waits, number_of = array("q"), array("q"), dict[tuple[str, int], int]()
        self.axes, self._begins = array("i"), array("q", [0])
        for group in groups:
            ranks.extend(rank.rank for rank in group.ranks)
            waits.extend(rank.wait for rank in group.ranks)
            self.axes.append(number_of.setdefault((group.role, len(group.ranks)), len(number_of)))
            self._begins.append(len(waits))
        self.ranks, self._waits = np.frombuffer(ranks, np.int64), np.frombuffer(waits, np.int64)

    def ranks_of(self, number: int) -> Int64:
        """The ranks of a group, by its place among the groups."""
        return self.ranks[self._begins[number] : self._begins[number + 1]]

    def of(self, number: int) -> Int64:
        """The waits of these ranks."""
        return self._waits[self._begins[number] : self._begins[number + 1]]

    def typical(self) -> list[int]:
        """The median wait of the ranks of all groups of each axis and size."""
        axis_of_group, begins = np.frombuffer(self.axes, np.int32), np.frombuffer(self._begins, np.int64)
        axis = np.repeat(axis_of_group, begins[1:] - begins[:-1])
        return [_upper_median(self._waits[axis == number]) for number in range(int(axis_of_group.max(initial=-1)) + 1)]


def _upper_median(values: Int64) -> int:
    """The median; of two in the middle the larger one, which of two ranks is the one that waits."""
    middle = len(values) // 2
    return int(np.partition(values, middle)[middle])


def _beyond(values: Int64, typical: int) -> Int64:
    return np.maximum(values - typical, 0)
