"""Lines that are equal but for the values of their digits: what a pattern matches in one, it matches in all of them.

A long log is the same few lines with other numbers. A pattern that takes every digit for any other one is tried on one
line of each kind. Where its groups stand in that line, they stand in the others, and NumPy reads them many at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

import numpy as np

from perfscope.tables.columns import Bool, Int64

_DIGITS_TO_ZEROS = bytes.maketrans(b"0123456789", b"0" * 10)


@dataclass(frozen=True, slots=True, eq=False)
class FoundSpans:
    """Where a pattern matches in a text.

    Attributes:
        text: The text.
        starts: Where each match begins.
        ends: Where each ends.
        kinds: The number of its kind: the matches of one have their groups at the same places.
        examples: Where a match of each kind begins.
        groups: Where each group of each kind begins and ends, counted from the beginning, -1 where it matches nothing;
            (kinds, groups, 2).
    """

    text: bytes
    starts: Int64
    ends: Int64
    kinds: Int64
    examples: Int64
    groups: Int64

    def rows(self, rows: Int64 | Bool) -> FoundSpans:
        """Some of the matches, or some of them several times."""
        return replace(self, starts=self.starts[rows], ends=self.ends[rows], kinds=self.kinds[rows])

    def forms(self, group: int) -> list[tuple[bytes, Int64, Int64]]:
        """What a group is with zeros for its digits, the rows where it is that, and where it begins in them."""
        begins, ends = (self.groups[:, group, side] + self.examples for side in (0, 1))
        zeros = [
            self.text[begin:end].translate(_DIGITS_TO_ZEROS)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        if not zeros:
            return []
        numbers: dict[bytes, int] = {}
        form_of_kind = np.asarray([numbers.setdefault(form, len(numbers)) for form in zeros], np.int64)
        places = self.starts + self.groups[self.kinds, group, 0]
        if len(numbers) == 1:
            return [(zeros[0], np.arange(len(places)), places)]
        forms = form_of_kind[self.kinds]
        order = np.argsort(forms, kind="stable")
        rows_of_forms = np.split(order, np.cumsum(np.bincount(forms, minlength=len(numbers)))[:-1])
        return [(form, rows, places[rows]) for form, rows in zip(numbers, rows_of_forms, strict=True) if len(rows)]

    def are_text(self, group: int, text: bytes) -> Bool:
        """In which rows a group is a text."""
        buffer = np.frombuffer(self.text, np.uint8)
        are_text = np.zeros(len(self.starts), np.bool_)
        for form, rows, places in self.forms(group):
            if form == text.translate(_DIGITS_TO_ZEROS):
                are_equal = [buffer[places + offset] == byte for offset, byte in enumerate(text)]
                are_text[rows] = np.logical_and.reduce(are_equal) if are_equal else True
        return are_text


def find_lines(pattern: re.Pattern[bytes], text: bytes) -> FoundSpans:
    r"""The lines of a text that a pattern matches from their beginning on, each up to behind its end.

    Args:
        pattern: It takes every digit for any other one.
        text: Whole lines.

    >>> find_lines(re.compile(rb"step (\d+)\n"), b"step 8\nstop\nstep 9\n").starts.tolist()
    [0, 12]
    """
    starts, ends, kinds, firsts = _alike_lines(text)
    matches = [pattern.match(text, start) for start in starts[firsts].tolist()]
    is_found = np.asarray([match is not None for match in matches], np.bool_)
    lines = np.flatnonzero(is_found[kinds])
    kinds = (np.cumsum(is_found) - 1)[kinds[lines]]
    groups = _groups_of(pattern, [match for match in matches if match])
    return FoundSpans(text, starts[lines], ends[lines], kinds, starts[firsts[is_found]], groups)


def find_in_lines(pattern: re.Pattern[bytes], text: bytes) -> FoundSpans:
    r"""All matches of a pattern that takes every digit for any other one, and matches within a line.

    >>> find_in_lines(re.compile(rb"(\d+)/(\d+)"), b"1/25 2/25\n3/25 4/25").starts.tolist()
    [0, 5, 10, 15]
    """
    if not text.endswith(b"\n"):
        text += b"\n"
    starts, ends, kinds, firsts = _alike_lines(text)
    matches_of_kinds = [
        list(pattern.finditer(text, start, end))
        for start, end in zip(starts[firsts].tolist(), ends[firsts].tolist(), strict=True)
    ]
    times = np.asarray([len(matches) for matches in matches_of_kinds], np.int64)
    matches = [match for of_line in matches_of_kinds for match in of_line]
    examples = np.asarray([match.start() for match in matches], np.int64)
    lines = np.repeat(np.arange(len(kinds)), times[kinds])
    of_line = np.arange(len(lines)) - np.repeat(np.cumsum(times[kinds]) - times[kinds], times[kinds])
    found_kinds = (np.cumsum(times) - times)[kinds[lines]] + of_line
    begins = starts[lines] + (examples - np.repeat(starts[firsts], times))[found_kinds]
    lengths = np.asarray([len(match[0]) for match in matches], np.int64)
    return FoundSpans(text, begins, begins + lengths[found_kinds], found_kinds, examples, _groups_of(pattern, matches))


def find_each(pattern: re.Pattern[bytes], text: bytes) -> FoundSpans:
    """The matches of any pattern that takes every digit for any other one."""
    matches = list(pattern.finditer(text))
    spans = np.asarray([match.span() for match in matches], np.int64).reshape(-1, 2)
    kinds, firsts = _number([match[0].translate(_DIGITS_TO_ZEROS) for match in matches])
    groups = _groups_of(pattern, [matches[first] for first in firsts.tolist()])
    return FoundSpans(text, spans[:, 0], spans[:, 1], kinds, spans[firsts, 0], groups)


@lru_cache(maxsize=1)  # several sweeps read the same text
def _alike_lines(text: bytes) -> tuple[Int64, Int64, Int64, Int64]:
    """Where each line begins and ends, the number of its kind, and the first line of each kind."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    kinds, firsts = _number(text.translate(_DIGITS_TO_ZEROS).split(b"\n")[:-1])
    return np.append(0, ends[:-1]), ends, kinds, firsts


def _number(texts: Sequence[bytes]) -> tuple[Int64, Int64]:
    """The number of each text among the different ones, and the first place of each of these."""
    first_of_text: dict[bytes, int] = {}
    firsts = np.fromiter(map(first_of_text.setdefault, texts, count()), np.int64, len(texts))
    different = np.fromiter(first_of_text.values(), np.int64, len(first_of_text))
    numbers = np.empty(len(texts), np.int64)
    numbers[different] = np.arange(len(different))
    return numbers[firsts], different


def _groups_of(pattern: re.Pattern[bytes], matches: Sequence[re.Match[bytes]]) -> Int64:
    """Where the groups of some matches begin and end, counted from the beginning of each; (-1, -1) for no group."""
    spans = np.asarray([match.regs for match in matches], np.int64).reshape(-1, pattern.groups + 1, 2)
    groups: Int64 = np.where(spans < 0, -1, spans - spans[:, :1, :1])[:, 1:]
    return groups
