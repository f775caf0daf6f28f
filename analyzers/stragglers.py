"""Which rank makes the others wait.

In a collective every rank waits for the last one to arrive. The rank on which an operation is shortest arrived last,
and the time that the operation took longer on the others is the wait that it caused: a *caused wait* is the mean wait
of the other ranks of the group. No clocks are compared. The straggler is the rank that caused the longest wait; there
is none where that is below a hundredth of the time. ``relative_compute`` is the fastest rank's compute time over a
rank's own: below 1 a rank computes for longer, which points to its device or its share of the work, not to its host.

Sends and receives are left out: in a pipeline stages wait for each other by design.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.collectives import RankCalls, by_group
from perfscope.analyzers.communication.calls import SYNCHRONISING, GroupCalls, GroupKey, Kind
from perfscope.analyzers.communication.matching import MatchedCalls, match
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.report import Column, Json, Section, first_rows
from perfscope.tables.trace import ABSENT
from perfscope.units import format_bytes

#: The wait that makes a rank a straggler, as a share of the longest window.
SIGNIFICANT_FRACTION = 0.01
_MOST_OPERATIONS = 3
_MOST_ROWS = 40
_FEWEST_RANKS = 2


@dataclass(frozen=True, slots=True)
class RankWait:
    """One rank in one group, in nanoseconds.

    Attributes:
        rank: The rank; negative where its number is not known.
        wait: How long it waited for others.
        communication: How long its operations took.
        caused: How long the other ranks waited for it, the mean of them.
        last_arrivals: In how many operations it arrived last.
    """

    rank: int
    wait: int
    communication: int
    caused: float
    last_arrivals: int


@dataclass(frozen=True, slots=True)
class GroupWait:
    """The waits in one group.

    Attributes:
        name, description, role: The group.
        operations: How many operations were matched.
        ranks: Its ranks.
        causes: The kinds of operations in which the slowest rank caused the longest waits, with these waits.
    """

    name: str
    description: str
    role: str
    operations: int
    ranks: tuple[RankWait, ...]
    causes: tuple[tuple[Kind, float], ...]

    @property
    def slowest(self) -> RankWait:
        """The rank that caused the longest wait."""
        return max(self.ranks, key=lambda rank: (rank.caused, -rank.rank))

    def data(self) -> dict[str, Json]:
        """One entry of ``results.stragglers.groups``."""
        return {
            "group": self.name or None,
            "description": self.description or None,
            "axis": self.role or None,
            "operations": self.operations,
            "straggler": _number(self.slowest.rank),
            "caused_wait_us": self.slowest.caused / NS_PER_US,
            "in": [
                {
                    "operation": kind.operation or None,
                    "bytes": None if kind.bytes == ABSENT else kind.bytes,
                    "caused_wait_us": caused / NS_PER_US,
                }
                for kind, caused in self.causes
            ],
            "ranks": [
                {
                    "rank": _number(rank.rank),
                    "wait_us": rank.wait / NS_PER_US,
                    "communication_us": rank.communication / NS_PER_US,
                    "caused_wait_us": rank.caused / NS_PER_US,
                    "came_last": rank.last_arrivals,
                }
                for rank in self.ranks
            ],
        }


@dataclass(frozen=True, slots=True)
class RankPace:
    """One rank over all groups: the wait that it caused, and its compute time, in nanoseconds."""

    rank: int
    caused: float
    compute: int
    relative_compute: float | None


@dataclass(frozen=True, slots=True)
class Stragglers:
    """The waits that ranks caused.

    Attributes:
        straggler: The rank that caused the longest wait; absent where that is below ``significant``.
        significant: The wait that makes a rank a straggler, in nanoseconds.
        groups: Each group, the one with the longest caused wait first.
        ranks: Each rank.
    """

    straggler: int | None
    significant: float
    groups: tuple[GroupWait, ...]
    ranks: tuple[RankPace, ...]

    def data(self) -> Json:
        """``results.stragglers``."""
        return {
            "straggler": self.straggler,
            "significant_us": self.significant / NS_PER_US,
            "groups": [group.data() for group in self.groups],
            "ranks": [
                {
                    "rank": _number(rank.rank),
                    "caused_wait_us": rank.caused / NS_PER_US,
                    "compute_us": rank.compute / NS_PER_US,
                    "relative_compute": rank.relative_compute,
                }
                for rank in self.ranks
            ],
        }

    def sections(self) -> tuple[Section, ...]:
        """A table of groups and ranks."""
        paces = {rank.rank: rank for rank in self.ranks}
        rows = [
            (
                group.role or group.name or "not stated",
                "unknown" if rank.rank < 0 else str(rank.rank),
                rank.communication / NS_PER_MS,
                rank.wait / NS_PER_MS,
                rank.caused / NS_PER_MS,
                rank.last_arrivals,
                paces[rank.rank].relative_compute,
            )
            for group in self.groups
            for rank in group.ranks
        ]
        columns = (
            Column("Group"),
            Column("Rank"),
            Column("Comm. (ms)", 2),
            Column("Wait (ms)", 2),
            Column("Wait caused (ms)", 2),
            Column("Last arrivals"),
            Column("Relative compute", 3),
        )
        definition = "A rank's wait is the time that an operation took longer on it than on the rank that arrived last."
        shown, left_out = first_rows(rows, _MOST_ROWS)
        return (Section("Stragglers", columns, shown, (self._verdict(), definition, *left_out)),)

    def _verdict(self) -> str:
        if self.straggler is None:
            return f"No straggler: no rank caused a wait of {self.significant / NS_PER_MS:.2f} ms or more."
        caused = next(rank.caused for rank in self.ranks if rank.rank == self.straggler)
        group = max(self.groups, key=lambda group: group.slowest.caused if group.slowest.rank == self.straggler else -1)
        kinds = ", ".join(
            f"{kind.operation or 'unknown'}{'' if kind.bytes == ABSENT else ' of ' + format_bytes(kind.bytes)}"
            for kind, _ in group.causes
        )
        return (
            f"Straggler: rank {self.straggler}, which caused a wait of {caused / NS_PER_MS:.2f} ms, mostly in {kinds}."
        )


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Stragglers:
    """Find which ranks waited, and for which, in the collectives of every group.

    Raises:
        MissingInput: No two ranks made the same collectives.
    """
    parts = [part for partial in partials for part in partial]
    if not parts:
        raise NoDevice("the traces contain no GPU events")
    waits = [_find_waits(key, calls) for key, calls in by_group(partials).items() if key.sender == ABSENT]
    groups = sorted(
        (group for group in waits if group is not None), key=lambda group: (-group.slowest.caused, group.name)
    )
    if not groups:
        raise MissingInput("needs the traces of two ranks or more that made collectives together")
    significant = SIGNIFICANT_FRACTION * max(part.last_ns - part.first_ns for part in parts)
    ranks = _paces(parts, groups)
    slowest = max(ranks, key=lambda rank: (rank.caused, -rank.rank))
    is_straggler = slowest.caused >= significant and slowest.rank >= 0
    return Stragglers(slowest.rank if is_straggler else None, significant, tuple(groups), ranks)


def _find_waits(key: GroupKey, calls: dict[int, GroupCalls]) -> GroupWait | None:
    """The waits of one group; None where it has no collective that two ranks made together."""
    if len(calls) < _FEWEST_RANKS:
        return None
    matched = match(calls)
    synchronises = np.array([kind.operation in (*SYNCHRONISING, "") for kind in matched.kinds], np.bool_)
    chosen = synchronises[matched.kind] if len(matched.kind) else np.zeros(0, np.bool_)
    if not chosen.any():
        return None
    wait = matched.wait_ns[:, chosen]
    last = matched.duration_ns[:, chosen].argmin(axis=0)
    caused = wait.sum(axis=0) / (len(matched.ranks) - 1)
    first = next(iter(calls.values()))
    ranks = tuple(
        RankWait(
            rank=rank,
            wait=int(wait[row].sum()),
            communication=int(matched.duration_ns[row, chosen].sum()),
            caused=float(caused[last == row].sum()),
            last_arrivals=int((last == row).sum()),
        )
        for row, rank in enumerate(matched.ranks)
    )
    slowest = int(np.argmax([rank.caused for rank in ranks]))
    causes = _causes(matched, chosen, caused, last == slowest)
    return GroupWait(key.name, first.description, first.role, int(chosen.sum()), ranks, causes)


def _causes(
    matched: MatchedCalls, chosen: np.ndarray, caused: np.ndarray, by_slowest: np.ndarray
) -> tuple[tuple[Kind, float], ...]:
    kinds = matched.kind[chosen]
    sums = [(kind, float(caused[by_slowest & (kinds == index)].sum())) for index, kind in enumerate(matched.kinds)]
    causes = sorted((pair for pair in sums if pair[1] > 0), key=lambda pair: (-pair[1], pair[0]))
    return tuple(causes[:_MOST_OPERATIONS])


def _paces(parts: Sequence[RankCalls], groups: Sequence[GroupWait]) -> tuple[RankPace, ...]:
    caused: dict[int, float] = {}
    for group in groups:
        for rank in group.ranks:
            caused[rank.rank] = caused.get(rank.rank, 0.0) + rank.caused
    compute: dict[int, int] = {}
    for part in parts:
        if part.rank is not None:
            compute[part.rank] = max(compute.get(part.rank, 0), part.compute)
    least = min((ns for ns in compute.values() if ns), default=0)
    return tuple(
        RankPace(rank, caused[rank], compute.get(rank, 0), least / compute[rank] if compute.get(rank) else None)
        for rank in sorted(caused)
    )


def _number(rank: int) -> int | None:
    return rank if rank >= 0 else None
