"""Figures of many lines: NumPy reads those that are printed as most are, one digit of all lines after the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from perfscope.constants import NS_PER_S, S_PER_DAY, S_PER_HOUR, S_PER_MINUTE
from perfscope.sources.joblog.series.record import LARGEST_INTEGER
from perfscope.sources.joblog.text.alike_lines import FoundSpans
from perfscope.sources.joblog.text.line_fields import LARGEST, parse_number
from perfscope.tables.columns import Bool, Float64, Int64

#: The name of the column with the line's first date.
STAMP = "stamp"

_MOST_DIGITS = 18
_MOST_EXACT_DIGITS = 15  # of a float, which by a power of ten is then the float nearest to the decimal number
_DECIMAL = re.compile(rb"0*\.?0*")
#: Where year, month, day, hour, minute and second of a date begin, and their widths.
_PARTS_OF_STAMP = ((0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2))
_WHOLE_STAMP = len("2024-05-22 08:03:27")
_DIGITS_OF_NS = 9
_HOURS, _MINUTES = 24, 60
_MOST_DAYS = 106_000  # that nanoseconds can express
_LATIN = "latin-1"


@dataclass(slots=True)
class Cells:
    """Figures of many lines as they are printed, by the names of their columns.

    Attributes:
        spans: Where they stand.
        columns: The name of each group.
    """

    spans: FoundSpans
    columns: Sequence[str]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def rows(self, rows: Int64 | Bool) -> Cells:
        """Some of the lines."""
        return Cells(self.spans.rows(rows), self.columns)

    def repeated(self, times: Int64) -> Cells:
        """The figures of lines that come several times each."""
        return self.rows(np.repeat(np.arange(len(times)), times))

    def text(self, name: str, row: int) -> bytes:
        """A column of one line."""
        spans = self.spans
        begin, end = (spans.starts[row] + spans.groups[spans.kinds[row], self.columns.index(name)]).tolist()
        return spans.text[begin:end]

    def contain(self, name: str, text: bytes) -> Bool:
        """Where a column holds a text, of which every digit is a 0 that stands for any digit."""
        contain = np.zeros(len(self.spans.starts), np.bool_)
        for form, rows, _ in self.spans.forms(self.columns.index(name)):
            contain[rows] = text in form
        return contain

    def texts(self, name: str) -> Sequence[str]:
        """A column as text."""
        group, spans = self.columns.index(name), self.spans
        begins, ends = ((spans.starts + spans.groups[spans.kinds, group, side]).tolist() for side in (0, 1))
        first = spans.text[begins[0] : ends[0]]
        if spans.are_text(group, first).all():
            return [first.decode(_LATIN)] * len(begins)
        text = spans.text.decode(_LATIN)
        return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def integers(self, name: str) -> Int64:
        """A column of counts."""
        values = np.empty(len(self.spans.starts), np.int64)
        for form, rows, places in self.spans.forms(self.columns.index(name)):
            if len(form) <= _MOST_DIGITS and form.isdigit():
                values[rows] = self._digits(places, range(len(form)))
            else:
                values[rows] = [int(text) for text in self._slices(places, len(form))]
        return values

    def numbers(self, name: str) -> Float64:
        """A column of numbers; NaN where the text is none."""
        values = np.empty(len(self.spans.starts), np.float64)
        for form, rows, places in self.spans.forms(self.columns.index(name)):
            digits = [offset for offset, byte in enumerate(form) if byte != ord(".")]
            if _DECIMAL.fullmatch(form) and 0 < len(digits) <= _MOST_EXACT_DIGITS:
                values[rows] = self._digits(places, digits) / 10.0 ** len(form.partition(b".")[2])
            else:
                values[rows] = _parse(self._slices(places, len(form)))
        values[np.abs(values) >= LARGEST] = np.nan
        return values

    def number_bits(self, name: str) -> Int64:
        """A column of numbers as the bits of its floats, to go with columns of counts; NaN where the text is none."""
        bits: Int64 = self.numbers(name).view(np.int64)
        return bits

    def times_ns(self, name: str, unit_ns: int) -> Int64:
        """A column of times in a unit as nanoseconds, as ``times_ns`` makes them."""
        return times_ns(self.numbers(name), unit_ns)

    def are_times(self, name: str, unit_ns: int) -> Bool:
        """Where a column is a time that ``times_ns`` can express, be it 0."""
        in_ns = self.numbers(name) * unit_ns
        fits: Bool = (in_ns >= 0) & (in_ns <= LARGEST_INTEGER)
        return fits

    def are_same(self, name: str) -> Bool:
        """Where a column has the text of the last row."""
        return self.spans.are_text(self.columns.index(name), self.text(name, -1))

    def row_of_peak(self, name: str, among: Int64 | None = None) -> int:
        """The first row that has the largest value of a column, or of some of its rows."""
        values = np.nan_to_num(self.numbers(name))
        return int(np.argmax(values)) if among is None else int(among[np.argmax(values[among])])

    def clocks_s(self, name: str) -> Int64:
        """A column of clocks such as ``1:02:03`` or ``02:03`` in seconds."""
        values = np.empty(len(self.spans.starts), np.int64)
        for form, rows, places in self.spans.forms(self.columns.index(name)):
            seconds, begin = np.zeros(len(places), np.int64), 0
            for part in form.split(b":"):
                seconds = seconds * S_PER_MINUTE + self._digits(places, range(begin, begin + len(part)))
                begin += len(part) + 1
            values[rows] = seconds
        return values

    def stamps_ns(self) -> Int64:
        """The dates of the lines in nanoseconds since 1970; 0 where a date does not exist."""
        values = np.empty(len(self.spans.starts), np.int64)
        for form, rows, places in self.spans.forms(self.columns.index(STAMP)):
            parts = [self._digits(places, range(begin, begin + width)) for begin, width in _PARTS_OF_STAMP]
            dates, hours, minutes, seconds = (parts[0] * 100 + parts[1]) * 100 + parts[2], *parts[3:]
            different, date_of_row = np.unique(dates, return_inverse=True)
            days_ns = np.asarray([_date_ns(date) for date in different.tolist()], np.int64)[date_of_row]
            of_day_ns = (hours * S_PER_HOUR + minutes * S_PER_MINUTE + seconds) * NS_PER_S
            fraction = range(_WHOLE_STAMP + 1, len(form))
            of_day_ns += self._digits(places, fraction) * 10 ** (_DIGITS_OF_NS - len(fraction))
            exists = (days_ns != 0) & (hours < _HOURS) & (minutes < _MINUTES) & (seconds < _MINUTES)
            values[rows] = np.where(exists, days_ns + of_day_ns, 0)
        return values

    def _digits(self, places: Int64, offsets: Sequence[int]) -> Int64:
        """The numbers whose digits stand at some offsets from some places."""
        buffer = np.frombuffer(self.spans.text, np.uint8)
        values = np.zeros(len(places), np.int64)
        for offset in offsets:
            values *= 10
            values += buffer[places + offset]
            values -= ord("0")
        return values

    def _slices(self, places: Int64, width: int) -> list[bytes]:
        return [self.spans.text[begin : begin + width] for begin in places.tolist()]


def _parse(texts: Sequence[bytes]) -> list[float]:
    try:
        return list(map(float, texts))
    except ValueError:
        return [np.nan if value is None else value for value in map(parse_number, texts)]


def times_ns(times: Float64, unit_ns: int) -> Int64:
    """Times in a unit as nanoseconds, rounded as Python rounds; 0 where there is none."""
    in_ns = times * unit_ns
    return np.where((in_ns > 0) & (in_ns <= LARGEST_INTEGER), np.rint(np.nan_to_num(in_ns)), 0).astype(np.int64)


def _date_ns(date: int) -> int:
    """A date as ``20240522`` in nanoseconds since 1970; 0 where it does not exist, or is too far away."""
    try:
        days = datetime(date // 10_000, date // 100 % 100, date % 100) - datetime(1970, 1, 1)
    except ValueError:
        return 0
    return days.days * S_PER_DAY * NS_PER_S if abs(days.days) < _MOST_DAYS else 0
