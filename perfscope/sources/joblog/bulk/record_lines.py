"""The fast path of a format that prints a record a line: the lines of a block as columns, by the shape of the first.

A format declares which figures are needed, and how a time follows from them for many lines at once. What else a rule
does with a record is left to the rule: the first and the last record of a block, those with the largest of a figure of
which the peak counts, and every line of another shape are read one by one, as all are in a short log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, TypeAlias

import numpy as np

from perfscope.sources.joblog.bulk.cells import Cells
from perfscope.sources.joblog.bulk.line_forms import INTEGER
from perfscope.sources.joblog.bulk.line_shapes import Column, Measured, Shape, learn_shape
from perfscope.sources.joblog.bulk.split_records import SplitRecords, part_glued, split_records
from perfscope.sources.joblog.log_format import BulkReading, FormatState, State
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.series.epochs import EpochCounter
from perfscope.sources.joblog.series.iteration_series import IterationSeries
from perfscope.sources.joblog.series.rank_copies import find_copies, is_of_label
from perfscope.sources.joblog.splitting.split_block import PlainLines, SplitBlock, Text
from perfscope.sources.joblog.text.blocks import to_plain_text
from perfscope.tables.columns import Bool, Int64

_FEWEST = 16
_MOST_LOOKED_AT = 32
_EPOCH = 10**10
_LAST = 64
_LATIN = "latin-1"


def is_record(_line: LineMatch) -> bool:
    """Every match of the rule is a record."""
    return True


@dataclass(frozen=True, slots=True)
class Further:
    """The lines behind the one of a rule that belong to the same record.

    Attributes:
        lines: Matches all of them, from the end of the line before on.
        behind: What must be true behind the last one, so that there is no further one.
    """

    lines: re.Pattern[bytes]
    behind: str


@dataclass(frozen=True, slots=True)
class LinesOfRecords(Generic[State]):
    """What a format says of its records.

    Attributes:
        rule: The rule of the records.
        columns: The figures that are needed.
        measure: Makes times of them.
        peaks: The columns of which the largest value counts.
        constants: The columns that are the same in all records of a job; others are read by the rule.
        has_stamp: The first date of a line is a column, too.
        is_record: Whether a match of the rule is a record.
        is_numbered: A record has a number; others are counted by the place of their line in the block.
        lines: How many lines a record has, counted from the last one that the rule matches.
        further: What matches the further lines of a record instead, where these are not always as many.
        glue: Bytes between two records that share a line, and a pattern that matches there; its first group is the end
            of the first one.
    """

    rule: Rule[State]
    columns: Mapping[str, Column]
    measure: Callable[[Cells], Measured]
    peaks: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    has_stamp: bool = False
    is_record: Callable[[LineMatch], bool] = is_record
    is_numbered: bool = True
    lines: int = 1
    further: Further | None = None
    glue: tuple[bytes, re.Pattern[bytes]] | None = None

    @property
    def is_line(self) -> bool:
        """Whether a record is one line."""
        return self.lines == 1 and self.further is None

    def shape_of(self, line: LineMatch) -> Shape | None:
        """The shape of a record; None where it has none, or where it is glued to another one."""
        end = self._end_of(line)
        if self._match(line.text[line.line : end]) is None:
            return None
        behind = self.further.behind if self.further else ""
        return learn_shape(line, self.columns, has_stamp=self.has_stamp, end=end, match=self._match, behind=behind)

    def _end_of(self, line: LineMatch) -> int:
        """Where the last line of a record ends."""
        text, end = line.text, line.match.end() - 1
        for _ in range(self.lines):
            end = text.find(b"\n", end + 1)
            if end < 0:
                end = len(text)
                break
        further = self.further.lines.match(text, end) if self.further else None
        return further.end() if further else end

    def _match(self, text: bytes) -> LineMatch | None:
        """The match of a text that is one record and nothing else."""
        lines = list(self.rule.find(text + b"\n"))
        is_one = len(lines) == 1 and self.is_record(lines[0]) and self._end_of(lines[0]) == len(text)
        return lines[0] if is_one else None


@dataclass(frozen=True, slots=True)
class ShapeSplitter(Generic[State]):
    """Splits blocks by the shape of their first record; a splitter goes to other processes."""

    kinds: tuple[LinesOfRecords[State], ...]
    drops_copies: bool = True
    most_behind: int | None = None

    def __call__(self, text: Text, length: int, _scratch: Bool) -> SplitBlock | None:
        """Split the first ``length`` bytes; see ``perfscope.sources.joblog.splitting.split_block.Splitter``."""
        plain = to_plain_text(bytes(text[:length]))
        if not plain.endswith(b"\n"):
            plain += b"\n"
        for between, glue in {kind.glue for kind in self.kinds if kind.glue}:
            if between in plain:
                plain = part_glued(plain, glue)
        for kind, shape in self._shapes(plain):
            records = split_records(shape, plain, kind.measure)
            if records is not None and len(records.starts) > _FEWEST:
                return self._split(kind, records)
        return None

    def _split(self, kind: LinesOfRecords[State], records: SplitRecords) -> SplitBlock:
        cells, measured = records.cells, records.measured
        is_plain = measured.wall_ns != 0
        for name in kind.constants:
            if name in cells:
                is_plain &= cells.are_same(name)
        for name in kind.peaks:
            if name in cells:
                is_plain[cells.row_of_peak(name)] = False
        labels = records.labels
        columns = dict(measured.columns)
        numbers = measured.iteration + _EPOCH * columns.get("epoch", 0)
        is_copy = np.zeros(len(records.starts), np.bool_)
        if self.drops_copies and kind.is_numbered and labels.count(labels[0]) < len(labels):
            is_first, is_copy = find_copies(labels, numbers, measured.wall_ns, self.most_behind)
            is_copy &= is_plain  # what the rules must read is none
            is_plain &= is_first
        else:
            is_plain &= _is_of_one_process(labels)
        for name in kind.peaks:
            if name in cells and is_plain.any():  # a copy may have the largest of all
                is_plain[cells.row_of_peak(name, among=np.flatnonzero(is_plain))] = False
        is_plain[[0, -1]] = False
        if kind.is_numbered:  # of the last ones with its number, the first is no copy
            is_plain[-_LAST:][measured.iteration[-_LAST:] == measured.iteration[-1]] = False
        first_of_labels: dict[bytes, int] = {}
        if is_copy.any() and is_plain.any():
            firsts = dict(zip(reversed(labels), numbers[::-1].tolist(), strict=True))
            first_of_labels = {label.encode(_LATIN): number for label, number in firsts.items()}
            columns["copies"] = np.zeros(len(records.starts), np.int64)
            columns["copies"][np.flatnonzero(is_plain)[0]] = is_copy.sum()
        else:
            is_copy[:] = False
        plain = PlainLines(
            measured.iteration[is_plain],
            measured.wall_ns[is_plain],
            label=_label_of(labels, is_plain),
            columns={name: column[is_plain] for name, column in columns.items()},
        )
        is_read = is_plain | is_copy
        starts, ends = records.starts[is_read], records.ends[is_read]
        plain_before = np.append(0, np.cumsum(is_plain[is_read]))
        begins, stops = np.append(0, ends), np.append(starts, len(records.text))
        is_text = begins < stops
        ranges = np.stack((begins[is_text], stops[is_text])).T.tolist()
        rest = [records.text[begin:stop] for begin, stop in ranges]
        lengths = np.cumsum([0, *map(len, rest)])[: len(rest)]
        return SplitBlock(
            plain,
            b"".join(rest),
            plain_before[is_text],
            lengths,
            records.text,
            np.stack((records.starts[is_plain], records.ends[is_plain])),
            first_of_labels,
            original=records.text if first_of_labels else b"",
            has_record_lines=kind.is_line,
        )

    def _shapes(self, text: bytes) -> Iterator[tuple[LinesOfRecords[State], Shape]]:
        """The shape of the first record, and of those a third and two thirds further on."""
        for kind in self.kinds:
            for offset in (0, len(text) // 3, 2 * len(text) // 3):
                begin = text.find(b"\n", offset) + 1 if offset else 0
                lines = islice(kind.rule.find(text[begin:]), _MOST_LOOKED_AT)
                line = next(filter(kind.is_record, lines), None)
                shape = kind.shape_of(line) if line is not None else None
                if shape is not None:
                    yield kind, shape


def _label_of(labels: Sequence[str], is_plain: Bool) -> bytes | None:
    """The label of the plain lines, which have one."""
    first = int(np.argmax(is_plain)) if len(labels) > 1 else 0
    return labels[first].encode(_LATIN) or None


def _is_of_one_process(labels: Sequence[str]) -> Bool:
    """Which records have the label of the first one."""
    is_own: Bool = np.ones(len(labels), np.bool_)
    if labels.count(labels[0]) < len(labels):
        is_own = is_of_label(labels, labels[0])
        is_own[np.flatnonzero(is_own)[-1]] = False
    return is_own


def add_evenly(series: IterationSeries, plain: PlainLines, first: int, last: int, samples: Int64 | None = None) -> Bool:
    """Add rows ``first`` to ``last`` of a block's plain lines, and return which of them are new.

    Args:
        series: The series, whose further records are folded.
        plain: The lines.
        first: The first row.
        last: The row behind the last.
        samples: The batch of each record; None where it is unknown.
    """
    if first >= last:
        return np.empty(0, np.bool_)
    copies = plain.rows(first, last).copies
    series.add_copies(copies, copies if plain.wall_ns[first] > 0 else 0)
    numbers = np.asarray(plain.iteration[first:last], np.int64)
    batches = None if samples is None else samples[first:last]
    return series.add_rows(numbers, plain.wall_ns[first:last], batches, plain.label)


#: Adds the plain lines of a block from one row up to another.
Adder: TypeAlias = Callable[[State, PlainLines, int, int], None]


@dataclass(frozen=True, slots=True)
class _AddRecords(Generic[State]):
    source: str
    epochs_of: Callable[[State], EpochCounter] | None
    on_last: Callable[[State, int], None]

    def __call__(self, state: State, plain: PlainLines, first: int, last: int) -> None:
        """Add rows ``first`` to ``last`` to the series of the source."""
        if self.epochs_of is not None and "epoch" in plain.columns:
            plain = number_over_epochs(self.epochs_of(state), plain.rows(first, last))
            first, last = 0, last - first
        series = state.log.series_of(self.source)
        add_evenly(series, plain, first, last, plain.columns.get("samples"))
        if first < last:
            self.on_last(state, int(plain.iteration[last - 1]))


def number_over_epochs(epochs: EpochCounter, rows: PlainLines) -> PlainLines:
    """Rows whose ``iteration`` is counted in their ``epoch`` of ``length`` steps, numbered over all epochs."""
    lengths = rows.columns.get("length", np.zeros(len(rows.wall_ns), np.int64))
    numbers = epochs.add_many(rows.columns["epoch"], np.asarray(rows.iteration, np.int64), lengths)
    return replace(rows, iteration=numbers)


@dataclass(slots=True)
class CopiesOf(Generic[State]):
    """Tells whether lines repeat records that are known.

    Attributes:
        sources: The sources to which lines are added with their own numbers.
        clocks: The sources that are made of them by a clock; their further records must be folded.
        epochs_of: The counter of the epochs, where records have a column ``epoch``.
    """

    sources: tuple[str, ...]
    clocks: tuple[str, ...] = ()
    epochs_of: Callable[[State], EpochCounter] | None = None

    def __call__(self, state: State, plain: PlainLines, first: int, last: int) -> bool:
        """Whether rows ``first`` to ``last`` are such lines."""
        rows, series = plain.rows(first, last), state.log.series
        if self.epochs_of is not None and "epoch" in rows.columns:
            rows = number_over_epochs(self.epochs_of(state), rows)
        numbers = np.asarray(rows.iteration, np.int64)
        recorded = [series[source] for source in self.sources if source in series]
        return all(series[clock].is_full for clock in self.clocks if clock in series) and all(
            each.is_full or each.are_copies(numbers, rows.label) for each in recorded
        )


def ignore_last(_state: FormatState, _number: int) -> None:
    """Remember nothing of the last record."""


def read_lines(
    source: str | tuple[str, ...],
    *kinds: LinesOfRecords[State],
    epochs_of: Callable[[State], EpochCounter] | None = None,
    on_last: Callable[[State, int], None] = ignore_last,
    add: Adder[State] | None = None,
    are_copies: Callable[[State, PlainLines, int, int], bool] | None = None,
    drops_copies: bool = True,
    compares_copies: bool | None = None,
    most_behind: int | None = None,
) -> BulkReading[State]:
    """The fast path of a format that prints a record a line.

    Args:
        source: The source of the step times, or several.
        kinds: The kinds of records; a log has one of them.
        epochs_of: The counter of the epochs, where records have a column ``epoch``.
        on_last: Called with the number of the last record that was added.
        add: Adds them where the time is not in the line; by default they are added to the source.
        are_copies: Tells for ``add`` whether lines repeat records that are known; see ``BulkReading``.
        drops_copies: ``add`` counts the copies of other ranks by ``PlainLines.copies``, and needs not see them.
        compares_copies: ``add`` compares the times of copies with those that they repeat; None where copies may be
            dropped only among records that are folded.
        most_behind: How many steps behind the others a rank's line may be for this; any number by default.
    """
    sources = (source,) if isinstance(source, str) else source
    splitter = ShapeSplitter(kinds, drops_copies, most_behind)
    split_rank = splitter if any(kind.is_line for kind in kinds) else None
    if add is not None:
        copies_of = None if compares_copies is None else (sources[0], compares_copies)
        return BulkReading(sources, splitter, add, are_copies, copies_of, split_rank)
    copies, adder = CopiesOf((sources[0],), sources[1:], epochs_of), _AddRecords(sources[0], epochs_of, on_last)
    return BulkReading(sources, splitter, adder, copies, (sources[0], True), split_rank)


@dataclass(frozen=True, slots=True)
class SweptRecords(Generic[State]):
    """Reads the records of text whose lines other formats read, too: many at once where they would be, else each.

    Attributes:
        rule: The rule of the records, which is none of the format's.
        bulk: How many are read at once.
    """

    rule: Rule[State]
    bulk: BulkReading[State]

    def __call__(self, state: State, text: bytes) -> None:
        """Read all records of whole lines."""
        series = [state.log.series[name] for name in self.bulk.sources if name in state.log.series]
        block = None
        if series and all(source.is_full for source in series):
            block = self.bulk.split(text, len(text), np.empty(0, np.bool_))
        lines = list(self.rule.find(text if block is None else block.rest))
        places = [0] * len(lines) if block is None else block.plain_before_each([line.match.start() for line in lines])
        done = 0
        for before, line in zip(places, lines, strict=True):
            if block is not None and before > done:
                self.bulk.add(state, block.plain, done, before)
                done = before
            self.rule.on_match(state, line)
        if block is not None:
            self.bulk.add(state, block.plain, done, len(block.plain.wall_ns))


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Makes times of the column ``step`` and the column of a time.

    Attributes:
        time: The name of that column.
        unit_ns: The unit of the time.
        first: The number that the log gives the first step.
        others: Columns of counts that are added, too: ``epoch``, ``length``, ``samples``.
    """

    time: str
    unit_ns: int
    first: int = 1
    others: tuple[str, ...] = ()

    def __call__(self, cells: Cells) -> Measured:
        """The steps, counted from 1, and their times."""
        others = {name: cells.integers(name) for name in self.others if name in cells}
        return Measured(cells.integers("step") + (1 - self.first), cells.times_ns(self.time, self.unit_ns), others)


#: The column of a group named ``step``.
STEP = Column(INTEGER)
