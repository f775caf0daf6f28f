"""Regular expressions for the events of one pickle, learnt from events that were replayed opcode by opcode.

Pickled by the same loop, events of one kind differ only in their numbers and in the frames that they refer to: a
pattern is the keys of the first event, byte by byte, and for each value an opcode with its argument.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from perfscope.sources.memory.event_rows import NO_STACK, EventRows, find_letter
from perfscope.tables.columns import Int64

#: Kinds of events of a snapshot: with a stack and without, and lists of frames that are new or known.
_MOST_KINDS = 24
#: Numbers that are read together.
_MOST_TOKENS = 300_000
_REFERENCE = rb"(?>h.|j.{4})"
_NUMBER = rb"(?>\x8a(?>\x06.{6}|\x07.{7}|\x05.{5}|\x08.{8})|K.|M..|J.{4})"
_FRAMES = rb"\]\x94(?>\((?>h.|j.{4})*+e|(?>h.|j.{4})a)?+"
_SHORT_TEXT = rb"\x8c."
_HEAD = rb"\}\x94\("
_TOKEN = re.compile(
    rb"(?P<reference>%s)|(?P<number>%s)|(?P<constant>[N\x88\x89])|(?P<frames>%s)|(?P<text>%s)"
    % (_REFERENCE, _NUMBER, _FRAMES, _SHORT_TEXT),
    re.DOTALL,
)
_PAIR = re.compile(rb"(?P<first>%s)(?P<second>%s)\x86\x94" % (_NUMBER, _NUMBER), re.DOTALL)
_REFERENCES = re.compile(_REFERENCE, re.DOTALL)
_SOUGHT = ("action", "addr", "size", "time_us", "frames")


class _Kind(NamedTuple):
    """One kind of events.

    Attributes:
        pattern: The regular expression of such an event, with one group for each value that is sought.
        names: What the groups hold.
        memoized: How many values such an event adds to the memo.
        frames_at: The number of such values before its list of frames; None where that is no new list.
    """

    pattern: bytes
    names: tuple[str, ...]
    memoized: int
    frames_at: int | None


class _NumberedKind(NamedTuple):
    """A kind within the expression of all kinds.

    Attributes:
        groups: The numbers of the groups with action, address, size, time and frames.
        memoized: What such an event adds to the memo: nothing that is referred to, but its list of frames.
        frames_at: See ``_Kind``.
    """

    groups: tuple[int, ...]
    memoized: tuple[None, ...]
    frames_at: int | None


class EventPatterns:
    """Reads runs of events of known kinds."""

    def __init__(self, content: bytes, memo: list[object], rows: EventRows) -> None:
        self._content = content
        self._memo = memo
        self._rows = rows
        self._kinds: list[_Kind] = []
        self._pattern: re.Pattern[bytes] | None = None
        self._kinds_by_group: dict[int, _NumberedKind] = {}
        self._lists: dict[bytes, tuple[list[object], int]] = {}
        self._letters: dict[bytes, int] = {}

    def learn(self, begin: int, end: int) -> None:
        """Learn the kind of an event that stands between two positions, where it is as simple as most."""
        kind = self._describe(begin, end)
        if kind is None or len(self._kinds) >= _MOST_KINDS or kind in self._kinds:
            return
        self._kinds.append(kind)
        self._kinds_by_group, first = {}, 1
        for kind in self._kinds:
            # an empty group stands last: its number names the kind, and it is what a kind without a value has
            last = first + len(kind.names)
            places = {name: first + index for index, name in enumerate(kind.names)}
            groups = tuple(places.get(name, last) for name in _SOUGHT)
            self._kinds_by_group[last] = _NumberedKind(groups, (None,) * kind.memoized, kind.frames_at)
            first = last + 1
        self._pattern = re.compile(b"|".join(each.pattern + rb"()" for each in self._kinds), re.DOTALL)

    def read_events(self, position: int, stack: list[object]) -> int:
        """Read events from a position on, and push their rows; returns where the first one of another kind begins."""
        if self._pattern is None:
            return position
        scan = self._pattern.scanner(self._content, position).match  # type: ignore[attr-defined]
        kinds, memo, letters, lists = self._kinds_by_group, self._memo, self._letters, self._lists
        begin, rows = len(self._rows.actions), self._rows
        add_action, add_stack, tokens = rows.actions.append, rows.stacks.append, list[bytes]()
        match = None
        while (next_match := scan()) is not None:
            match = next_match
            kind = kinds[match.lastindex]
            action, address, size, time_us, frames = match.group(*kind.groups)
            letter = letters.get(action)
            add_action(self._find_letter(action) if letter is None else letter)
            tokens += (address, size, time_us)
            first_key = len(memo)
            memo += kind.memoized
            at = kind.frames_at
            entry = lists.get(frames) if at is not None else None
            if entry is not None and at is not None:  # written out here, because most events have a list like others
                memo[first_key + at] = entry[0]
                add_stack(entry[1])
            else:
                add_stack(self._find_stack(frames, kind, first_key) if frames else NO_STACK)
            if len(tokens) >= _MOST_TOKENS:
                rows.add_numbers(read_numbers(tokens))
                tokens.clear()
        if match is None:
            return position
        rows.add_numbers(read_numbers(tokens))
        stack += range(begin, len(rows.actions))
        return int(match.end())

    def _find_letter(self, reference: bytes) -> int:
        """The letter of an action that an event refers to."""
        letter = self._letters[reference] = find_letter(self._memo[_to_number(reference[1:])])
        return letter

    def _find_stack(self, frames: bytes, kind: _NumberedKind, first_key: int) -> int:
        if kind.frames_at is None:
            return self._rows.find_stack(self._memo[_to_number(frames[1:])])
        stack = self._lists.get(frames)
        if stack is None:
            references = [self._memo[_to_number(token[1:])] for token in _REFERENCES.findall(frames, 2)]
            stack = self._lists[frames] = references, self._rows.find_stack(references)
        self._memo[first_key + kind.frames_at] = stack[0]
        return stack[1]

    def _describe(self, begin: int, end: int) -> _Kind | None:
        content = self._content
        head = re.compile(_HEAD, re.DOTALL).match(content, begin)
        if head is None:
            return None
        position, pattern, names, memoized, frames_at = head.end(), _HEAD, list[str](), 1, None
        while content[position] != ord("u"):
            key = _REFERENCES.match(content, position)
            if key is None:
                return None
            name = self._memo[_to_number(key[0][1:])]
            value = _describe_value(content, key.end())
            if value is None or not isinstance(name, str):
                return None
            expression, value_end, adds = value
            if name in _SOUGHT:
                if name in ("action", "addr", "size", "time_us") and adds:
                    return None
                names.append(name)
                expression = b"(" + expression + b")"
                if name == "frames" and adds:
                    frames_at = memoized
            pattern += re.escape(key[0]) + expression
            memoized += adds
            position = value_end
        if position + 1 != end or not {"action", "addr", "size"} <= set(names):
            return None
        return _Kind(pattern + b"u", tuple(names), memoized, frames_at)


def _describe_value(content: bytes, position: int) -> tuple[bytes, int, int] | None:
    """The expression of a value such as this one, where it ends, and how many values it adds to the memo."""
    pair = _PAIR.match(content, position)
    if pair is not None:
        return _NUMBER + _NUMBER + rb"\x86\x94", pair.end(), 1
    token = _TOKEN.match(content, position)
    if token is None or token.lastgroup is None:
        return None
    if token.lastgroup != "text":
        expression, adds = _EXPRESSIONS[token.lastgroup]
        return expression, token.end(), adds
    length = content[token.end() - 1]
    end = token.end() + length + 1
    is_memoized = content[end - 1 : end] == b"\x94"
    return (re.escape(token[0]) + b".{%d}" % length + rb"\x94", end, 1) if is_memoized else None


#: The expression of each simple value, and how many values it adds to the memo.
_EXPRESSIONS = {
    "reference": (_REFERENCE, 0),
    "number": (_NUMBER, 0),
    "constant": (rb"[N\x88\x89]", 0),
    "frames": (_FRAMES, 1),
}


def _to_number(little_endian: bytes) -> int:
    return int.from_bytes(little_endian, "little")


def read_numbers(tokens: Sequence[bytes]) -> Int64:
    r"""The numbers of opcodes with their arguments, three an event; 0 for none.

    Raises:
        ValueError: A number is negative.

    >>> read_numbers([b"K\x07", b"\x8a\x05\0\0\0\0\x01", b""]).tolist()
    [[7, 4294967296, 0]]
    """
    padded = np.array(tokens, f"S{_LONGEST_NUMBER}").view(np.uint8).reshape(-1, _LONGEST_NUMBER)
    codes = padded[:, 0]
    is_long, is_signed = codes == _LONG, (codes == _LONG) | (codes == _INT32)
    last = np.where(is_long, padded[:, 1] + 1, _LAST_OF_INT32)
    top = np.take_along_axis(padded, last[:, None], axis=1)[:, 0]
    if (top[is_signed] > _MOST_OF_TOP).any():
        raise ValueError("a negative number")
    long, short = (np.ascontiguousarray(padded[:, begin : begin + 8]).view("<i8")[:, 0] for begin in (2, 1))
    return np.where(is_long, long, short).reshape(-1, 3)


_LONG, _INT32 = 0x8A, ord("J")
_LAST_OF_INT32 = 4
#: An opcode, a length and eight bytes.
_LONGEST_NUMBER = 10
#: The highest byte of a number that is not negative.
_MOST_OF_TOP = 0x7F
