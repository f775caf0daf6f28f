"""The waits of ranks in groups, and what the ranks of a job are compared by to say why one came last."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from math import fsum
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.communication.calls import Kind
from perfscope.analyzers.communication.rank_calls import RankCalls, number_ranks_and_runs
from perfscope.analyzers.shared.compute_pace import Pace, compare
from perfscope.analyzers.shared.kernel_medians import KernelMedians, join_windows
from perfscope.analyzers.shared.marked_steps import common_steps
from perfscope.analyzers.shared.step_profile import Reason, StepProfile, join_profiles, parts_of, reason_of
from perfscope.constants import NS_PER_US
from perfscope.report import Json
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT

_T = TypeVar("_T")

#: The axes whose groups may have ranks of several stages.
_ROLES_OF_STAGES = frozenset(("PP", "MP", "world", ""))


class RankWait(Struct, frozen=True):
    """One rank in one group, in nanoseconds.

    Attributes:
        rank: The rank; negative where its number is not known.
        wait: How long it waited for others.
        communication: How long its operations took.
        caused: How long the other ranks waited for it, the mean of them.
        last_arrivals: In how many operations it arrived last.
        reason: Why it came last; absent where it caused no significant wait.
        caused_in: What of the caused wait was in each step; the key is ABSENT outside of steps.
    """

    rank: int
    wait: int
    communication: int
    caused: float
    last_arrivals: int
    reason: Reason | None = None
    caused_in: Mapping[int, float] = field(default_factory=dict)

    @property
    def excess(self) -> float:
        """The wait that it caused beyond what it waited itself."""
        return self.caused - self.wait


class GroupWait(Struct, frozen=True):
    """The waits in one group.

    Attributes:
        name, description, role: The group.
        operations: How many operations were matched.
        ranks: Its ranks.
        causes: The kinds of operations in which the slowest rank caused the longest waits, with these waits.
        has_stages: Whether its ranks are stages of one pipeline, which wait for each other by design.
    """

    name: str
    description: str
    role: str
    operations: int
    ranks: tuple[RankWait, ...]
    causes: tuple[tuple[Kind, float], ...]
    has_stages: bool

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.role or self.name or "not stated"

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
            "pipeline": self.has_stages,
            "straggler": number_or_none(self.slowest.rank),
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
                    "rank": number_or_none(rank.rank),
                    "wait_us": rank.wait / NS_PER_US,
                    "communication_us": rank.communication / NS_PER_US,
                    "caused_wait_us": rank.caused / NS_PER_US,
                    "came_last": rank.last_arrivals,
                    **(rank.reason.data() if rank.reason else {"reason": None, "excess_us": None}),
                }
                for rank in self.ranks
            ],
        }


class RankPace(Struct, frozen=True):
    """One rank over all groups but those of a pipeline's stages, in nanoseconds.

    Attributes:
        rank: The rank; negative where its number is not known.
        caused: The wait that it caused.
        wait: The wait that it had.
        compute: Its compute time in the whole window.
        pace: How fast it computes, and how much; absent where ranks cannot be compared.
        caused_in: What of the caused wait was in each step; the key is ABSENT outside of steps.
    """

    rank: int
    caused: float
    wait: int
    compute: int
    pace: Pace | None
    caused_in: Mapping[int, float] = field(default_factory=dict)

    @property
    def excess(self) -> float:
        """The wait that it caused beyond what it waited itself."""
        return self.caused - self.wait


class Peers(Struct, frozen=True, eq=False):
    """The ranks of a group over the steps that all of them marked.

    Attributes:
        row_of: The row of each rank; empty where they have no step in common.
        parts_ns: What each did: one row a rank, one column for each of ``step_profile.PARTS``.
        paces: How fast each computes; empty where they cannot be compared.
    """

    row_of: Mapping[int, int]
    parts_ns: Int64
    paces: tuple[Pace, ...]

    def reason(self, rank: int, significant: float) -> Reason | None:
        """Why a rank came last; None where its steps cannot be compared with those of the others."""
        row = self.row_of.get(rank)
        if row is None or len(self.row_of) == 1:
            return None
        slower = more_work = 0.0
        if self.paces:
            own, others = self.paces[row], (*self.paces[:row], *self.paces[row + 1 :])
            slower = (
                1 / (own.relative_compute or 1.0) / _mean([1 / (pace.relative_compute or 1.0) for pace in others]) - 1
            )
            more_work = own.relative_work / _mean([pace.relative_work for pace in others]) - 1
        return reason_of(self.parts_ns[row], np.delete(self.parts_ns, row, axis=0), slower, more_work, significant)


class Members:
    """What the ranks of a job sent besides their operations.

    Of several runs of one rank, the first one counts.
    """

    def __init__(self, partials: Sequence[tuple[RankCalls, ...]]) -> None:
        self._transferring: set[int] = set()
        self._pairs: set[tuple[int, int]] = set()
        ranks, computed = array("q"), array("q")
        sent = tuple(sorted(self._list_sent(partials, ranks, computed), key=lambda each: (each.rank, each.moment)))
        self._computed = _LargestOfRanks(ranks, computed)
        compared = array("q")
        kernels = tuple(_joined(sent, "kernels", join_windows, compared))
        self.comparison = compare(compared, kernels)
        self._profiled = array("q")
        self._profiles = tuple(_joined(sent, "profile", join_profiles, self._profiled))
        self._without_steps = {
            rank for rank, profile in zip(self._profiled, self._profiles, strict=True) if ABSENT in profile.steps
        }

    def _list_sent(
        self, partials: Sequence[tuple[RankCalls, ...]], ranks: array[int], computed: array[int]
    ) -> Iterator[_Sent]:
        """What the ranks of the first run did in their steps; what else they sent is kept, or added to the columns."""
        for part, rank, run, moment, _ in number_ranks_and_runs(partials):
            if run:
                continue
            ranks.append(rank)
            computed.append(part.compute)
            if part.transfers:
                self._transferring.add(rank)
            self._pairs.update(
                (calls.key.sender, calls.key.receiver) for calls in part.groups if calls.key.sender != ABSENT
            )
            yield _Sent(rank, moment, part.kernels, part.profile)

    def are_stages(self, members: Iterable[int], role: str) -> bool:
        """Whether the ranks of a group are stages of a pipeline; its role is the axis that it serves."""
        ranks = set(members)
        if not ranks & self._transferring or role not in _ROLES_OF_STAGES:
            return False
        # Transfers that a framework batches do not state their peers.
        return role == "PP" or not self._pairs or any(ranks.issuperset(pair) for pair in self._pairs)

    def mark_steps(self, members: Iterable[int]) -> bool:
        """Whether steps are marked on all ranks of a group."""
        return all(self._place_of(rank) is not None and rank not in self._without_steps for rank in members)

    def with_reasons(self, group: GroupWait, significant: float) -> GroupWait:
        """A group, with why those of its ranks came last that caused a significant wait."""
        if group.has_stages or not any(rank.excess >= significant for rank in group.ranks):
            return group
        peers = self.compare_peers(group)
        ranks = tuple(
            replace(rank, reason=peers.reason(rank.rank, significant)) if rank.excess >= significant else rank
            for rank in group.ranks
        )
        return replace(group, ranks=ranks)

    def compare_peers(self, group: GroupWait) -> Peers:
        """What tells the ranks of a group apart."""
        members = [member.rank for member in group.ranks if self._place_of(member.rank) is not None]
        profiles = [self._profiles[bisect_left(self._profiled, member)] for member in members]
        steps = common_steps(profile.steps for profile in profiles)
        parts = parts_of(profiles, steps)
        paces = self.comparison.paces if self.comparison else {}
        compared = [paces[member] for member in members if member in paces]
        return Peers(
            row_of={member: row for row, member in enumerate(members)} if steps else {},
            parts_ns=parts,
            paces=tuple(compared) if len(compared) == len(members) else (),
        )

    def paces(self, groups: Sequence[GroupWait]) -> Sequence[RankPace]:
        """Each rank over all groups."""
        waits = ((rank, group.has_stages) for group in groups for rank in group.ranks)
        by_rank = groupby(tuple(sorted(waits, key=lambda wait: wait[0].rank)), lambda wait: wait[0].rank)
        return tuple(
            self._pace(rank, [wait for wait, has_stages in of_rank if not has_stages]) for rank, of_rank in by_rank
        )

    def _pace(self, rank: int, waits: Sequence[RankWait]) -> RankPace:
        """A rank over its groups but those of a pipeline's stages."""
        caused, waited = 0.0, 0
        caused_in: dict[int, float] = {}
        for wait in waits:
            caused, waited = caused + wait.caused, waited + wait.wait
            for step, ns in wait.caused_in.items():
                caused_in[step] = caused_in.get(step, 0.0) + ns
        pace = self.comparison.paces.get(rank) if self.comparison else None
        return RankPace(rank, caused, waited, self._computed.of(rank), pace, caused_in)

    def _place_of(self, rank: int) -> int | None:
        """Where the steps of a rank are; None where it sent none."""
        return _place_of(rank, self._profiled)


class _LargestOfRanks:
    """The largest number that each rank has; columns, because ranks may be many.

    Args:
        ranks: The ranks, in any order.
        numbers: The number that stands beside each, which is not negative.
    """

    def __init__(self, ranks: array[int], numbers: array[int]) -> None:
        every, beside = np.array(ranks, np.int64), np.array(numbers, np.int64)
        order = np.lexsort((beside, every))
        every, beside = every[order], beside[order]
        is_last = np.append(every[1:] != every[:-1], True)[: len(every)]
        self._ranks = array("q", every[is_last].tobytes())
        self._numbers = array("q", beside[is_last].tobytes())

    def of(self, rank: int) -> int:
        """The number of a rank; 0 of one that has none."""
        row = _place_of(rank, self._ranks)
        return 0 if row is None else self._numbers[row]


def _place_of(rank: int, ranks: array[int]) -> int | None:
    """Where a rank stands among some in order; None where it is none of them."""
    row = bisect_left(ranks, rank)
    return row if row < len(ranks) and ranks[row] == rank else None


class _Sent(NamedTuple):
    """What a window of a rank says of its steps; ``moment`` is its row in the order of time."""

    rank: int
    moment: int
    kernels: KernelMedians | None
    profile: StepProfile | None


def _joined(
    sent: Sequence[_Sent], name: str, join: Callable[[_T | None, _T | None], _T | None], ranks: array[int]
) -> Iterator[_T]:
    """A part of what each rank sent, over its windows; the ranks that have it are added to ``ranks``."""
    for rank, windows in groupby(sent, lambda each: each.rank):
        whole = reduce(join, (getattr(window, name) for window in windows))
        if whole is not None:
            ranks.append(rank)
            yield whole


def number_or_none(rank: int) -> int | None:
    """A rank for JSON: null where its number is not known."""
    return rank if rank >= 0 else None


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
