"""Lines that are equal but for the values of their digits: what a pattern matches in one, it matches in all of them.

A long log is the same few lines with other numbers. A pattern that takes every digit for any other one is tried on one
line of each kind. Where its groups stand in that line, they stand in the others, and NumPy reads them many at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        groups: Where each group of each kind begins and ends, counted from the beginning; (kinds, groups, 2).
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
                are_equal = [buffer[places + place] == byte for place, byte in enumerate(text)]
                are_text[rows] = np.logical_and.reduce(are_equal) if are_equal else True
        return are_text


def find_lines(pattern: re.Pattern[bytes], text: bytes) -> FoundSpans:
    r"""The lines of a text that a pattern matches from their beginning to behind their end.

    Args:
        pattern: It matches a line with its end, and takes every digit for any other one.
        text: Whole lines.

    >>> find_lines(re.compile(rb"step (\d+)\n"), b"step 8\nstop\nstep 9\n").starts.tolist()
    [0, 12]
    """
    alike = text.translate(_DIGITS_TO_ZEROS).split(b"\n")[:-1]
    first_of_alike: dict[bytes, int] = {}
    firsts = np.fromiter(map(first_of_alike.setdefault, alike, count()), np.int64, len(alike))
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    starts = np.append(0, ends[:-1])
    different = np.fromiter(first_of_alike.values(), np.int64, len(first_of_alike))
    matches = [pattern.match(text, start) for start in starts[different].tolist()]
    is_found = np.asarray([match is not None for match in matches], np.bool_)
    kind_of_first = np.full(len(firsts), -1)
    kind_of_first[different[is_found]] = np.arange(is_found.sum())
    kinds = kind_of_first[firsts]
    lines = np.flatnonzero(kinds >= 0)
    groups = _groups_of(pattern, [match for match in matches if match])
    return FoundSpans(text, starts[lines], ends[lines], kinds[lines], starts[different[is_found]], groups)


def find_each(pattern: re.Pattern[bytes], text: bytes) -> FoundSpans:
    """The matches of any pattern, each a kind of its own."""
    matches = list(pattern.finditer(text))
    spans = np.asarray([match.span() for match in matches], np.int64).reshape(-1, 2)
    groups = _groups_of(pattern, matches)
    return FoundSpans(text, spans[:, 0], spans[:, 1], np.arange(len(matches)), spans[:, 0], groups)


def _groups_of(pattern: re.Pattern[bytes], matches: Sequence[re.Match[bytes]]) -> Int64:
    """Where the groups of some matches begin and end, counted from the beginning of each match."""
    spans = np.asarray([match.regs for match in matches], np.int64).reshape(-1, pattern.groups + 1, 2)
    groups: Int64 = spans[:, 1:] - spans[:, :1, :1]
    return groups
