"""Finds when each thread was inside an operator, without decoding the operators.

Most events of a trace are operators, and an analysis of idle time needs only the moments that they cover. Exporters
write an operator's thread and times before its arguments. These bytes are collected, and the digits of many operators
are converted at once, eight of them as one word. Operators that are written otherwise are decoded one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope.constants import NS_PER_US
from perfscope.sources.traces.records import HostEvent
from perfscope.sources.traces.salvage import FAILURES
from perfscope.tables.activity import ThreadSpans, join_spans
from perfscope.tables.columns import Bool, Int64

_Letters: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = npt.NDArray[np.uint64]
_Column: TypeAlias = "Sequence[int] | Int64"

#: How much before an operator's arguments is collected; its thread and times take less.
_WIDTH = 96
_ROWS_PER_BATCH = 1 << 14  # with their intermediate results they stay in the processor's cache
_WORD = 8
_DECIMALS = 4  # with their point
_LOW_PLACES = 5  # the digits before the point that are converted together with the three behind it
_TIMES = re.compile(
    rb'"tid":\s*(?P<thread>\d{1,7})(?P<to_start>\s*,\s*"ts":\s*)(?P<start>\d+\.\d{3})'
    rb'(?P<to_duration>\s*,\s*"dur":\s*)(?P<duration>\d+\.\d{3})(?P<behind>\s*,\s*"args":\s*\{)\Z'
)
_DOT, _QUOTE = ord("."), ord('"')
#: The same byte in every letter of a word.
_ZEROS, _SIXES, _HIGH_HALVES, _LOW_HALVES = (np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x06, 0xF0, 0x0F))


class OperatorTimes:
    """Collects the moments in which threads are inside operators, text by text.

    Attributes:
        lost: How many operators could not be read.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._model: re.Match[bytes] | None = None
        self._slices: list[npt.NDArray[np.void]] = []
        self._rows = 0
        self._spans: list[ThreadSpans] = []
        self._decode = msgspec.json.Decoder(HostEvent, strict=False).decode
        self._threads: dict[int, int] = {}

    def scan(self, text: bytes, starts: Int64, arguments: Int64, stops: Int64) -> None:
        """Scan operators: the positions of their opening braces, of those of their arguments, and of their ends."""
        if not len(starts):
            return
        if self._model is None:
            self._model = _TIMES.search(text[int(starts[0]) : int(arguments[0]) + 1])
        if self._model is None:
            self._add_events(text, starts, stops)
            return
        letters = np.frombuffer(text, np.uint8)
        to_key = len(self._model["behind"]) - self._model["behind"].rindex(b'"') - 1
        # The brace behind the key of the arguments, and not one in a name.
        fits = (arguments < stops) & (arguments >= _WIDTH) & (letters.take(arguments - to_key, mode="clip") == _QUOTE)
        if not fits.all():
            self._add_events(text, starts[~fits], stops[~fits])
            arguments = arguments[fits]
        if len(arguments):
            windows = np.ndarray((len(text) - _WIDTH + 1,), f"V{_WIDTH}", text, strides=(1,))
            self._slices.append(windows[arguments + 1 - _WIDTH])
            self._rows += len(arguments)
            if self._rows >= _ROWS_PER_BATCH:
                self._convert_collected(self._model)

    def collected(self) -> ThreadSpans:
        """The moments of all of them so far."""
        if self._model is not None:
            self._convert_collected(self._model)
        return join_spans(self._spans)

    def _add_events(self, text: bytes, starts: Int64, stops: Int64) -> None:
        """Add operators whose layout differs from the first one's, parsed one by one."""
        times = [self._times_of(text[start:stop]) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        rows = [row for row in times if row is not None]
        self.lost += len(times) - len(rows)
        if rows:
            self._add(*zip(*rows, strict=True))

    def _times_of(self, text: bytes) -> tuple[int, int, int] | None:
        """Start, duration and thread of an event; None where it lacks one of them."""
        try:
            event = self._decode(text)
        except FAILURES:
            return None
        if event.ts is None or event.dur is None or not isinstance(event.tid, int):
            return None
        return _to_ns(event.ts), _to_ns(event.dur), event.tid

    def _add_slices(self, texts: Sequence[bytes]) -> None:
        """Add operators whose times have other lengths than the first one's, such as those behind the trace's zero."""
        matches = [match for text in texts if (match := _TIMES.search(text))]
        self.lost += len(texts) - len(matches)
        if matches:
            start_ns, duration_ns = (
                [int(match[name].replace(b".", b"")) for match in matches] for name in ("start", "duration")
            )
            self._add(start_ns, duration_ns, [int(match["thread"]) for match in matches])

    def _add(self, start_ns: _Column, duration_ns: _Column, thread: _Column) -> None:
        start, duration, of = (np.asarray(column, np.int64) for column in (start_ns, duration_ns, thread))
        self._spans.append(join_spans([ThreadSpans(start, start + duration, of)]))

    def _convert_collected(self, model: re.Match[bytes]) -> None:
        """Convert the times of the collected operators."""
        if not self._slices:
            return
        rows = np.concatenate(self._slices)
        self._slices, self._rows = [], 0
        letters = rows.view(np.uint8).reshape(len(rows), _WIDTH)
        end = _WIDTH - len(model["behind"])
        whole = _word(letters, end - _WORD - _DECIMALS)
        places = _trailing_digits(whole)
        unused = ((_WORD - places) * 8).astype(np.uint64)
        duration = _number(_joined(whole >> unused << unused, _word(letters, end - _WORD)))
        # What stands before the duration, in the same columns of all rows.
        to_start, high = _WORD + len(model["to_start"]), len(model["start"]) - _DECIMALS - _LOW_PLACES
        width = to_start + len(model["start"])
        begin = end - _DECIMALS - places - len(model["to_duration"]) - width
        fits = (places > 0) & (places <= _LOW_PLACES) & (letters[:, end - _DECIMALS] == _DOT) & (begin >= 0)
        flat = np.ndarray((rows.size * _WIDTH - width + 1,), f"V{width}", rows, strides=(1,))
        before = flat[np.arange(len(rows)) * _WIDTH + np.maximum(begin, 0)].view(np.uint8).reshape(len(rows), width)
        start, are_numbers = _convert_starts(before, to_start, high)
        thread = self._threads_of(before)
        fits &= are_numbers & (before[:, to_start - 1] == model["to_start"][-1]) & (thread >= 0)
        self._add(start[fits], duration[fits], thread[fits])
        self._add_slices([letters[row].tobytes() for row in np.flatnonzero(~fits).tolist()])

    def _threads_of(self, letters: _Letters) -> Int64:
        """The threads that end with the first eight letters of each row; negative where there is none."""
        keys = _word(letters, 0)
        threads = np.full(len(keys), -1, np.int64)
        is_open = np.ones(len(keys), np.bool_)
        while is_open.any():
            row = int(is_open.argmax())
            key = int(keys[row])
            if key not in self._threads:
                digits = re.search(rb"[ :](\d+)\Z", letters[row, :_WORD].tobytes())
                self._threads[key] = int(digits[1]) if digits else -1
            same = keys == key
            threads[same] = self._threads[key]
            is_open &= ~same
        return threads


def _to_ns(time_us: float) -> int:
    """A double of microseconds as nanoseconds; the fraction is taken off first, so that no product is rounded."""
    microseconds = int(time_us // 1)
    return microseconds * NS_PER_US + round((time_us - microseconds) * NS_PER_US)


def _word(letters: _Letters, column: int) -> _Words:
    """Eight columns as a word, the first in its lowest byte; the rows must follow each other in memory."""
    words: _Words = np.ndarray(len(letters), "<u8", letters, column, letters.strides[:1]).copy()
    return words


def _convert_starts(letters: _Letters, begin: int, high: int) -> tuple[Int64, Bool]:
    """The times that stand from a column to the last one, and which rows have one.

    Args:
        letters: One row a time.
        begin: The column.
        high: How many digits they have before the last five in front of the point.
    """
    if not 0 < high <= _WORD:
        return np.zeros(len(letters), np.int64), np.zeros(len(letters), np.bool_)
    end = letters.shape[1]
    unused = np.uint64(8 * (_WORD - high))
    upper = _word(letters, begin + high - _WORD)
    lower = _joined(_word(letters, end - _DECIMALS - _WORD), _word(letters, end - _WORD))
    are_numbers = (_others(upper) >> unused | _others(lower)) == 0
    are_numbers &= letters[:, end - _DECIMALS] == _DOT
    return _number(upper >> unused << unused) * 10**_WORD + _number(lower), are_numbers


def _joined(whole: _Words, end: _Words) -> _Words:
    """The last five letters before a point and the three behind it, of the words that end there."""
    joined: _Words = (whole >> np.uint64(24)) | (end & np.uint64(0xFFFFFF0000000000))
    return joined


def _trailing_digits(words: _Words) -> Int64:
    """How many letters at the end of each word are digits."""
    others = _others(words)
    _, exponent = np.frexp(others.astype(np.float64))
    return np.asarray(np.where(others == 0, _WORD, _WORD - (exponent.astype(np.int64) + 7) // 8), np.int64)


def _others(words: _Words) -> _Words:
    """Bits in every letter of each word that is no digit."""
    letters = words ^ _ZEROS
    # A digit is below ten: adding six does not reach the high half of its byte.
    return (letters | (letters + _SIXES)) & _HIGH_HALVES


def _number(words: _Words) -> Int64:
    """The number of the eight digits of each word; a letter that is zero counts as the digit 0."""
    digits = words & _LOW_HALVES
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    eights = (fours * np.uint64(10000) + (fours >> np.uint64(32))) & np.uint64(0x00000000FFFFFFFF)
    return eights.astype(np.int64)
