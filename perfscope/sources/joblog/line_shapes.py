r"""The shape of a line: its text with other numbers, learned from a line that a rule has matched.

A log of gigabytes is the same line again and again. A rule finds the first record of a block; everything around the
figures that are needed becomes one regular expression, in which numbers may be others and nothing else may.
``re.split`` with it takes a block apart in one pass: the figures of every such line, and all other text, untouched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np

from perfscope.sources.joblog.line_fields import LARGEST, parse_number
from perfscope.sources.joblog.line_forms import (
    BLANKS,
    CLOCKS,
    NUMBER,
    NUMBERS,
    Form,
    Piece,
    choose_forms,
    forms_of_column,
)
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
_STAMP_REACH = 200
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
                values = np.asarray(list(map({text: float(text) for text in different}.__getitem__, texts)), np.float64)
            else:
                values = np.asarray(list(map(float, texts)), np.float64)
        except ValueError:
            parsed = [parse_number(text.encode(_LATIN)) for text in texts]
            values = np.asarray([np.nan if value is None else value for value in parsed], np.float64)
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


@dataclass(frozen=True, slots=True)
class Measured:
    """What a format makes of the columns.

    Attributes:
        iteration: The number of each record.
        wall_ns: Its time, or a reading of a clock; 0 leaves the line to the rules, less is no time.
        columns: What else ``add`` needs.
    """

    iteration: Int64
    wall_ns: Int64
    columns: Mapping[str, Int64] = field(default_factory=dict)


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
    line: LineMatch,
    columns: Mapping[str, Column],
    *,
    has_stamp: bool,
    end: int,
    match: Callable[[bytes], LineMatch | None],
    behind: str = "",
) -> Shape | None:
    """The shape of a record.

    Args:
        line: The match of the rule.
        columns: The figures that are needed.
        has_stamp: Its date is needed, too.
        end: Where it ends: at the end of a line.
        match: The match of the rule for another record, from the beginning of its first line on; None where it is none.
        behind: What must be true behind its last line, as a regular expression of text that matches nothing.

    Returns:
        None where the record is too long, lacks a figure, or has a number directly beside one.
    """
    begin = line.line
    spans = sorted((*column.span(line, name, end), name) for name, column in columns.items())
    spans = [span for span in spans if span[0] >= 0 or not columns[span[2]].is_optional]
    if end - begin > _LONGEST or (spans and spans[0][0] < begin):
        return None
    latest = _latest_shape(line.match.re, tuple((name, columns[name]) for *_, name in spans), behind)
    record = line.text[begin:end].decode(_LATIN) + "\n"
    repeated = latest[0].pattern.match(record) if latest else None
    if repeated is None or repeated.end() != len(record):
        pieces = _take_apart(line, spans, columns, has_stamp=has_stamp, end=end)
        if pieces is None:
            return None
        latest[:] = [_shape_of(pieces, columns, match, behind)]
    return latest[0]


@cache
def _latest_shape(_rule: re.Pattern[bytes], _columns: tuple[tuple[str, Column], ...], _behind: str) -> list[Shape]:
    """The latest shape that was learned of a rule's records: most blocks have it, too, and trying takes time."""
    return []


def _take_apart(
    line: LineMatch,
    spans: Sequence[tuple[int, int, str]],
    columns: Mapping[str, Column],
    *,
    has_stamp: bool,
    end: int,
) -> list[Piece] | None:
    """The pieces of a record whose columns are at ``spans``; None where a number stands beside one."""
    text, begin, label = line.text, line.line, line.label
    offset = text.find(label, begin, end) if label else begin
    pieces = [Piece(text[begin:offset].decode(_LATIN))]
    if label:  # other ranks have the same one with another number
        form = Form(re.sub(r"\d+", r"\\d+", re.escape(label.decode(_LATIN))))
        pieces.append(Piece(label.decode(_LATIN), (form,), LABEL_TEXT))
        offset += len(label)
    has_no_stamp = has_stamp
    for start, stop, name in (*spans, (end, end, "")):
        gap = text[offset:start].decode(_LATIN)
        if start < offset or (name and gap[-1:].isdigit()):
            return None
        pieces += _generalise(gap, wants_stamp=has_no_stamp and offset - begin < _STAMP_REACH)
        has_no_stamp = has_no_stamp and all(piece.name != STAMP for piece in pieces)
        if name:
            pieces.append(Piece(text[start:stop].decode(_LATIN), forms_of_column(columns[name].text), name))
        offset = stop
    return None if has_no_stamp else pieces


def _shape_of(
    pieces: Sequence[Piece],
    columns: Mapping[str, Column],
    match: Callable[[bytes], LineMatch | None],
    behind: str,
) -> Shape:
    """The widest shape of a record's pieces that the rule reads."""

    def is_read(texts: Sequence[str]) -> bool:
        line = match("".join(texts).encode(_LATIN))
        return line is not None and _has_columns(line, columns, pieces, texts)

    forms = choose_forms(pieces, is_read)
    parts = [form.pattern if form else re.escape(piece.text) for piece, form in zip(pieces, forms, strict=True)]
    parts = [f"({part})" if piece.name else part for piece, part in zip(pieces, parts, strict=True)]
    return Shape(_compile("".join(parts), behind), tuple(piece.name for piece in pieces if piece.name))


def _has_columns(line: LineMatch, columns: Mapping[str, Column], pieces: Sequence[Piece], texts: Sequence[str]) -> bool:
    """Whether the columns of a record are the pieces of their names, of which ``texts`` are the texts."""
    start, end = 0, len(line.text)
    for piece, text in zip(pieces, texts, strict=True):
        if piece.name in columns and columns[piece.name].span(line, piece.name, end) != (start, start + len(text)):
            return False
        start += len(text)
    return True


@lru_cache(maxsize=256)
def _compile(line: str, behind: str) -> re.Pattern[str]:
    return re.compile(f"^({line})\n{behind}", re.MULTILINE | re.ASCII)


def _generalise(text: str, *, wants_stamp: bool) -> Iterator[Piece]:
    """A text in which numbers and the blanks before them may be others."""
    offset = 0
    while token := _TOKEN.search(text, offset):
        yield Piece(text[offset : token.start()])
        blanks = token["blanks"] or ""
        if blanks:
            yield Piece(blanks, BLANKS)
        rest = token[0][len(blanks) :]
        if token["stamp"] is not None:
            yield Piece(rest, (Form(_STAMP),), STAMP if wants_stamp else "")
            wants_stamp = False
        elif token["drawing"] is not None:
            yield Piece(rest, (Form(_DRAWING),))
        else:
            yield Piece(rest, CLOCKS if token["clock"] else NUMBERS)
        offset = token.end()
    last = text[offset:].rstrip(" ")
    yield Piece(last)
    if len(last) < len(text) - offset:
        yield Piece(text[offset + len(last) :], BLANKS)
