"""Megatron logs of gigabytes: plain iteration lines read many at once, lines that nobody needs dropped.

Once enough records of a log are known in full, most of what follows is the same line with other numbers. A block's line
starts are found with NumPy; the first eight bytes of a line, taken as one integer, tell what it is. Numbers of fixed
places are read eight digits at a time: subtract ``'0'`` from each byte, then join neighbours, pairs and halves by three
multiplications. A line that differs in anything, even in one skipped iteration, is left to ``megatron``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from perfscope.sources.joblog.text import plain
from perfscope.tables.columns import Int64

Text: TypeAlias = bytes | bytearray
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
_ONE = np.uint64(0x0101010101010101)
_DOTS = np.uint64(ord(".")) * _ONE
_ZEROS = np.uint64(ord("0")) * _ONE
_BLANK_TO_ZERO = np.uint64(0x10) * _ONE
_TOP_BITS = np.uint64(0x80) * _ONE


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text.ljust(_WORD)[:_WORD], "little"))


_ITERATION = _word(b" iterati")
_TIMERS = _word(b"time (ms")
_CORE = _word(b"INFO:meg")
_CORE_TIMERS = _word(b"ore.time")
_PAIR_HEADING = _word(b"(min, ma")
_NAMED = _word(b"eration ")
_TIMED = _word(_ANCHOR[-_WORD:])
_PLACES = np.asarray([1 << (8 * place + 7) for place in range(_WORD)], np.uint64)
_TAIL_WORDS = len(_TAIL) // _WORD
_FOUR_BLANKS = np.uint32(int.from_bytes(b"    ", "little"))
_SAVES = (_word(b"save-che"), _word(b"load-che"))


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """Iteration lines of one block that hold nothing but the usual.

    Attributes:
        start: Where each begins.
        iteration: Its number.
        wall_ns: Its time.
        consumed: Samples consumed up to its end.
    """

    start: Int64
    iteration: Int64
    wall_ns: Int64
    consumed: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A block taken apart.

    Attributes:
        plain: Its plain iteration lines.
        rest: All lines that need a closer look.
        origin: For each line of ``rest``, where it began in the block.
        rest_start: For each line of ``rest``, where it begins in ``rest``.
    """

    plain: Plain
    rest: bytes
    origin: Int64
    rest_start: Int64


def split(text: bytes) -> Split | None:
    """Take a block, not yet cleaned, apart; None where it is not worth it."""
    return split_in_place(text, len(text), np.empty(len(text), np.bool_))


def split_in_place(text: Text, length: int, scratch: npt.NDArray[np.bool_]) -> Split | None:
    """Take the first ``length`` bytes apart; ``scratch`` is as long or longer, so that nothing large is allocated."""
    layout = _layout(text, length)
    if layout is None:
        return None
    buffer = np.frombuffer(text, np.uint8, length)
    ends = np.flatnonzero(np.less(buffer, ord(" "), out=scratch[:length]))
    if (buffer[ends] != ord("\n")).any():
        text = plain(bytes(text[:length])).replace(b"\t", b" ")
        buffer = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(buffer == ord("\n"))
    if not len(ends) or ends[-1] != len(buffer) - 1:
        ends = np.append(ends, len(buffer))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    words = np.ndarray(shape=(len(buffer) - _WORD + 1,), dtype="<u8", buffer=buffer, strides=(1,))
    first = words[np.minimum(starts, len(words) - 1)]
    keep = first != _TIMERS
    lines = np.flatnonzero(first == _TIMERS)
    keep[lines] = _names_save(words, starts[lines] + 12)
    candidate = np.flatnonzero((first == layout.first) & (ends - starts > layout.time + _SHORTEST))
    usual, is_usual = _plain(buffer, layout, starts[candidate], ends[candidate])
    keep[candidate[is_usual]] = False
    kept = np.flatnonzero(keep)
    kept = kept[~_is_core_timers(buffer, words, first[kept], starts[kept], ends[kept])]
    return _rest(text, usual, starts, ends, kept)


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


def _plain(
    buffer: npt.NDArray[np.uint8], layout: _Layout, starts: Int64, ends: Int64
) -> tuple[Plain, npt.NDArray[np.bool_]]:
    head = _cut(buffer, starts, layout.width).view(layout.fields)
    lengths = ends - starts
    usable = lengths < _GLUED * lengths.min(initial=len(buffer))
    usable &= (head["named"] == _NAMED) & (head["timed"] == _TIMED) & _ends_plainly(buffer, ends)
    dots = head["time"] ^ _DOTS
    found = (dots - _ONE) & ~dots & _TOP_BITS
    lowest = found & (~found + np.uint64(1))
    width = np.searchsorted(_PLACES, lowest)
    digits = _shifted(head["time"], np.minimum(width, _WIDEST))
    usable &= (width >= 1) & (width <= _WIDEST) & (_PLACES[np.minimum(width, _WIDEST)] == lowest) & _are_digits(digits)
    time = starts + layout.time + width
    usable &= (buffer[time + 2] == ord(" ")) & (buffer[time + 3] == ord("|"))
    if usable.any():
        usable[np.flatnonzero(usable)[-1]] = False  # read in full: its loss and loss scale are the block's last
    starts, head = starts[usable], head[usable]
    tenths = _joined(digits[usable]) * 10 + (buffer[time[usable] + 1].astype(np.int64) - ord("0"))
    number = _joined(head["iteration"] | _BLANK_TO_ZERO)
    high = _joined(_shifted(head["high"], _CONSUMED_WIDTH - _WORD) | _BLANK_TO_ZERO)
    consumed = high * 10**_WORD + _joined(head["low"] | _BLANK_TO_ZERO)
    return Plain(starts, number, tenths * 10**5, consumed), usable


def _cut(buffer: npt.NDArray[np.uint8], starts: Int64, width: int) -> npt.NDArray[np.void]:
    """The ``width`` bytes at each place."""
    places = np.ndarray(shape=(len(buffer) - width + 1,), dtype=f"V{width}", buffer=buffer, strides=(1,))
    return places[starts]


def _ends_plainly(buffer: npt.NDArray[np.uint8], ends: Int64) -> npt.NDArray[np.bool_]:
    tails = _cut(buffer, ends - len(_TAIL), _TAIL_WORDS * _WORD).view("<u8").reshape(-1, _TAIL_WORDS)
    same = np.ones(len(ends), np.bool_)
    for place, word in enumerate(np.frombuffer(_TAIL, "<u8", _TAIL_WORDS)):
        same &= tails[:, place] == word
    return same


def _shifted(digits: _Words, width: npt.NDArray[Any] | int) -> _Words:
    """The first ``width`` digits of each word, zeros in front."""
    used = np.uint64(8) * np.maximum(width, 1).astype(np.uint64)
    words: _Words = (digits << (np.uint64(64) - used)) | (_ZEROS >> used)
    return words


def _are_digits(text: _Words) -> npt.NDArray[np.bool_]:
    above = text + np.uint64(0x46) * _ONE
    below = text - _ZEROS
    plain_digits: npt.NDArray[np.bool_] = ((above | below) & _TOP_BITS) == 0
    return plain_digits


def _joined(digits: _Words) -> Int64:
    """Eight ASCII digits, the first in the lowest byte, as a number."""
    value = digits - _ZEROS
    value = (value * np.uint64(10) + (value >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    value = (value * np.uint64(100) + (value >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    value = (value * np.uint64(10000) + (value >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return value.astype(np.int64)


def _is_core_timers(
    buffer: npt.NDArray[np.uint8], words: _Words, first: _Words, starts: Int64, ends: Int64
) -> npt.NDArray[np.bool_]:
    """A line a timer, and the headings above them, but not the timer of a save."""
    flags: npt.NDArray[np.bool_] = first == _PAIR_HEADING
    pairs = np.flatnonzero(first.astype(np.uint32) == _FOUR_BLANKS)
    pairs = pairs[buffer[ends[pairs] - 1] == ord(")")]
    flags[pairs] = ~_names_save(words, starts[pairs] + 4)
    named = np.flatnonzero(first == _CORE)
    flags[named] = words[np.minimum(starts[named] + 15, len(words) - 1)] == _CORE_TIMERS
    return flags


def _names_save(words: _Words, places: Int64) -> npt.NDArray[np.bool_]:
    names = words[np.minimum(places, len(words) - 1)]
    saves: npt.NDArray[np.bool_] = (names == _SAVES[0]) | (names == _SAVES[1])
    return saves


def _rest(text: Text, usual: Plain, starts: Int64, ends: Int64, kept: Int64) -> Split:
    lines = [text[start:end] for start, end in zip(starts[kept].tolist(), ends[kept].tolist(), strict=True)]
    lengths = np.asarray([len(line) + 1 for line in lines], np.int64)
    rest_start = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))[: len(lines)]
    return Split(usual, b"\n".join(lines), starts[kept], rest_start)
