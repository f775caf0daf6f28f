"""Collectives of all ranks, matched by group and sequence number: the first difference, and who is missing where.

A recorder is a ring: a rank remembers its last calls alone. Calls are compared from the first number on that all
members of a group remember.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.postmortem.signatures import Signature, signature_of
from perfscope.tables.postmortem import CollectiveCall, RankState

_DEFAULT_GROUPS = ("0", "")


@dataclass(frozen=True, slots=True)
class Difference:
    """Ranks of a group called different things as the same collective.

    Attributes:
        group: The group.
        sequence: The number of the collective.
        calls: What each rank called.
    """

    group: str
    sequence: int
    calls: Mapping[int, CollectiveCall]

    def by_signature(self) -> dict[Signature, list[int]]:
        """The ranks of each call, the largest set first."""
        ranks: dict[Signature, list[int]] = {}
        for rank, call in sorted(self.calls.items()):
            ranks.setdefault(signature_of(call), []).append(rank)
        return dict(sorted(ranks.items(), key=lambda item: -len(item[1])))


@dataclass(frozen=True, slots=True)
class Absence:
    """Some ranks of a group have called a collective that others have not.

    Attributes:
        group: The group.
        sequence: The number of the collective.
        calls: The call of each rank that came.
        missing: The ranks that did not.
    """

    group: str
    sequence: int
    calls: Mapping[int, CollectiveCall]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """All ranks of a group have called a collective that is not over.

    Attributes:
        group: The group.
        sequence: The number of the collective.
        calls: What each rank called.
    """

    group: str
    sequence: int
    calls: Mapping[int, CollectiveCall]

    @property
    def not_started(self) -> tuple[int, ...]:
        """The ranks whose devices have not begun it, where those of others have."""
        states = {rank: call.is_started for rank, call in self.calls.items()}
        waiting = tuple(rank for rank, is_started in states.items() if is_started is False)
        return waiting if any(states.values()) else ()


@dataclass(frozen=True, slots=True)
class Matching:
    """The collectives of all groups, matched; each list begins with what was called first."""

    differences: tuple[Difference, ...]
    absences: tuple[Absence, ...]
    unfinished: tuple[Unfinished, ...]


def match_calls(ranks: Mapping[int, RankState], world_size: int) -> Matching:
    """Match the collectives of the ranks that left a dump."""
    differences, absences, unfinished = [], [], []
    dumped = {rank for rank, state in ranks.items() if state.dump is not None}
    for group, calls in sorted(_by_group(ranks).items()):
        members = _members(ranks, group, calls, world_size)
        begin = max(min(numbers) for numbers in calls.values())
        end = max(max(numbers) for numbers in calls.values())
        for sequence in range(begin, end + 1):
            present = {rank: numbers[sequence] for rank, numbers in calls.items() if sequence in numbers}
            if len({signature_of(call) for call in present.values()}) > 1:
                differences.append(Difference(group, sequence, present))
                break
            without_dump = {rank for rank in members if rank in ranks and rank not in dumped}
            is_open = sequence == end and not all(call.is_completed for call in present.values())
            absent = (rank for rank in members if rank not in present)
            missing = tuple(rank for rank in absent if rank in dumped or (is_open and rank in without_dump))
            if missing:
                absences.append(Absence(group, sequence, present, missing))
                break
            if not any(call.is_completed for call in present.values()):
                unfinished.append(Unfinished(group, sequence, present))
                break
    return Matching(
        tuple(sorted(differences, key=_first_call_ns)),
        tuple(sorted(absences, key=_first_call_ns)),
        tuple(sorted(unfinished, key=_first_call_ns)),
    )


def _first_call_ns(event: Difference | Absence | Unfinished) -> int:
    return min(call.created_ns for call in event.calls.values())


def _by_group(ranks: Mapping[int, RankState]) -> dict[str, dict[int, dict[int, CollectiveCall]]]:
    """The calls of each group by rank and sequence number; sends and receives are not numbered alike."""
    groups: dict[str, dict[int, dict[int, CollectiveCall]]] = {}
    for rank, state in sorted(ranks.items()):
        for call in state.dump.calls if state.dump is not None else ():
            if not call.is_p2p:
                groups.setdefault(call.group, {}).setdefault(rank, {})[call.sequence] = call
    return groups


def _members(ranks: Mapping[int, RankState], group: str, calls: Mapping[int, object], world_size: int) -> Sequence[int]:
    """The ranks of a group: as a dump says, all for the default group, else those that have called something in it."""
    for state in ranks.values():
        if state.dump is not None and group in state.dump.members:
            return state.dump.members[group]
    return range(world_size) if group in _DEFAULT_GROUPS else sorted(calls)


def find_first_open(ranks: Mapping[int, RankState]) -> dict[int, CollectiveCall]:
    """By rank, the first of its calls, sends and receives included, that is not over."""
    first = {}
    for rank, state in sorted(ranks.items()):
        calls = state.dump.calls if state.dump is not None else ()
        call = next((call for call in calls if not call.is_completed), None)
        if call is not None:
            first[rank] = call
    return first
