"""What must be the same on all ranks of a group in one collective, and what a rank did before in the same place."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from functools import cached_property
from math import prod
from typing import NamedTuple

from perfscope.tables.postmortem import CodeLine, CollectiveCall

#: Calls whose tensors may differ between the ranks of a group.
_UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
#: Calls that are compared with what came before them.
_LONGEST_CONTEXT = 16
_RECENT = 256
#: Fewer calls behind one that was left out do not show that.
_FEWEST_SHIFTED = 2


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
        if len(rest) >= _FEWEST_SHIFTED and list(rest) == list(actual[: len(rest)]):
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
        if position and moves[position - 1] == _TRANSFERS and self._is_new(position - 1):
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

    def _is_new(self, position: int) -> bool:
        moves = self._moves.tokens
        places = _find_same_places(moves, position)
        return bool(places) and moves[position] not in {moves[end] for end in places}

    def find_deviation(self) -> int | None:
        """The position of the last calls' first one that did not come before in its place; None without one.

        A deviation counts where the calls before it were regular: each is what came before in its place.
        """
        first = max(1, len(self.tokens) - _RECENT)
        irregular = [index for index in range(first, len(self.tokens)) if self._deviates(index)]
        last = [index for index in irregular if index >= len(self.tokens) - 4]
        return last[0] if last else None

    def _deviates(self, index: int) -> bool:
        expected = self.expected_at(index)
        return bool(expected) and self.tokens[index] not in expected

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
    """Collectives and the sends and receives between them.

    Attributes:
        tokens: What was called.
        lines: Where in the code; of sends and receives nothing.
        positions: Those of the collectives among the tokens.
    """

    tokens: list[Token]
    lines: list[tuple[CodeLine, ...]]
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
