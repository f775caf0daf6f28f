"""The plain lines of Megatron's logs of gigabytes: NumPy reads number, samples and time of many at once.

A plain line is laid out as the first one of its block, without a label, and skips no iteration. Lines of timers are
dropped. All others, and the last plain line of a block, with its loss, are read by the rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.text import parse_label
from perfscope.tables.columns import Bool, Int64

_ANCHOR = b"elapsed time per iteration (ms): "
_TAIL = b" number of skipped iterations:   0 | number of nan iterations:   0 |"
_NONE = b"ns:   0 "
_CONSUMED = b"| consumed samples: "
_NUMBER_WIDTH, _CONSUMED_WIDTH, _WIDEST_TIME = 8, 12, 7
_WORD = 8


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text.ljust(_WORD)[:_WORD], "little"))


def _are_saves(words: npt.NDArray[np.uint64]) -> Bool:
    flags: Bool = (words == _word(b"save-che")) | (words == _word(b"load-che"))
    return flags


class PlainLines:
    """The plain lines of a block of whole lines.

    Attributes:
        iteration, consumed, wall_ns: Of each.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._buffer = np.frombuffer(text, np.uint8)
        self._words = np.ndarray((max(len(text) - _WORD + 1, 0),), "<u8", text, strides=(1,))
        self.iteration = self.consumed = self.wall_ns = np.empty(0, np.int64)
        self._plain = self._needed = np.empty(0, np.int64)
        anchor = text.find(_ANCHOR)
        start = text.rfind(b"\n", 0, anchor) + 1
        line = text[start : anchor + len(_ANCHOR)]
        iteration, consumed = line.find(b" iteration "), line.find(_CONSUMED)
        if anchor < 0 or min(iteration, consumed) < 0 or parse_label(line, 0) or not text.endswith(b"\n"):
            return
        self._ends = np.flatnonzero(self._buffer == ord("\n"))
        self._starts = np.concatenate((np.zeros(1, np.int64), self._ends[:-1] + 1))
        self._find(line, iteration, consumed)

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """All lines that are for the rules: how many plain lines stand before some, and these."""
        if not len(self._plain):
            yield 0, self._text
            return
        before = np.searchsorted(self._plain, self._needed)
        for rows in np.split(self._needed, np.flatnonzero(np.diff(before)) + 1) if len(before) else ():
            spans = zip(self._starts[rows].tolist(), (self._ends[rows] + 1).tolist(), strict=True)
            yield int(np.searchsorted(self._plain, rows[0])), b"".join(self._text[start:end] for start, end in spans)

    def _find(self, line: bytes, iteration: int, consumed: int) -> None:
        """Find the lines that are as one but for their numbers, and those that are needed besides."""
        starts, ends, time = self._starts, self._ends, len(line)
        first = self._at(starts)
        lengths = ends - starts
        rows = np.flatnonzero((first == _word(line)) & (lengths > time + _WIDEST_TIME + len(_TAIL)))
        # A line that two records share is longer than another by the head of a record.
        rows = rows[lengths[rows] < lengths[rows].min(initial=len(self._text)) + time]
        for place, text in ((iteration, b" iteration "), (consumed, _CONSUMED), (time - len(_ANCHOR), _ANCHOR)):
            rows = rows[self._at(starts[rows] + (place + len(text) - _WORD)) == _word(text[-_WORD:])]
        for place in (_TAIL.index(_NONE), len(_TAIL) - _WORD):
            rows = rows[self._at(ends[rows] - len(_TAIL) + place) == _word(_TAIL[place:])]
        times, is_time = self._times(starts[rows] + time)
        rows, times = rows[is_time], times[is_time]
        numbers = self._integers(starts[rows] + iteration + len(b" iteration "), _NUMBER_WIDTH)
        is_before_last = numbers != numbers[-1:]  # which several ranks may print
        rows, self.iteration, self.wall_ns = rows[is_before_last], numbers[is_before_last], times[is_before_last]
        self.consumed = self._integers(starts[rows] + consumed + len(_CONSUMED), _CONSUMED_WIDTH)
        is_needed = ~self._are_timers(first)
        is_needed[rows] = False
        self._plain, self._needed = rows, np.flatnonzero(is_needed)

    def _are_timers(self, first: npt.NDArray[np.uint64]) -> Bool:
        """Lines of timers, all on one or a line a timer, and the headings above them, but not the timer of a save."""
        flags: Bool = (first == _word(b"time (ms")) | (first == _word(b"(min, ma"))
        together = np.flatnonzero(flags)
        flags[together] = ~_are_saves(self._at(self._starts[together] + len(b"time (ms) | ")))
        core = np.flatnonzero(first == _word(b"INFO:meg"))
        flags[core] = self._at(self._starts[core] + 15) == _word(b"ore.time")
        pairs = np.flatnonzero((first & np.uint64(0xFFFFFFFF)) == int.from_bytes(b"    ", "little"))
        is_save = _are_saves(self._at(self._starts[pairs] + len(b"    ")))
        flags[pairs] = ~is_save & (self._buffer[self._ends[pairs] - 1] == ord(")"))
        return flags

    def _at(self, places: Int64) -> npt.NDArray[np.uint64]:
        """The eight bytes at each place."""
        return self._words[np.minimum(places, len(self._words) - 1)]

    def _integers(self, places: Int64, width: int) -> Int64:
        """Right-aligned numbers of a fixed width."""
        digits = self._buffer[places[:, np.newaxis] + np.arange(width)] & 0x0F  # a blank is 0, too
        numbers: Int64 = digits @ (10 ** np.arange(width - 1, -1, -1, dtype=np.int64))
        return numbers

    def _times(self, places: Int64) -> tuple[Int64, Bool]:
        """Times in ns of ``5837.9 |``, and which are so."""
        cells = self._buffer[places[:, np.newaxis] + np.arange(_WIDEST_TIME + 4)]
        dot = np.argmax(cells == ord("."), axis=1)
        tenths, is_time = np.zeros(len(places), np.int64), np.zeros(len(places), np.bool_)
        for width in set(dot.tolist()) - {0} & set(range(1, _WIDEST_TIME + 1)):
            rows = np.flatnonzero(dot == width)
            digits = cells[rows][:, [*range(width), width + 1]]
            ends = cells[rows][:, [width + 2, width + 3]] == (ord(" "), ord("|"))
            is_time[rows] = ((digits >= ord("0")) & (digits <= ord("9"))).all(axis=1) & ends.all(axis=1)
            tenths[rows] = (digits & 0x0F) @ (10 ** np.arange(width, -1, -1, dtype=np.int64))
        return tenths * (NS_PER_MS // 10), is_time & (tenths > 0)
