r"""The shape of a line: its text with other numbers, learned from a line that a rule has matched.

A log of gigabytes is the same line again and again. A rule finds the first record of a block; everything around the
figures that are needed becomes one regular expression, in which numbers may be others and nothing else may.
``re.split`` with it takes a block apart in one pass: the figures of every such line, and all other text, untouched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfscope.sources.joblog.line_fields import LARGEST, parse_number
from perfscope.sources.joblog.record import LARGEST_INTEGER
from perfscope.sources.joblog.rules import LineMatch
from perfscope.tables.columns import Bool, Float64, Int64

#: The name of the column with the line's first date.
STAMP = "stamp"

#: The name of the column with the launcher's label.
LABEL_TEXT = "label"

_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
#: Numbers in names, as in ``bf16`` and ``rank0``, are no numbers; those behind a unit are, as in ``2m5s``.
#: The drawing of a progress bar is another one in every line.
_TOKEN = re.compile(
    rf"(?P<drawing>\|[#\d \x80-\xff]{{1,400}}\|)|(?P<blanks> +)?(?:(?P<stamp>{_STAMP})|(?:(?<=[ :=\t(])[-+])?"
    r"(?:(?<![A-Za-z_\d.])|(?<=\d[hms]))\d[\d.]*(?:(?P<clock>(?::\d\d)+)|[eE][-+]?\d+)?)"
)
_DRAWING = r"\|[#\d \x80-\xff]*\|"
_CLOCK = r"\d[\d:]*"
_STAMP_REACH = 200
#: What a column may be: a count, or a number.
INTEGER = r"\d{1,15}"
NUMBER = r"[\d.eE+-]+"
_LONGEST = 4000
_FEW_TEXTS = 16
_LATIN = "latin-1"
_TO_DOT = str.maketrans(",/ ", ".-T")


@dataclass(frozen=True, slots=True)
class Shape:
    """Lines that differ in their numbers only.

    Attributes:
        pattern: Matches such a line with its end; its first group is the line, the others are the columns.
        columns: The names of the columns.
    """

    pattern: re.Pattern[str]
    columns: tuple[str, ...]


class Cells:
    """Figures of many lines as they are printed, by the names of their columns."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self._texts = texts

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def texts(self, name: str) -> Sequence[str]:
        """A column as text."""
        return self._texts[name]

    def integers(self, name: str) -> Int64:
        """A column of counts."""
        return np.asarray(list(map(int, self._texts[name])), np.int64)

    def numbers(self, name: str) -> Float64:
        """A column of numbers; NaN where the text is none."""
        texts = self._texts[name]
        try:
            different = set(texts)
            if 2 * len(different) <= len(texts):
                return np.asarray(list(map({text: float(text) for text in different}.__getitem__, texts)), np.float64)
            return np.asarray(list(map(float, texts)), np.float64)
        except ValueError:
            values = [parse_number(text.encode(_LATIN)) for text in texts]
            return np.asarray([np.nan if value is None else value for value in values], np.float64)

    def number_bits(self, name: str) -> Int64:
        """A column of numbers as the bits of its floats, to go with columns of counts; NaN where the text is none."""
        numbers = self.numbers(name)
        bits: Int64 = np.where(np.abs(numbers) < LARGEST, numbers, np.nan).view(np.int64)
        return bits

    def times_ns(self, name: str, unit_ns: int) -> Int64:
        """A column of times in a unit as nanoseconds, as ``times_ns`` makes them."""
        return times_ns(self.numbers(name), unit_ns)

    def are_same(self, name: str) -> Bool:
        """Where a column has the text of the last row."""
        texts = self._texts[name]
        if texts.count(texts[-1]) == len(texts):
            return np.ones(len(texts), np.bool_)
        return np.asarray([text == texts[-1] for text in texts])

    def rows_of_peak(self, name: str) -> list[int]:
        """Rows of which one has the largest value: one of each text, or where these are many, that of the largest."""
        texts = self._texts[name]
        different = set(texts)
        if len(different) <= _FEW_TEXTS:
            return [texts.index(text) for text in different]
        return [int(np.argmax(np.nan_to_num(self.numbers(name))))]

    def row_of_peak_among(self, name: str, rows: Int64) -> int:
        """The first of some rows that has their largest value."""
        return int(rows[np.argmax(np.nan_to_num(self.numbers(name)[rows]))])

    def stamps_ns(self) -> Int64:
        """The dates of the lines in nanoseconds since 1970; 0 where a date does not exist."""
        texts = [text.translate(_TO_DOT) for text in self._texts[STAMP]]
        try:
            return np.asarray(texts, "datetime64[ns]").astype(np.int64)
        except ValueError:
            return np.asarray([_stamp_ns(text) for text in texts], np.int64)


def times_ns(times: Float64, unit_ns: int) -> Int64:
    """Times in a unit as nanoseconds, rounded as Python rounds; 0 where there is none."""
    in_ns = times * unit_ns
    return np.where((in_ns > 0) & (in_ns <= LARGEST_INTEGER), np.rint(np.nan_to_num(in_ns)), 0).astype(np.int64)


def _stamp_ns(text: str) -> int:
    try:
        return int(np.datetime64(text, "ns").astype(np.int64))
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a record that is needed of every line.

    Attributes:
        text: What it may be, as a regular expression of text.
        cell: Finds it behind the beginning of the record: its first group; None where the rule has a group of its name.
        is_optional: Not every log has it.
    """

    text: str = NUMBER
    cell: re.Pattern[bytes] | None = None
    is_optional: bool = False

    def span(self, line: LineMatch, name: str, end: int) -> tuple[int, int]:
        """Where it stands in a record that ends at ``end``; before its beginning where it is not there."""
        if self.cell is None:
            return line.match.span(name)
        cell = self.cell.search(line.text, line.match.start(), end)
        return cell.span(1) if cell else (-1, -1)


def learn_shape(
    line: LineMatch, columns: Mapping[str, Column], *, has_stamp: bool, end: int, behind: str = ""
) -> Shape | None:
    """The shape of a record.

    Args:
        line: The match of the rule.
        columns: The figures that are needed.
        has_stamp: Its date is needed, too.
        end: Where it ends: at the end of a line.
        behind: What must be true behind its last line, as a regular expression of text that matches nothing.

    Returns:
        None where the record is too long, lacks a figure, or has a number directly beside one.
    """
    text, begin = line.text, line.line
    spans = sorted((*column.span(line, name, end), name) for name, column in columns.items())
    spans = [span for span in spans if span[0] >= 0 or not columns[span[2]].is_optional]
    if end - begin > _LONGEST or (spans and spans[0][0] < begin):
        return None
    label = line.label
    offset = text.find(label, begin, end) if label else begin
    parts = [re.escape(text[begin:offset].decode(_LATIN))]
    names: list[str] = []
    if label:  # other ranks have the same one with another number
        parts.append("(" + re.sub(r"\d+", r"\\d+", re.escape(label.decode(_LATIN))) + ")")
        names.append(LABEL_TEXT)
        offset += len(label)
    for start, stop, name in (*spans, (end, end, "")):
        gap = text[offset:start].decode(_LATIN)
        if start < offset or (name and gap[-1:].isdigit()):
            return None
        wants_stamp = has_stamp and STAMP not in names and offset - begin < _STAMP_REACH
        for part, is_stamp in _generalise(gap, wants_stamp=wants_stamp):
            parts.append(part)
            names += [STAMP] if is_stamp else []
        if name:
            parts.append(f"({columns[name].text})")
            names.append(name)
        offset = stop
    if has_stamp and STAMP not in names:
        return None
    return Shape(_compile("".join(parts), behind), tuple(names))


@lru_cache(maxsize=256)
def _compile(line: str, behind: str) -> re.Pattern[str]:
    return re.compile(f"^({line})\n{behind}", re.MULTILINE | re.ASCII)


def _generalise(text: str, *, wants_stamp: bool) -> Iterator[tuple[str, bool]]:
    """A text in which numbers and the blanks before them may be others, in parts, and whether a part is the date."""
    offset = 0
    while token := _TOKEN.search(text, offset):
        yield re.escape(text[offset : token.start()]), False
        is_stamp = token["stamp"] is not None and wants_stamp
        if token["stamp"] is not None:
            yield (" +" if token["blanks"] else "") + (f"({_STAMP})" if is_stamp else _STAMP), is_stamp
            wants_stamp = False
        elif token["drawing"] is not None:
            yield _DRAWING, False
        else:
            yield (" +" if token["blanks"] else "") + (_CLOCK if token["clock"] else NUMBER), False
        offset = token.end()
    blanks = text[offset:].endswith(" ")
    yield re.escape(text[offset:].rstrip(" ") if blanks else text[offset:]) + (" +" if blanks else ""), False
