"""Which rules can match in a block of text at all, so that only their anchors are searched for.

Most lines of a log are one of a few dozen, with other numbers in them. Without their digits these are equal, and an
anchor that is in none of the different ones is nowhere in the block. Where the lines differ more, as prose does, the
sequences of four bytes of the text are marked in a table: an anchor of which one is not marked is nowhere either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from perfscope.tables.columns import Bool

_DIGITS = b"0123456789"
_SHORT_TEXT = 1 << 9  # to mark a longer one takes less time than to look for each anchor in it
_GRAM = 4
_TABLE_BITS = 18  # a table that stays in the processor's cache, and that prose does not fill
_LARGE_TABLE_BITS = 22  # for random text
_FULL = 4
_MULTIPLIER = np.uint32(2654435761)  # Knuth's, for hashing by multiplication
_HASH_BITS = 32
_BLANK_LINES = b"\n" * 8


class AnchorSearch:
    """A search for many anchors in the same block.

    Attributes:
        anchors: The anchors, without their digits.
    """

    def __init__(self, anchors: Sequence[bytes]) -> None:
        self.anchors = [anchor.translate(None, _DIGITS) for anchor in anchors]
        self._hashes = [_hashes(anchor.ljust(_GRAM, b"\0")) for anchor in self.anchors]
        self._is_short = np.asarray([len(anchor) < _GRAM for anchor in self.anchors])
        self._starts = np.cumsum([0, *map(len, self._hashes)])[:-1]

    def find(self, text: bytes) -> list[bool]:
        """For each anchor, whether the text may contain it; False is certain."""
        if _BLANK_LINES in text:  # as many as bytes, maybe
            text = text.replace(_BLANK_LINES, b"\n")
        lines = b"\n".join(set(text.translate(None, _DIGITS).split(b"\n")))
        if len(lines) <= _SHORT_TEXT or not self.anchors:
            return [anchor in lines for anchor in self.anchors]
        possible = self._mark(lines)
        return [is_possible and anchor in lines for anchor, is_possible in zip(self.anchors, possible, strict=True)]

    def _mark(self, text: bytes) -> list[bool]:
        """For each anchor, whether all its sequences of four bytes are in the text."""
        table = _table_of(text, _TABLE_BITS)
        bits = _TABLE_BITS
        if _FULL * np.count_nonzero(table) > len(table):
            table, bits = _table_of(text, _LARGE_TABLE_BITS), _LARGE_TABLE_BITS
        places = _places(np.concatenate(self._hashes), bits)
        flags: Bool = np.logical_and.reduceat(table[places], self._starts) | self._is_short
        return [bool(flag) for flag in flags]


@cache
def search_for(anchors: tuple[bytes, ...]) -> AnchorSearch:
    """The search for these anchors, which is made once."""
    return AnchorSearch(anchors)


def _table_of(text: bytes, bits: int) -> Bool:
    """A table of that many bits in which every sequence of four bytes of a text is marked."""
    table = np.zeros(1 << bits, np.bool_)
    for offset in range(_GRAM):
        table[_places(_hashes_from(text, offset), bits)] = True
    return table


def _places(hashes: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    """The places of sequences in a table of that many bits."""
    places: npt.NDArray[np.uint32] = hashes >> np.uint32(_HASH_BITS - bits)
    return places


def _hashes(text: bytes) -> npt.NDArray[np.uint32]:
    """A hash of every sequence of four bytes."""
    return np.concatenate([_hashes_from(text, offset) for offset in range(_GRAM)])


def _hashes_from(text: bytes, offset: int) -> npt.NDArray[np.uint32]:
    """A hash of every fourth sequence of four bytes, from a place on."""
    if len(text) < offset + _GRAM:
        return np.empty(0, np.uint32)
    return np.frombuffer(text, "<u4", (len(text) - offset) // _GRAM, offset) * _MULTIPLIER
