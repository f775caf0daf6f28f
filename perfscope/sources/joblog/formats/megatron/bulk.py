"""The fast path for Megatron logs of gigabytes: reads plain iteration lines many at once, and drops unneeded lines.

Once enough records of a log are known in full, most of the rest is the same line with other numbers. The starts of
lines are found with NumPy; the first eight bytes of a line, as one integer, show what kind of line it is. Numbers at
fixed positions are read eight digits at a time: subtract ``'0'`` from each byte, then join neighbours, pairs and halves
by three multiplications. A line that differs in any other way, such as one skipped iteration, is left to ``records``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.bulk import PlainLines, SplitBlock, Text
from perfscope.sources.joblog.text import to_plain_text
from perfscope.tables.columns import Bool, Int64

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = npt.NDArray[np.uint64]

_WORD = 8
_ANCHOR = b"elapsed time per iteration (ms): "
_CONSUMED = b"| consumed samples: "
_TAIL = b"| number of skipped iterations:   0 | number of nan iterations:   0 |"
_CHECKED = 30
_FEWEST = 16
_WIDEST = 7
_GLUED = 1.5
_CONSUMED_WIDTH = 12
_SHORTEST = len(_ANCHOR) + len(_TAIL)
_ONES = np.uint64(0x0101010101010101)
_DOTS = np.uint64(ord(".")) * _ONES
_ZEROS = np.uint64(ord("0")) * _ONES
_BLANK_TO_ZERO = np.uint64(0x10) * _ONES
_TOP_BITS = np.uint64(0x80) * _ONES


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text.ljust(_WORD)[:_WORD], "little"))


_TIMERS = _word(b"time (ms")
_CORE = _word(b"INFO:meg")
_CORE_TIMERS = _word(b"ore.time")
_PAIR_HEADING = _word(b"(min, ma")
_NAMED = _word(b"eration ")
_TIMED = _word(_ANCHOR[-_WORD:])
_TOP_BIT_OF_BYTE = np.asarray([1 << (8 * byte + 7) for byte in range(_WORD)], np.uint64)
_TAIL_WORDS = len(_TAIL) // _WORD
_FOUR_BLANKS = np.uint32(int.from_bytes(b"    ", "little"))
_SAVES = (_word(b"save-che"), _word(b"load-che"))


def split_block(text: Text, length: int, scratch: Bool) -> SplitBlock | None:
    """Split the first ``length`` bytes; see ``perfscope.sources.joblog.bulk.Splitter``."""
    layout = _layout(text, length)
    if layout is None:
        return None
    buffer = np.frombuffer(text, np.uint8, length)
    ends = np.flatnonzero(np.less(buffer, ord(" "), out=scratch[:length]))
    if (buffer[ends] != ord("\n")).any():
        text = to_plain_text(bytes(text[:length])).replace(b"\t", b" ")
        buffer = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(buffer == ord("\n"))
    if not len(ends) or ends[-1] != len(buffer) - 1:
        ends = np.append(ends, len(buffer))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    words = np.ndarray(shape=(len(buffer) - _WORD + 1,), dtype="<u8", buffer=buffer, strides=(1,))
    first = words[np.minimum(starts, len(words) - 1)]
    is_needed = first != _TIMERS
    timers = np.flatnonzero(first == _TIMERS)
    is_needed[timers] = _names_save(words, starts[timers] + 12)
    candidates = np.flatnonzero((first == layout.first) & (ends - starts > layout.time + _SHORTEST))
    lines, is_plain = _plain_lines(buffer, layout, starts[candidates], ends[candidates])
    is_needed[candidates[is_plain]] = False
    needed = np.flatnonzero(is_needed)
    needed = needed[~_is_core_timers(buffer, words, first[needed], starts[needed], ends[needed])]
    return _with_rest(text, lines, starts, ends, needed)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the fixed places of an iteration line are, counted from its beginning."""

    first: np.uint64
    iteration: int
    consumed: int
    time: int

    @property
    def width(self) -> int:
        """Bytes from the beginning of a line to the end of the last fixed place."""
        return self.time + _WORD

    @property
    def fields(self) -> np.dtype[np.void]:
        """The fixed places as fields of eight bytes."""
        offsets = {
            "named": self.iteration - _WORD,
            "iteration": self.iteration,
            "high": self.consumed,
            "low": self.consumed + _CONSUMED_WIDTH - _WORD,
            "timed": self.time - _WORD,
            "time": self.time,
        }
        names = list(offsets)
        places = {"names": names, "formats": ["<u8"] * len(names), "offsets": list(offsets.values())}
        return np.dtype({**places, "itemsize": self.width})  # type: ignore[call-overload,no-any-return]


def _layout(text: Text, length: int) -> _Layout | None:
    """The places in the first iteration line of a block, if it is laid out as Megatron lays it out."""
    anchor = text.find(_ANCHOR, 0, length)
    if anchor < 0 or text.count(_ANCHOR, anchor, min(anchor + _CHECKED * 1000, length)) < _FEWEST:
        return None
    start = text.rfind(b"\n", 0, anchor) + 1
    line = bytes(text[start : anchor + len(_ANCHOR)])
    word, consumed = line.find(b" iteration "), line.find(_CONSUMED)
    if word < 0 or consumed < 0 or line[word + 19 : word + 20] != b"/":
        return None
    digits = consumed + len(_CONSUMED)
    if line[digits + _CONSUMED_WIDTH : digits + _CONSUMED_WIDTH + 2] != b" |":
        return None
    return _Layout(_word(line), word + 11, digits, len(line))


def _plain_lines(buffer: _Bytes, layout: _Layout, starts: Int64, ends: Int64) -> tuple[PlainLines, Bool]:
    head = _cut(buffer, starts, layout.width).view(layout.fields)
    lengths = ends - starts
    usable = lengths < _GLUED * lengths.min(initial=len(buffer))
    usable &= (head["named"] == _NAMED) & (head["timed"] == _TIMED) & _ends_plainly(buffer, ends)
    dots = head["time"] ^ _DOTS
    is_dot = (dots - _ONES) & ~dots & _TOP_BITS
    lowest = is_dot & (~is_dot + np.uint64(1))
    width = np.searchsorted(_TOP_BIT_OF_BYTE, lowest)
    digits = _shifted(head["time"], np.minimum(width, _WIDEST))
    usable &= (
        (width >= 1)
        & (width <= _WIDEST)
        & (_TOP_BIT_OF_BYTE[np.minimum(width, _WIDEST)] == lowest)
        & _are_digits(digits)
    )
    time = starts + layout.time + width
    usable &= (buffer[time + 2] == ord(" ")) & (buffer[time + 3] == ord("|"))
    if usable.any():
        usable[np.flatnonzero(usable)[-1]] = False  # read in full: its loss and loss scale are the block's last
    starts, head = starts[usable], head[usable]
    tenths = _joined(digits[usable]) * 10 + (buffer[time[usable] + 1].astype(np.int64) - ord("0"))
    number = _joined(head["iteration"] | _BLANK_TO_ZERO)
    high = _joined(_shifted(head["high"], _CONSUMED_WIDTH - _WORD) | _BLANK_TO_ZERO)
    consumed = high * 10**_WORD + _joined(head["low"] | _BLANK_TO_ZERO)
    return PlainLines(starts, number, tenths * (NS_PER_MS // 10), consumed), usable


def _cut(buffer: _Bytes, starts: Int64, width: int) -> npt.NDArray[np.void]:
    """The ``width`` bytes at each place."""
    places = np.ndarray(shape=(len(buffer) - width + 1,), dtype=f"V{width}", buffer=buffer, strides=(1,))
    return places[starts]


def _ends_plainly(buffer: _Bytes, ends: Int64) -> Bool:
    tails = _cut(buffer, ends - len(_TAIL), _TAIL_WORDS * _WORD).view("<u8").reshape(-1, _TAIL_WORDS)
    same = np.ones(len(ends), np.bool_)
    for index, word in enumerate(np.frombuffer(_TAIL, "<u8", _TAIL_WORDS)):
        same &= tails[:, index] == word
    return same


def _shifted(digits: _Words, width: Int64 | int) -> _Words:
    """The first ``width`` digits of each word, zeros in front."""
    used = np.uint64(8) * np.maximum(width, 1).astype(np.uint64)
    words: _Words = (digits << (np.uint64(64) - used)) | (_ZEROS >> used)
    return words


def _are_digits(text: _Words) -> Bool:
    above = text + np.uint64(0x46) * _ONES
    below = text - _ZEROS
    plain_digits: Bool = ((above | below) & _TOP_BITS) == 0
    return plain_digits


def _joined(digits: _Words) -> Int64:
    """Eight ASCII digits, the first in the lowest byte, as a number."""
    value = digits - _ZEROS
    value = (value * np.uint64(10) + (value >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    value = (value * np.uint64(100) + (value >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    value = (value * np.uint64(10000) + (value >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return value.astype(np.int64)


def _is_core_timers(buffer: _Bytes, words: _Words, first: _Words, starts: Int64, ends: Int64) -> Bool:
    """A line a timer, and the headings above them, but not the timer of a save."""
    flags: Bool = first == _PAIR_HEADING
    pairs = np.flatnonzero(first.astype(np.uint32) == _FOUR_BLANKS)
    pairs = pairs[buffer[ends[pairs] - 1] == ord(")")]
    flags[pairs] = ~_names_save(words, starts[pairs] + 4)
    named = np.flatnonzero(first == _CORE)
    flags[named] = words[np.minimum(starts[named] + 15, len(words) - 1)] == _CORE_TIMERS
    return flags


def _names_save(words: _Words, places: Int64) -> Bool:
    names = words[np.minimum(places, len(words) - 1)]
    saves: Bool = (names == _SAVES[0]) | (names == _SAVES[1])
    return saves


def _with_rest(text: Text, plain_lines: PlainLines, starts: Int64, ends: Int64, needed: Int64) -> SplitBlock:
    lines = [text[start:end] for start, end in zip(starts[needed].tolist(), ends[needed].tolist(), strict=True)]
    lengths = np.asarray([len(line) + 1 for line in lines], np.int64)
    rest_start = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))[: len(lines)]
    return SplitBlock(plain_lines, b"\n".join(lines), starts[needed], rest_start)
