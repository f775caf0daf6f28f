"""The bytes around the opening braces of many events as rows of words, so that eight letters are compared at once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.sources.traces.layout import Layout
from perfscope.tables.columns import Bool, Int64

_WORD = 8
_SPACE = ord(" ")
#: A text at its place: the words that hold some of it, with a mask of its letters and what they are.
Pattern: TypeAlias = tuple[tuple[int, np.uint64, np.uint64], ...]


class Heads(Struct, frozen=True):
    """One row an event.

    Attributes:
        words: Its first bytes, eight a word.
        letters: The same bytes.
    """

    words: npt.NDArray[np.uint64]
    letters: npt.NDArray[np.uint8]

    def have(self, pattern: Pattern) -> Bool:
        """Which events have a text at its place."""
        matches = np.ones(len(self.words), np.bool_)
        for column, mask, expected in pattern:
            matches &= (self.words[:, column] & mask) == expected
        return matches

    def take(self, rows: Int64) -> Heads:
        """Some of them."""
        return Heads(self.words[rows], self.letters[rows])


class HeadCutter:
    """Cuts the heads of events of one layout: from the separator before an event to the first letters of its category.

    Attributes:
        between: What stands before the brace, from the closing brace before it.
        opening: The brace and the first quote.
        until_phase: From the brace to the letter of the phase.
        behind_phase: From there to the category, for the phase ``X``.
        phase: The column of the phase.
        category: The column of the category's first letter, which begins a word.
    """

    def __init__(self, layout: Layout) -> None:
        between, opening = layout.separator[: layout.until_brace], layout.separator[layout.until_brace :]
        phase, category = layout.prefix.index(b'"X"') + 1, len(layout.prefix) + len(layout.key)
        self._lead = len(between) + -(len(between) + category) % _WORD
        self._width = self._lead + category + _WORD
        self.phase, self.category = self._lead + phase, self._lead + category
        self.between = _pattern(between, self._lead - len(between))
        self.opening = _pattern(opening, self._lead)
        self.until_phase = _pattern(layout.prefix[:phase], self._lead)
        self.behind_phase = _pattern((layout.prefix + layout.key)[phase:], self.phase)

    def cut(self, text: bytes, braces: Int64) -> Heads:
        """The heads of events whose braces stand at these positions, in order; zeros beyond the text's borders."""
        begins, last = braces - self._lead, len(text) - self._width
        if last < 0:
            rows = np.zeros(len(begins), f"V{self._width}")
        else:
            windows = np.ndarray((last + 1,), f"V{self._width}", text, strides=(1,))
            rows = windows[np.clip(begins, 0, last)]
        if len(begins) and (begins[0] < 0 or begins[-1] > last):
            for row in np.flatnonzero((begins < 0) | (begins > last)).tolist():
                begin = int(begins[row])
                piece = b"\0" * -min(begin, 0) + text[max(begin, 0) : begin + self._width]
                rows[row] = np.void(piece.ljust(self._width, b"\0"))
        return Heads(
            rows.view("<u8").reshape(len(rows), self._width // _WORD),
            rows.view(np.uint8).reshape(len(rows), self._width),
        )


def _pattern(text: bytes, column: int) -> Pattern:
    """A text that begins at a column.

    Its spaces are not compared: between its other letters JSON allows only white space.
    """
    expected = b"\0" * column + text
    expected += b"\0" * (-len(expected) % _WORD)
    begin, end = column, column + len(text)
    words = []
    for start in range(0, len(expected), _WORD):
        part = expected[start : start + _WORD]
        mask = bytes(
            255 if begin <= start + index < end and letter != _SPACE else 0 for index, letter in enumerate(part)
        )
        if any(mask):
            value = int.from_bytes(bytes(letter & kept for letter, kept in zip(part, mask, strict=True)), "little")
            words.append((start // _WORD, np.uint64(int.from_bytes(mask, "little")), np.uint64(value)))
    return tuple(words)
