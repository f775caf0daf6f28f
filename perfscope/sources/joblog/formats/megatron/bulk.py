"""The fast path for Megatron logs of gigabytes: reads plain iteration lines many at once, and drops unneeded lines.

Once enough records of a log are known in full, most of the rest is the same line with other numbers. The starts of
lines are found with NumPy; the first eight bytes of a line, as one integer, show what kind of line it is. Numbers at
fixed positions are read eight digits at a time: subtract ``'0'`` from each byte, then join neighbours, pairs and halves
by three multiplications. A line that differs in any other way is left to ``records``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfscope.constants import NS_PER_MS
from perfscope.sources.joblog.splitting.split_block import Numbers, PlainLines, SplitBlock, Text
from perfscope.sources.joblog.text.blocks import to_plain_text
from perfscope.sources.joblog.text.line_fields import parse_label
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
_TAIL_END = _word(_TAIL[-_WORD:])
_SKIPPED_FROM_END = len(_TAIL) - _TAIL.index(b"ns:   0 ")
_TAIL_SKIPPED = _word(b"ns:   0 ")
_AROUND_SKIPPED = np.uint64(0xFF000000FFFFFFFF)
_LOSS = b"loss: "
_HALF = np.uint64(32)
_FOUR_BLANKS, *_SAVE_WORDS = (np.uint32(int.from_bytes(text, "little")) for text in (b"    ", b"save", b"load"))
_SAVES = (_word(b"save-che"), _word(b"load-che"))


def split_block(text: Text, length: int, scratch: Bool, *, keeps_lines: bool = False) -> SplitBlock | None:
    """Split the first ``length`` bytes; see ``perfscope.sources.joblog.splitting.split_block.Splitter``.

    ``keeps_lines``: the block has the text of its plain lines, too, which costs time.
    """
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
    starts = np.empty_like(ends)
    starts[0] = 0
    np.add(ends[:-1], 1, out=starts[1:])
    words = np.ndarray(shape=(len(buffer) - _WORD + 1,), dtype="<u8", buffer=buffer, strides=(1,))
    first = _words_at(words, starts)
    labelled = np.flatnonzero(first == layout.first)
    labelled = labelled[_have_label(buffer, layout, starts[labelled])]
    candidates, begins = labelled, starts
    if layout.label:  # lines of timers have it, too
        candidates = labelled[_words_at(words, starts[labelled] + (layout.iteration - _WORD)) == _NAMED]
        begins = starts.copy()
        begins[labelled] += len(layout.label)
        first = _words_at(words, begins)
    lines, is_plain = _plain_lines(buffer, words, layout, starts[candidates], ends[candidates])
    plain = candidates[is_plain]
    is_needed = ~_are_timers(buffer, words, first, begins, ends)
    is_needed[plain] = False
    block = _with_rest(text, lines, plain, starts, ends, np.flatnonzero(is_needed))
    if keeps_lines:
        return replace(block, source=bytes(text) + b"\n", places=np.stack((starts[plain], ends[plain] + 1)))
    return block


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the fixed places of an iteration line are, counted from its beginning, and what stands there.

    The label, with all before it, is the launcher's.
    """

    first: np.uint64
    label: bytes
    iteration: int
    total: np.uint64
    consumed: int
    time: int


def _layout(text: Text, length: int) -> _Layout | None:
    """The places in the first iteration line of a block, if it is laid out as Megatron lays it out."""
    anchor = text.find(_ANCHOR, 0, length)
    if anchor < 0 or text.count(_ANCHOR, anchor, min(anchor + _CHECKED * 1000, length)) < _FEWEST:
        return None
    start = text.rfind(b"\n", 0, anchor) + 1
    line = bytes(text[start : anchor + len(_ANCHOR)])
    word, consumed = line.find(b" iteration "), line.find(_CONSUMED)
    total = line[word + 20 : word + 20 + _WORD]
    if word < 0 or consumed < 0 or line[word + 19 : word + 20] != b"/":
        return None
    digits = consumed + len(_CONSUMED)
    if line[digits + _CONSUMED_WIDTH : digits + _CONSUMED_WIDTH + 2] != b" |":
        return None
    label = parse_label(line, 0) or b""
    return _Layout(_word(line), line[: line.find(label) + len(label)], word + 11, _word(total), digits, len(line))


def _words_at(words: _Words, places: Int64) -> _Words:
    """The words at some places, of which those behind the last one have that."""
    return words[np.minimum(places, len(words) - 1)]


def _have_label(buffer: _Bytes, layout: _Layout, starts: Int64) -> Bool:
    """Which lines have the first one's label: others are of other ranks."""
    have = np.ones(len(starts), np.bool_)
    for offset in range(_WORD, len(layout.label)):
        have &= buffer[np.minimum(starts + offset, len(buffer) - 1)] == layout.label[offset]
    return have


def _plain_lines(buffer: _Bytes, words: _Words, layout: _Layout, starts: Int64, ends: Int64) -> tuple[PlainLines, Bool]:
    """The plain ones of the lines that begin like the first, and which of these they are."""
    lengths = ends - starts
    # A line that two records share is longer than another by the head of a record, which ends with its time.
    usable = (lengths > layout.time + _SHORTEST) & (lengths < lengths.min(initial=len(buffer)) + layout.time)
    if not usable.all():
        starts, ends = starts[usable], ends[usable]
    timed = words[starts + layout.time]
    dots = timed ^ _DOTS
    is_dot = (dots - _ONES) & ~dots & _TOP_BITS
    lowest = is_dot & (~is_dot + np.uint64(1))
    width = np.searchsorted(_TOP_BIT_OF_BYTE, lowest)
    digits = _shifted(timed, np.minimum(width, _WIDEST))
    is_plain = (
        (width >= 1)
        & (width <= _WIDEST)
        & (_TOP_BIT_OF_BYTE[np.minimum(width, _WIDEST)] == lowest)
        & _are_digits(digits)
        & (words[starts + (layout.iteration - _WORD)] == _NAMED)
        & (words[starts + (layout.iteration + _WORD + 1)] == layout.total)
        & (words[starts + (layout.time - _WORD)] == _TIMED)
        & (words[ends - _WORD] == _TAIL_END)
    )
    skipped = _skipped(words[ends - _SKIPPED_FROM_END])
    is_plain &= skipped >= 0
    tenth = starts + (layout.time + 1) + width
    is_plain &= (buffer[tenth + 1] == ord(" ")) & (buffer[tenth + 2] == ord("|"))
    is_plain[_rows_with_last_figures(buffer, starts, ends, is_plain)] = False
    tenths = _joined(digits[is_plain]) * 10 + (buffer[tenth[is_plain]].astype(np.int64) - ord("0"))
    starts = starts[is_plain]
    number = _joined(words[starts + layout.iteration] | _BLANK_TO_ZERO)
    high = _joined(_shifted(words[starts + layout.consumed], _CONSUMED_WIDTH - _WORD) | _BLANK_TO_ZERO)
    low = _joined(words[starts + (layout.consumed + _CONSUMED_WIDTH - _WORD)] | _BLANK_TO_ZERO)
    usable[usable] = is_plain
    consumed = high * 10**_WORD + low
    columns = {"skipped": skipped[is_plain]} if skipped.any() else {}
    wall_ns, label = tenths * (NS_PER_MS // 10), parse_label(layout.label, 0)
    return PlainLines(_as_range(number), wall_ns, _as_range(consumed), label, columns), usable


def _skipped(tails: _Words) -> Int64:
    """The skipped iterations of each line, of up to three digits; -1 where there is something else."""
    if (tails == _TAIL_SKIPPED).all():
        return np.zeros(len(tails), np.int64)
    skipped = _joined(_shifted(tails >> _HALF, 3) | _BLANK_TO_ZERO)
    is_number = ((tails ^ _TAIL_SKIPPED) & _AROUND_SKIPPED) == 0
    is_number &= _are_digits(_shifted(tails >> _HALF, 3) | _BLANK_TO_ZERO)
    return np.where(is_number, skipped, -1)


def _rows_with_last_figures(buffer: _Bytes, starts: Int64, ends: Int64, is_plain: Bool) -> list[int]:
    """The last plain line, with the block's last loss scale, and the last one with a loss: they are read in full."""
    rows = np.flatnonzero(is_plain)[::-1].tolist()
    losses = (row for row in rows if _LOSS in buffer[starts[row] : ends[row]].tobytes())
    return [*rows[:1], *islice(losses, 1)]


def _as_range(values: Int64) -> Numbers:
    """Numbers that ascend in equal steps as a range, all others as they are."""
    if len(values) <= 1:
        return values
    step = int(values[1]) - int(values[0])
    if step <= 0 or ((values[1:] - values[:-1]) != step).any():
        return values
    return range(int(values[0]), int(values[-1]) + 1, step)


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


def _are_timers(buffer: _Bytes, words: _Words, first: _Words, starts: Int64, ends: Int64) -> Bool:
    """Lines of timers, all on one or a line a timer, and the headings above them, but not the timer of a save."""
    flags: Bool = (first == _TIMERS) | (first == _PAIR_HEADING)
    begins, follows = first.astype(np.uint32), (first >> _HALF).astype(np.uint32)
    named = np.flatnonzero(first == _CORE)
    flags[named] = _words_at(words, starts[named] + 15) == _CORE_TIMERS
    together = np.flatnonzero(first == _TIMERS)
    names = _words_at(words, starts[together] + 12)
    flags[together] = (names != _SAVES[0]) & (names != _SAVES[1])
    pairs = np.flatnonzero((begins == _FOUR_BLANKS) & (follows != _SAVE_WORDS[0]) & (follows != _SAVE_WORDS[1]))
    flags[pairs] = buffer[ends[pairs] - 1] == ord(")")
    return flags


def _with_rest(text: Text, lines: PlainLines, plain: Int64, starts: Int64, ends: Int64, needed: Int64) -> SplitBlock:
    rest = [text[start:end] for start, end in zip(starts[needed].tolist(), ends[needed].tolist(), strict=True)]
    lengths = np.asarray([len(line) + 1 for line in rest], np.int64)
    rest_start = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))[: len(rest)]
    return SplitBlock(lines, b"\n".join(rest), np.searchsorted(plain, needed), rest_start)
