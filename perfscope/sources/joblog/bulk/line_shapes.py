r"""The shape of a line: its text with other numbers, learned from a line that a rule has matched.

A log of gigabytes is the same line again and again. A rule finds the first record of a block; everything around the
figures that are needed becomes one regular expression, in which numbers may be others and nothing else may.
It takes every digit for any other one, but for those that are the same in all lines, which are groups of it: so it is
tried on one of the lines that are equal but for their digits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import NamedTuple

from perfscope.sources.joblog.bulk.cells import STAMP
from perfscope.sources.joblog.bulk.line_forms import (
    BLANKS,
    CLOCKS,
    NUMBER,
    NUMBERS,
    Form,
    Piece,
    choose_forms,
    forms_of_column,
)
from perfscope.sources.joblog.rules import LineMatch
from perfscope.sources.joblog.text.alike_lines import FoundSpans, find_each, find_lines
from perfscope.tables.columns import Int64

#: The name of the column with the launcher's label.
LABEL_TEXT = "label"

_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
#: Numbers in names, as in ``bf16`` and ``rank0``, are no numbers; those behind a unit are, as in ``2m5s``.
#: The drawing of a progress bar is another one in every line.
_TOKEN = re.compile(
    rf"(?P<drawing>\|[#\d \x80-\xff]{{1,400}}\|)|(?P<blanks> +)?(?:(?P<stamp>{_STAMP})|(?:(?<=[ :=\t(])[-+])?"
    r"(?:(?<![A-Za-z_\d.])|(?<=\d[hms]))\d[\d.]*(?:(?P<clock>(?::\d\d)+)|[eE][-+]?\d+)?)"
)
_DIGITS = re.compile(r"(\d+)", re.ASCII)
_DRAWING = r"\|[#\d \x80-\xff]*\|"
_STAMP_REACH = 200
_SHAPES_KEPT = 8
_LONGEST = 4000
_LATIN = "latin-1"


@dataclass(frozen=True, slots=True)
class Shape:
    """Lines that differ in their numbers only.

    Attributes:
        pattern: Matches such a line with its end; its groups are the columns, and digits that are always the same.
        columns: The name of each group; an empty one where it is no column.
        fixed: The numbers of the groups that are the same in all lines.
    """

    pattern: re.Pattern[bytes]
    columns: tuple[str, ...]
    fixed: tuple[int, ...]

    def find(self, text: bytes) -> FoundSpans | None:
        """The lines of this shape in a text of whole lines; None without one."""
        pattern = self.pattern.pattern
        is_of_one_line = pattern.find(b"\n") == len(pattern) - 1
        spans = (find_lines if is_of_one_line else find_each)(self.pattern, text)
        for group in self.fixed if len(spans.starts) else ():
            begin, end = (spans.examples[0] + spans.groups[0, group]).tolist()
            spans = spans.rows(spans.are_text(group, spans.text[begin:end]))
        return spans if len(spans.starts) else None


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
    latest = _latest_shapes(line.match.re, tuple((name, columns[name]) for *_, name in spans), behind)
    record = line.text[begin:end] + b"\n"
    for shape in latest:
        repeated = shape.pattern.match(record)
        if repeated is not None and repeated.end() == len(record):
            return shape
    pieces = _take_apart(line, spans, columns, has_stamp=has_stamp, end=end)
    if pieces is None:
        return None
    latest.appendleft(_shape_of(pieces, columns, match, behind))
    return latest[0]


@cache
def _latest_shapes(_rule: re.Pattern[bytes], _columns: tuple[tuple[str, Column], ...], _behind: str) -> deque[Shape]:
    """The latest shapes that were learned of a rule's records: most blocks have one of them, and trying takes time."""
    return deque(maxlen=_SHAPES_KEPT)


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
    parts = [part for piece, form in zip(pieces, forms, strict=True) for part in _parts_of(piece, form)]
    groups = [part for part in parts if part.name is not None]
    line = "".join(part.pattern if part.name is None else f"({part.pattern})" for part in parts)
    fixed = (number for number, group in enumerate(groups) if group.is_fixed)
    return Shape(_compile(line, behind), tuple(group.name or "" for group in groups), tuple(fixed))


class _Part(NamedTuple):
    """A part of a shape's pattern; a group where it has a name, be it an empty one."""

    pattern: str
    name: str | None = None
    is_fixed: bool = False


def _parts_of(piece: Piece, form: Form | None) -> Iterator[_Part]:
    """The parts of a pattern for a piece of a line, of which the digits are groups where they are always the same."""
    if form or piece.name:
        yield _Part(form.pattern if form else re.escape(piece.text), piece.name or None, form is None)
        return
    for number, text in enumerate(_DIGITS.split(piece.text)):
        yield _Part(text, "", is_fixed=True) if number % 2 else _Part(re.escape(text))


def _has_columns(line: LineMatch, columns: Mapping[str, Column], pieces: Sequence[Piece], texts: Sequence[str]) -> bool:
    """Whether the columns of a record are the pieces of their names, of which ``texts`` are the texts."""
    start, end = 0, len(line.text)
    for piece, text in zip(pieces, texts, strict=True):
        if piece.name in columns and columns[piece.name].span(line, piece.name, end) != (start, start + len(text)):
            return False
        start += len(text)
    return True


@lru_cache(maxsize=256)
def _compile(line: str, behind: str) -> re.Pattern[bytes]:
    return re.compile(f"^{line}\n{behind}".encode(_LATIN), re.MULTILINE)


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
