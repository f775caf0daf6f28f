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
_TABLE_BITS = 16
_MULTIPLIER = np.uint32(2654435761)  # Knuth's, for hashing by multiplication
_SHIFT = np.uint32(32 - _TABLE_BITS)


class AnchorSearch:
    """A search for many anchors in the same block.

    Attributes:
        anchors: The anchors, without their digits.
    """

    def __init__(self, anchors: Sequence[bytes]) -> None:
        self.anchors = [anchor.translate(None, _DIGITS) for anchor in anchors]
        grams = [_grams(anchor.ljust(_GRAM, b"\0")) for anchor in self.anchors]
        self._is_short = np.asarray([len(anchor) < _GRAM for anchor in self.anchors])
        self._grams = np.concatenate(grams) if grams else np.empty(0, np.uint16)
        self._starts = np.cumsum([0, *(len(gram) for gram in grams)])[:-1]

    def find(self, text: bytes) -> list[bool]:
        """For each anchor, whether the text may contain it; False is certain."""
        lines = b"\n".join(set(text.translate(None, _DIGITS).split(b"\n")))
        if len(lines) <= _SHORT_TEXT or not self.anchors:
            return [anchor in lines for anchor in self.anchors]
        possible = self._mark(lines)
        return [is_possible and anchor in lines for anchor, is_possible in zip(self.anchors, possible, strict=True)]

    def _mark(self, text: bytes) -> list[bool]:
        """For each anchor, whether all its sequences of four bytes are in the text."""
        table = np.zeros(1 << _TABLE_BITS, np.bool_)
        for offset in range(_GRAM):
            table[_grams_from(text, offset)] = True
        flags: Bool = np.logical_and.reduceat(table[self._grams], self._starts) | self._is_short
        return [bool(flag) for flag in flags]


@cache
def search_for(anchors: tuple[bytes, ...]) -> AnchorSearch:
    """The search for these anchors, which is made once."""
    return AnchorSearch(anchors)


def _grams(text: bytes) -> npt.NDArray[np.uint16]:
    """The places in the table of every sequence of four bytes."""
    return np.concatenate([_grams_from(text, offset) for offset in range(_GRAM)])


def _grams_from(text: bytes, offset: int) -> npt.NDArray[np.uint16]:
    words = np.frombuffer(text, "<u4", (len(text) - offset) // _GRAM, offset) if len(text) >= offset + _GRAM else None
    if words is None:
        return np.empty(0, np.uint16)
    places: npt.NDArray[np.uint16] = ((words * _MULTIPLIER) >> _SHIFT).astype(np.uint16)
    return places
