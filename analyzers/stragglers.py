"""Which rank makes the others wait, and why, as far as the traces show it.

In a collective every rank waits for the last one to arrive. The rank on which an operation is shortest arrived last,
and the time that the operation took longer on the others is the wait that it caused: a *caused wait* is the mean wait
of the other ranks of the group. No clocks are compared. The straggler is the rank that caused most waiting beyond what
it waited itself; there is none where that is below a hundredth of the time, as on ranks that wait for each other by
turns. Where steps are marked on all ranks of a group, only the operations of these steps count.

Why a rank came last is what it did longer in these steps than the other ranks of its group
(``perfscope.analyzers.shared.step_profile``); ``perfscope.analyzers.shared.compute_pace`` tells a slow device from more
work.

Sends and receives are left out, and groups whose ranks are stages of one pipeline make no straggler: stages wait for
each other by the order of their passes, which the pipeline bubble measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.communication.calls import SYNCHRONISING, GroupCalls, GroupKey, Kind
from perfscope.analyzers.communication.lateness import LateRank, find_late_ranks
from perfscope.analyzers.communication.matched import MatchedCalls
from perfscope.analyzers.communication.matching import match
from perfscope.analyzers.communication.rank_calls import CallsByGroup, RankCalls
from perfscope.analyzers.communication.waits import GroupWait, Members, RankPace, RankWait, number_or_none
from perfscope.analyzers.shared.compute_pace import Comparison, Pace
from perfscope.analyzers.shared.rank_labels import LabelOfRank
from perfscope.analyzers.shared.step_profile import Reason
from perfscope.constants import MANY_RANKS, NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.report import Cell, Column, Json, Section, long_table
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.trace import ABSENT, distinct
from perfscope.units import format_bytes, format_ranges

#: The wait that makes a rank a straggler, as a share of the longest window.
SIGNIFICANT_FRACTION = 0.01
_MOST_OPERATIONS = 3
_MOST_ROWS = 40
_FEWEST_RANKS = 2


class Stragglers(Struct, frozen=True):
    """The waits that ranks caused.

    Attributes:
        straggler: The rank that caused most waiting beyond its own; absent where that is below ``significant``.
        significant: The wait that makes a rank a straggler, in nanoseconds.
        groups: Each group, the one with the longest caused wait first.
        ranks: Each rank.
        comparison: How the ranks compute; absent where they cannot be compared.
        late: Of many ranks those that arrive later than their peers, the latest first; absent for few ranks.
    """

    straggler: int | None
    significant: float
    groups: Sequence[GroupWait]
    ranks: Sequence[RankPace]
    comparison: Comparison | None
    late: tuple[LateRank, ...] | None = None

    def data(self) -> Json:
        """``results.stragglers``."""
        late = {} if self.late is None else {"late": [rank.data(self.groups[rank.group]) for rank in self.late]}
        return {
            **late,
            "straggler": self.straggler,
            "significant_us": self.significant / NS_PER_US,
            "compared": self.comparison.data() if self.comparison else None,
            "groups": [item.data() for item in self.groups],
            "ranks": [_rank_data(item) for item in self.ranks],
        }

    def groups_of_ranks(self) -> tuple[str, Mapping[int, str]]:
        """The data-parallel group of each rank: its ranks do the same work on other data."""
        replicas = ((group, f"of rank {group.ranks[0].rank}") for group in self.groups if group.role == "DP")
        labels = LabelOfRank((rank.rank, label) for group, label in replicas for rank in group.ranks)
        return "data-parallel group", labels if sum(group.role == "DP" for group in self.groups) > 1 else {}

    def sections(self) -> tuple[Section, ...]:
        """A table of groups and ranks."""
        paces = self.comparison.paces if self.comparison else {}
        rows = tuple(
            (
                group.label,
                "unknown" if rank.rank < 0 else str(rank.rank),
                rank.communication / NS_PER_MS,
                rank.wait / NS_PER_MS,
                rank.caused / NS_PER_MS,
                rank.last_arrivals,
                *_pace_cells(paces.get(rank.rank)),
                _reason_cell(group, rank),
            )
            for group in self.groups
            for rank in group.ranks
        )
        columns = (
            Column("Group"),
            Column("Rank"),
            Column("Comm. (ms)", 2),
            Column("Wait (ms)", 2),
            Column("Wait caused (ms)", 2),
            Column("Last arrivals"),
            Column("Relative compute", 3),
            Column("Relative work", 3),
            Column("Reason"),
        )
        notes = (self._verdict(), *self._notes())
        return (long_table("Stragglers", columns, rows, notes, most=_MOST_ROWS), *self._late_section())

    def _late_section(self) -> tuple[Section, ...]:
        """Which of many ranks are late; none for few ranks."""
        if self.late is None:
            return ()
        columns = (Column("Rank"), Column("Late (ms)", 2), Column("Group"), Column("Reason"))
        rows = [
            (
                str(rank.rank),
                rank.late_ns / NS_PER_MS,
                self.groups[rank.group].label,
                None if rank.reason is None else rank.reason.text or "not shown by the trace",
            )
            for rank in self.late
        ]
        note = (
            f"{len(rows)} of {len(self.ranks)} ranks arrive later than their peers by "
            f"{self.significant / NS_PER_MS:.2f} ms or more: by how much less they waited than the median rank of "
            "their group, less what they waited for others elsewhere."
        )
        return (Section("Ranks that arrive late", columns, tuple(rows), (note,)),)

    def _notes(self) -> list[str]:
        notes = ["A rank's wait is the time that an operation took longer on it than on the rank that arrived last."]
        stages = sorted({group.label for group in self.groups if group.has_stages})
        if stages:
            notes.append(
                f"Ranks of the group {', '.join(stages)} are stages of a pipeline: they send to each other, and wait "
                "for each other by the order of their passes, so that no rank is blamed for these waits. The pipeline "
                "bubble (`--only pipeline_bubble`) measures them."
            )
        if self.comparison is None:
            notes.append("Relative compute: n/a, because the ranks have no steps or no kernels in common.")
            return notes
        steps = self.comparison.steps
        over = f"steps {format_ranges(steps)}" if steps else "whole windows, because no step is marked"
        notes.append(f"{self.comparison.sentence()} Over {over}.")
        return notes

    def _verdict(self) -> str:
        limit = f"{self.significant / NS_PER_MS:.2f} ms or more"
        if all(group.has_stages for group in self.groups):
            return "No straggler is named: all waits are between the stages of a pipeline."
        if self.straggler is None:
            slowest = max(self.ranks, key=lambda rank: rank.caused)
            if slowest.caused < self.significant:
                return f"No straggler: no rank caused a wait of {limit}."
            return f"No straggler: no rank caused a wait of {limit} beyond its own waits; ranks come last by turns."
        caused = next(rank.caused for rank in self.ranks if rank.rank == self.straggler)
        blamed = (group for group in self.groups if not group.has_stages)
        group = max(blamed, key=lambda group: group.slowest.caused if group.slowest.rank == self.straggler else -1)
        kinds = ", ".join(
            f"{kind.operation or 'unknown'}{'' if kind.bytes == ABSENT else ' of ' + format_bytes(kind.bytes)}"
            for kind, _ in group.causes
        )
        reason = next(rank.reason for rank in group.ranks if rank.rank == self.straggler)
        why = f" Reason: {reason.text}." if reason and reason.text else ""
        return (
            f"Straggler: rank {self.straggler}, which caused a wait of {caused / NS_PER_MS:.2f} ms, mostly in "
            f"{kinds}.{why}"
        )


def _rank_data(rank: RankPace) -> Json:
    """One entry of ``results.stragglers.ranks``."""
    return {
        "rank": number_or_none(rank.rank),
        "caused_wait_us": rank.caused / NS_PER_US,
        "wait_us": rank.wait / NS_PER_US,
        "compute_us": rank.compute / NS_PER_US,
        "relative_compute": rank.pace.relative_compute if rank.pace else None,
        "relative_work": rank.pace.relative_work if rank.pace else None,
        "caused_wait_by_step": [
            {"step": None if step == ABSENT else step, "us": caused / NS_PER_US}
            for step, caused in sorted(rank.caused_in.items())
        ],
    }


def _pace_cells(pace: Pace | None) -> tuple[Cell, Cell]:
    return (None, None) if pace is None else (pace.relative_compute, pace.relative_work)


def _reason_cell(group: GroupWait, rank: RankWait) -> str | None:
    if group.has_stages:
        return "pipeline order" if rank.last_arrivals else None
    return None if rank.reason is None else rank.reason.text or "not shown by the trace"


def analyze(partials: Sequence[tuple[RankCalls, ...]]) -> Stragglers:
    """Find which ranks waited, and for which, in the collectives of every group.

    Raises:
        MissingInput: No two ranks made the same collectives.
    """
    longest = max((part.span_ns for partial in partials for part in partial), default=None)
    if longest is None:
        raise NoDevice("the traces contain no GPU events")
    significant = SIGNIFICANT_FRACTION * longest
    ranks = Members(partials)
    waits = (_find_waits(key, calls, ranks) for key, calls in CallsByGroup(partials).items() if key.sender == ABSENT)
    groups = tuple(
        sorted(
            (ranks.with_reasons(group, significant) for group in waits if group is not None),
            key=lambda group: (group.has_stages, -group.slowest.caused, group.name),
        )
    )
    if not groups:
        raise MissingInput("needs the traces of two ranks or more that made collectives together")
    paces = ranks.paces(groups)
    slowest = max(paces, key=lambda rank: (rank.excess, -rank.rank))
    is_straggler = slowest.excess >= significant and slowest.rank >= 0
    late = None
    if len(paces) > MANY_RANKS:
        every = find_late_ranks(groups, significant)
        reasons: dict[int, Reason | None] = {}
        for index in sorted({rank.group for rank in every}):
            peers = ranks.compare_peers(groups[index])
            reasons |= {rank.rank: peers.reason(rank.rank, significant) for rank in every if rank.group == index}
        late = tuple(replace(rank, reason=reasons[rank.rank]) for rank in every)
    return Stragglers(slowest.rank if is_straggler else None, significant, groups, paces, ranks.comparison, late)


def _find_waits(key: GroupKey, calls: Mapping[int, GroupCalls], members: Members) -> GroupWait | None:
    """The waits of one group; None where it has no collective that two ranks made together."""
    if len(calls) < _FEWEST_RANKS:
        return None
    matched = match(calls)
    synchronises = np.array([kind.operation in (*SYNCHRONISING, "") for kind in matched.kinds], np.bool_)
    chosen = synchronises[matched.kind] if len(matched.kind) else np.zeros(0, np.bool_)
    if members.mark_steps(calls):
        chosen = chosen & (matched.step != ABSENT)
    if not chosen.any():
        return None
    last, transfers_ns = matched.last[chosen], matched.transfer_ns[chosen]
    # Sums of waits by sums of durations: the waits themselves would have to be read once more.
    caused = (matched.total_ns[chosen] - len(matched.ranks) * transfers_ns) / (len(matched.ranks) - 1)
    first = next(iter(calls.values()))
    communication = np.concatenate([rows.duration_ns[:, chosen].sum(axis=1) for rows in matched.read()])
    steps = distinct(matched.step[chosen])
    caused_by = {row: _caused_in(caused, last == row, matched.step[chosen], steps) for row in distinct(last)}
    nothing = _Caused(0.0, 0, dict.fromkeys(steps, 0.0))
    ranks = tuple(
        RankWait(rank, waited, communicated, of_row.ns, of_row.calls, caused_in=of_row.in_steps)
        for rank, waited, communicated, of_row in zip(
            matched.ranks,
            (communication - int(transfers_ns.sum())).tolist(),
            communication.tolist(),
            (caused_by.get(row, nothing) for row in range(len(matched.ranks))),
            strict=True,
        )
    )
    slowest = int(np.argmax([rank.caused for rank in ranks]))
    causes = _causes(matched, chosen, caused, last == slowest)
    return GroupWait(
        key.name, first.description, first.role, int(chosen.sum()), ranks, causes, members.are_stages(calls, first.role)
    )


class _Caused(NamedTuple):
    """What the last one of some collectives caused: how long others waited, in how many, and in each step."""

    ns: float
    calls: int
    in_steps: Mapping[int, float]


def _caused_in(caused: Float64, is_last: Bool, step: Int64, steps: Sequence[int]) -> _Caused:
    of_rank, in_step = caused[is_last], step[is_last]
    return _Caused(
        float(of_rank.sum()), len(of_rank), {number: float(of_rank[in_step == number].sum()) for number in steps}
    )


def _causes(
    matched: MatchedCalls, chosen: np.ndarray, caused: np.ndarray, by_slowest: np.ndarray
) -> tuple[tuple[Kind, float], ...]:
    kinds = matched.kind[chosen]
    sums = [(kind, float(caused[by_slowest & (kinds == index)].sum())) for index, kind in enumerate(matched.kinds)]
    causes = sorted((pair for pair in sums if pair[1] > 0), key=lambda pair: (-pair[1], pair[0]))
    return tuple(causes[:_MOST_OPERATIONS])
