"""Finds when each thread was inside an operator, without decoding the operators.

Most events of a trace are operators, and an analysis of idle time needs nothing but the moments that they cover. So
the bytes before the arguments of each operator, where exporters write its thread and its times, are collected, and the
digits of many operators are converted at once, eight of them as one word. Operators that are written otherwise are
decoded one by one.
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
from perfscope.tables.columns import Int64

_Letters: TypeAlias = npt.NDArray[np.uint8]
_Words: TypeAlias = npt.NDArray[np.uint64]
_Column: TypeAlias = "Sequence[int] | Int64"

#: How much before an operator's arguments is collected; its thread and times take less.
_WIDTH = 96
_ROWS_PER_BATCH = 1 << 14
_WORD = 8
_DECIMALS = 4  # with their point
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

    def spans(self) -> ThreadSpans:
        """The moments of all operators."""
        if self._model is not None:
            self._convert_collected(self._model)
        return join_spans(self._spans)

    def _add_events(self, text: bytes, starts: Int64, stops: Int64) -> None:
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            self._add_event(text[start:stop])

    def _add_event(self, text: bytes) -> None:
        try:
            event = self._decode(text)
        except FAILURES:
            self.lost += 1
            return
        if event.ts is None or event.dur is None or not isinstance(event.tid, int):
            self.lost += 1
            return
        self._add([_to_ns(event.ts)], [_to_ns(event.dur)], [event.tid])

    def _add_slice(self, text: bytes) -> None:
        match = _TIMES.search(text)
        if match is None:
            self.lost += 1
            return
        start_ns, duration_ns = (int(match[name].replace(b".", b"")) for name in ("start", "duration"))
        self._add([start_ns], [duration_ns], [int(match["thread"])])

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
        durations = np.ascontiguousarray(letters[:, end - _WORD - _DECIMALS : end])
        digits = _trailing_digits(_word(durations, 0))
        duration = _digits_of(_word(durations, 0), digits) * NS_PER_US + _decimals(durations, _WORD)
        # What stands before the duration, in the same columns of all rows.
        length = len(model["start"])
        to_thread = _WORD + len(model["to_start"])
        width = to_thread + length
        begin = end - _DECIMALS - digits - len(model["to_duration"]) - width
        fits = (digits > 0) & (digits < _WORD) & (durations[:, _WORD] == _DOT) & (begin >= 0)
        flat = np.ndarray((rows.size * _WIDTH - width + 1,), f"V{width}", rows, strides=(1,))
        before = flat[np.arange(len(rows)) * _WIDTH + np.maximum(begin, 0)].view(np.uint8).reshape(len(rows), width)
        start = np.zeros(len(rows), np.int64)
        point = width - _DECIMALS
        for first in range(to_thread, point, _WORD):
            last = min(first + _WORD, point)
            words, places = _word(before, last - _WORD), last - first
            fits &= _others(words) >> np.uint64(8 * (_WORD - places)) == 0
            start = start * 10**places + _digits_of(words, np.full(len(rows), places))
        start = start * NS_PER_US + _decimals(before, point)
        fits &= (before[:, point] == _DOT) & (before[:, to_thread - 1] == model["to_start"][-1])
        thread = self._threads_of(before)
        fits &= (thread >= 0) & (length > _DECIMALS + _WORD)
        self._add(start[fits], duration[fits], thread[fits])
        for row in np.flatnonzero(~fits).tolist():
            self._add_slice(letters[row].tobytes())

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
    """Eight columns as a word, the first in its lowest byte."""
    words: _Words = np.ascontiguousarray(letters[:, column : column + _WORD]).view("<u8").reshape(-1)
    return words


def _decimals(letters: _Letters, column: int) -> Int64:
    """The three digits behind a point."""
    hundreds, tens, ones = (letters[:, column + place].astype(np.int64) & 15 for place in (1, 2, 3))
    return np.asarray(hundreds * 100 + tens * 10 + ones)


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


def _digits_of(words: _Words, places: Int64) -> Int64:
    """The number that the last letters of each word are, all of them digits."""
    unused = ((_WORD - np.clip(places, 1, _WORD)) * 8).astype(np.uint64)
    digits = (words ^ _ZEROS) >> unused << unused
    digits &= _LOW_HALVES
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    eights = (fours * np.uint64(10000) + (fours >> np.uint64(32))) & np.uint64(0x00000000FFFFFFFF)
    return eights.astype(np.int64)
