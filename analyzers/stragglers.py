"""Who makes the others wait.

In a collective every rank waits for the last one to come. The rank on which an operation is shortest came last, and
what the operation took longer on the others is the waiting that it caused: a *caused wait* is the mean wait of the
other ranks of the group. No clocks are compared. The straggler is the rank that caused most; nobody is one where that
is below a hundredth of the time. ``relative_compute`` is the fastest rank's compute time over a rank's own: below 1 a
rank computes for longer, which points to its device or its share of the work rather than to its host.

Sends and receives are left out: in a pipeline stages wait for each other by design.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.collectives import RankCalls, by_group
from perfscope.analyzers.communication.calls import SYNCHRONISING, GroupCalls, GroupKey, Kind
from perfscope.analyzers.communication.matching import Matched, match
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
from perfscope.tables.trace import ABSENT
from perfscope.units import format_bytes

#: What a rank must cause, as a share of the longest window, to be called a straggler.
SIGNIFICANT_FRACTION = 0.01
_MOST_OPERATIONS = 3
_MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class RankWait:
    """One rank in one group, in nanoseconds.

    Attributes:
        rank: The rank; negative where its number is not known.
        wait: How long it waited for others.
        communication: How long its operations took.
        caused: How long the others waited for it, the mean of them.
        came_last: In how many operations it was the last to come.
    """

    rank: int
    wait: int
    communication: int
    caused: float
    came_last: int


@dataclass(frozen=True, slots=True)
class GroupWait:
    """Who waited for whom in one group.

    Attributes:
        name, description, role: The group.
        operations: How many operations were matched.
        ranks: Its ranks.
        causes: What the operations were in which the slowest rank was waited for most, with the wait that it caused.
    """

    name: str
    description: str
    role: str
    operations: int
    ranks: tuple[RankWait, ...]
    causes: tuple[tuple[Kind, float], ...]

    @property
    def slowest(self) -> RankWait:
        """The rank that caused most waiting."""
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
                    "came_last": rank.came_last,
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
    """Who makes the others wait.

    Attributes:
        straggler: The rank that caused most waiting; absent where that is too little to matter.
        significant: What it must cause to matter, in nanoseconds.
        groups: Each group, the one with the most caused waiting first.
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
                rank.came_last,
                paces[rank.rank].relative_compute,
            )
            for group in self.groups
            for rank in group.ranks
        ]
        columns = (
            Column("Group"),
            Column("Rank"),
            Column("Comm. (ms)", 2),
            Column("Waited (ms)", 2),
            Column("Made others wait (ms)", 2),
            Column("Came last"),
            Column("Relative compute", 3),
        )
        left_out = len(rows) - _MOST_ROWS
        notes = [self._verdict(), "A wait is what an operation took longer than on the rank that came last."]
        if left_out > 0:
            notes.append(f"{left_out} more rows are in --format json.")
        return (Section("Stragglers", columns, tuple(rows[:_MOST_ROWS]), tuple(notes)),)

    def _verdict(self) -> str:
        if self.straggler is None:
            return f"No straggler: no rank made others wait for {self.significant / NS_PER_MS:.2f} ms or more."
        caused = next(rank.caused for rank in self.ranks if rank.rank == self.straggler)
        group = max(self.groups, key=lambda group: group.slowest.caused if group.slowest.rank == self.straggler else -1)
        kinds = ", ".join(
            f"{kind.operation or 'unknown'}{'' if kind.bytes == ABSENT else ' of ' + format_bytes(kind.bytes)}"
            for kind, _ in group.causes
        )
        return f"Rank {self.straggler} made the others wait for {caused / NS_PER_MS:.2f} ms, mostly in {kinds}."


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Stragglers:
    """Find who waited for whom in the collectives of every group.

    Raises:
        MissingInput: No two ranks made the same collectives.
    """
    parts = [part for partial in partials for part in partial]
    if not parts:
        raise MissingInput("the traces hold no GPU events")
    waits = [_group(key, calls) for key, calls in by_group(partials).items() if key.sender == ABSENT]
    groups = sorted(
        (group for group in waits if group is not None), key=lambda group: (-group.slowest.caused, group.name)
    )
    if not groups:
        raise MissingInput("needs the traces of two ranks or more that made collectives together")
    significant = SIGNIFICANT_FRACTION * max(part.last_ns - part.first_ns for part in parts)
    ranks = _paces(parts, groups)
    slowest = max(ranks, key=lambda rank: (rank.caused, -rank.rank))
    matters = slowest.caused >= significant and slowest.rank >= 0
    return Stragglers(slowest.rank if matters else None, significant, tuple(groups), ranks)


def _group(key: GroupKey, calls: dict[int, GroupCalls]) -> GroupWait | None:
    if len(calls) < 2:  # noqa: PLR2004 - nobody waits alone
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
            came_last=int((last == row).sum()),
        )
        for row, rank in enumerate(matched.ranks)
    )
    slowest = int(np.argmax([rank.caused for rank in ranks]))
    causes = _causes(matched, chosen, caused, last == slowest)
    return GroupWait(key.name, first.description, first.role, int(chosen.sum()), ranks, causes)


def _causes(
    matched: Matched, chosen: np.ndarray, caused: np.ndarray, by_slowest: np.ndarray
) -> tuple[tuple[Kind, float], ...]:
    kinds = matched.kind[chosen]
    sums = [(kind, float(caused[by_slowest & (kinds == index)].sum())) for index, kind in enumerate(matched.kinds)]
    found = sorted((pair for pair in sums if pair[1] > 0), key=lambda pair: (-pair[1], pair[0]))
    return tuple(found[:_MOST_OPERATIONS])


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
