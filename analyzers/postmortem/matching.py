"""Collectives of all ranks, matched by group and sequence number: the first difference, and who is missing where.

A recorder is a ring: a rank remembers its last calls alone. Calls are compared from the first number on that all
members of a group remember.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from math import prod
from typing import NamedTuple

from perfscope.tables.postmortem import CollectiveCall, RankState
from perfscope.wire.incidents import CodeFrame

#: Calls whose tensors may differ between the ranks of a group.
_UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
#: Calls that are compared with what came before them.
_LONGEST_CONTEXT = 16
#: Calls that are shown, and in which one that was left out or is another than usual counts.
LAST_CALLS = 4


class Signature(NamedTuple):
    """What the ranks of a group agree on in one collective; ``elements`` is None where they may differ."""

    operation: str
    elements: int | None
    dtypes: tuple[str, ...] | None

    def __str__(self) -> str:
        size = "" if self.elements is None else f" of {self.elements:,} elements"
        kind = f" {', '.join(dict.fromkeys(self.dtypes))}" if self.dtypes else ""
        return f"{self.operation}{size}{kind}"


def signature_of(call: CollectiveCall) -> Signature:
    """What of a call must be the same on all ranks of its group."""
    operation = call.operation.split(" ", 1)[0]
    is_uneven = any(operation.strip("_").startswith(name) for name in _UNEVEN)
    if is_uneven or not call.input_sizes:
        return Signature(operation, None, None)
    return Signature(operation, sum(prod(shape) for shape in call.input_sizes), tuple(sorted(set(call.dtypes))))


class Token(NamedTuple):
    """A call in the order of one rank's calls: its group, and its signature."""

    group: str
    signature: Signature

    def __str__(self) -> str:
        return f"{self.signature} in group {self.group}"


class Shift(Enum):
    """How calls differ from those that were expected."""

    EXCHANGED = auto()
    LEFT_OUT = auto()


def explain_shift(actual: Sequence[object], expected: Sequence[object]) -> Shift | None:
    """Whether calls are the expected ones but for two that changed places, or for the first ones, which were left out.

    None where neither explains at least two calls, and all of those that can be compared.

    >>> a, b, c = (Token(name, Signature(name, None, None)) for name in "abc")

    >>> explain_shift([b, a, c], [a, b, c, a]), explain_shift([b, c, a], [a, b, c, a]), explain_shift([b], [a, b])
    (<Shift.EXCHANGED: 1>, <Shift.LEFT_OUT: 2>, None)
    """
    shared = min(len(actual), len(expected))
    for distance in range(1, shared):
        swapped = list(expected[:shared])
        swapped[0], swapped[distance] = swapped[distance], swapped[0]
        if swapped == list(actual[:shared]):
            return Shift.EXCHANGED
    for left_out in range(1, shared + 1):
        rest = expected[left_out : left_out + len(actual)]
        if len(rest) > 1 and list(rest) == list(actual[: len(rest)]):
            return Shift.LEFT_OUT
    return None


class History:
    """The calls of one rank in their order: what it calls after what."""

    def __init__(self, calls: Sequence[CollectiveCall]) -> None:
        self.calls = [call for call in calls if not call.is_p2p]
        self._moves = _to_moves(calls)

    @cached_property
    def tokens(self) -> list[Token]:
        """The calls, without sends and receives, whose order need not be the same in each step."""
        return [Token(call.group, signature_of(call)) for call in self.calls]

    def expected_at(self, index: int) -> set[Token]:
        """What came earlier after the longest stretch of calls that ends before a position; empty without one."""
        tokens = self.tokens
        return {tokens[end] for end in _find_same_places(tokens, index)}

    def explain_shift(self, index: int) -> Shift | None:
        """How a call that did not come before in its place, and those behind it, differ from what came there before."""
        moves = self._moves.tokens
        position = self._moves.positions[index]
        if position and moves[position - 1] == _TRANSFERS and _is_new(moves, position - 1):
            position -= 1  # what is missing is missing before the sends and receives that precede the call
        places = _find_same_places(moves, position)
        if not places:
            return None
        since = slice(places[0], position)
        actual = moves[position:]
        repeats = 2 + len(actual) // len(moves[since])  # what followed there goes on as what came since
        shift = explain_shift(actual, moves[since] * repeats)
        if shift is not Shift.EXCHANGED:
            return shift
        # of calls that look alike, such as two of one number each, the lines of code tell which one it was
        known = list(zip(moves, self._moves.lines, strict=True))
        return explain_shift(known[position:], known[since] * repeats) or shift

    def find_deviation(self) -> int | None:
        """The first of the last calls that did not come before in its place; None without one."""
        last = range(max(1, len(self.tokens) - LAST_CALLS), len(self.tokens))
        return next((index for index in last if _is_new(self.tokens, index)), None)

    def index_of(self, call: CollectiveCall) -> int | None:
        """The position of a call."""
        return next((index for index, earlier in enumerate(self.calls) if earlier is call), None)

    def has_usual_line(self, index: int) -> bool:
        """Whether such a call came from the same lines of code before."""
        places = {
            earlier.frames
            for earlier, token in zip(self.calls[:index], self.tokens, strict=False)
            if token == self.tokens[index]
        }
        return not places or self.calls[index].frames in places


#: Sends and receives between two collectives, whose order need not be the same in each step.
_TRANSFERS = Token("", Signature("sends and receives", None, None))


class _Moves(NamedTuple):
    """Collectives and the sends and receives between them; ``positions`` are the collectives among the tokens."""

    tokens: list[Token]
    lines: list[tuple[CodeFrame, ...]]
    positions: list[int]


def _to_moves(calls: Sequence[CollectiveCall]) -> _Moves:
    moves = _Moves([], [], [])
    for call in calls:
        if not call.is_p2p:
            moves.positions.append(len(moves.tokens))
            moves.tokens.append(Token(call.group, signature_of(call)))
            moves.lines.append(call.frames)
        elif not moves.tokens or moves.tokens[-1] != _TRANSFERS:
            moves.tokens.append(_TRANSFERS)
            moves.lines.append(())
    return moves


def _find_same_places(tokens: Sequence[Token], index: int) -> list[int]:
    """The earlier positions behind the longest stretch of tokens that also ends before a position."""
    for length in range(min(_LONGEST_CONTEXT, index), 0, -1):
        context = tokens[index - length : index]
        places = [end for end in range(length, index) if tokens[end - length : end] == context]
        if places:
            return places
    return []


def _is_new(tokens: Sequence[Token], index: int) -> bool:
    places = _find_same_places(tokens, index)
    return bool(places) and tokens[index] not in {tokens[end] for end in places}


_DEFAULT_GROUPS = ("0", "")


@dataclass(frozen=True, slots=True)
class MatchedCollective:
    """One collective of a group, by rank; ``missing`` did not come, where that is why it is looked at."""

    group: str
    sequence: int
    calls: Mapping[int, CollectiveCall]
    missing: tuple[int, ...] = ()

    def by_signature(self) -> dict[Signature, list[int]]:
        """The ranks of each call, the largest set first."""
        ranks: dict[Signature, list[int]] = {}
        for rank, call in sorted(self.calls.items()):
            ranks.setdefault(signature_of(call), []).append(rank)
        return dict(sorted(ranks.items(), key=lambda item: -len(item[1])))

    @property
    def not_started(self) -> tuple[int, ...]:
        """The ranks whose devices have not begun it, where those of others have."""
        states = {rank: call.is_started for rank, call in self.calls.items()}
        waiting = tuple(rank for rank, is_started in states.items() if is_started is False)
        return waiting if any(states.values()) else ()


class Matching(NamedTuple):
    """The collectives of all groups, matched; each list begins with what was called first."""

    differences: list[MatchedCollective]
    absences: list[MatchedCollective]
    unfinished: list[MatchedCollective]


def match_calls(ranks: Mapping[int, RankState], world_size: int) -> Matching:
    """Match the collectives of the ranks that left a dump."""
    matching = Matching([], [], [])
    dumped = {rank for rank, state in ranks.items() if state.dump is not None}
    for group, calls in sorted(_by_group(ranks).items()):
        members = _members(ranks, group, calls, world_size)
        begin = max(min(numbers) for numbers in calls.values())
        end = max(max(numbers) for numbers in calls.values())
        for sequence in sorted({number for numbers in calls.values() for number in numbers if number >= begin}):
            present = {rank: numbers[sequence] for rank, numbers in calls.items() if sequence in numbers}
            if len({signature_of(call) for call in present.values()}) > 1:
                matching.differences.append(MatchedCollective(group, sequence, present))
                break
            without_dump = {rank for rank in members if rank in ranks and rank not in dumped}
            is_open = sequence == end and not all(call.is_completed for call in present.values())
            absent = (rank for rank in members if rank not in present)
            missing = tuple(rank for rank in absent if rank in dumped or (is_open and rank in without_dump))
            if missing:
                matching.absences.append(MatchedCollective(group, sequence, present, missing))
                break
            if not any(call.is_completed for call in present.values()):
                matching.unfinished.append(MatchedCollective(group, sequence, present))
                break
    for found in matching:
        found.sort(key=lambda collective: min(call.created_ns for call in collective.calls.values()))
    return matching


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
