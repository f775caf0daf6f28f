"""Step times from the dates in front of lines, for logs that print no time of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from perfscope.sources.joblog.bulk.record_lines import add_evenly
from perfscope.sources.joblog.content.builder import JobLogBuilder
from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf
from perfscope.sources.joblog.rules import LineMatch
from perfscope.sources.joblog.series.iteration_series import FEW, REPEATS_AT_ONCE, IterationSeries
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.series.rows import Rows
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.tables.columns import Int64


@dataclass(slots=True)
class _Tick:
    COUNTS: ClassVar = ("attempt",)

    iteration: int
    stamp_ns: int
    attempt: int

    def most_repetitions(self, _added_of: AddedOf) -> int:
        """As often as is wanted: the attempt of the last record of its series, or one that has passed for good."""
        return ANY_NUMBER


class StepClock:
    """Times records by the dates of their lines; the clock runs on through evaluations and saves."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._last: _Tick | None = None

    def add(self, log: JobLogBuilder, line: LineMatch, record: Record, stamp_ns: int | None = None) -> bool:
        """Append a record with the time since the record before it, divided by the iterations between them.

        The first record, and the first after a restart, has no time. ``stamp_ns`` is the line's date where it is
        written in another way. Says whether the record was appended.
        """
        return self._add(log, line.label, record, stamp_ns if stamp_ns is not None else line.timestamp_ns)

    def add_many(self, log: JobLogBuilder, plain: PlainLines) -> None:
        """Append many records, whose ``wall_ns`` are the dates of their lines."""
        series, numbers, stamps = log.series_of(self.source), np.asarray(plain.iteration, np.int64), plain.wall_ns
        series.add_copies(plain.copies, compared=0)
        if len(numbers) < FEW:
            for number, stamp_ns in zip(numbers.tolist(), stamps.tolist(), strict=True):
                self._add(log, plain.label, Record(number), stamp_ns)
            return
        if series.are_copies(numbers, plain.label):
            series.add_rows(numbers, np.full_like(stamps, -1), None, plain.label)  # a date says nothing of a copy
            return
        ends = Rows(np.diff(numbers) <= 0)
        row = next_look = 0
        while row < len(numbers):
            if row >= next_look and series.repeats_go_on(plain.label) and self._goes_on(series):
                some = slice(row, row + REPEATS_AT_ONCE)
                followed = self._follow_repeats(series, numbers[some], stamps[some], plain.label)
                row += followed
                next_look = row if followed >= FEW else row + FEW
                continue
            is_new = self._add(log, plain.label, Record(int(numbers[row])), int(stamps[row]))
            row += 1
            end = ends.next_after(row - 1) + 1
            if not is_new or row == end:
                continue
            # All that follow up to there are new, too.
            series, moved = log.series_of(self.source), np.diff(stamps[row - 1 : end])
            wall_ns = np.where(moved > 0, moved // np.diff(numbers[row - 1 : end]), -1)
            add_evenly(series, PlainLines(numbers[row:end], wall_ns, label=plain.label), 0, len(wall_ns))
            self._last = _Tick(int(numbers[end - 1]), int(stamps[end - 1]), series.attempt)
            row = end

    def _goes_on(self, series: IterationSeries) -> bool:
        """Whether the clock was last read at the last record, in the same start."""
        last = self._last
        return last is not None and (last.iteration, last.attempt) == (series.last, series.attempt)

    def _follow_repeats(self, series: IterationSeries, numbers: Int64, stamps: Int64, label: bytes | None) -> int:
        """Append records of several processes that go on or repeat, and return how many could be followed."""
        assert self._last is not None
        before = np.maximum.accumulate(np.append(self._last.iteration, numbers))
        firsts = np.flatnonzero(numbers > before[:-1])
        wall_ns = np.full_like(stamps, -1)
        moved = np.diff(stamps[firsts], prepend=self._last.stamp_ns)
        steps = np.diff(numbers[firsts], prepend=self._last.iteration)
        wall_ns[firsts] = np.where(moved > 0, moved // steps, -1)
        is_new = series.follow_repeats(numbers, wall_ns, None, label)
        if is_new.any():
            row = int(np.flatnonzero(is_new)[-1])
            self._last = _Tick(int(numbers[row]), int(stamps[row]), series.attempt)
        return len(is_new)

    def _add(self, log: JobLogBuilder, label: bytes | None, record: Record, stamp: int | None) -> bool:
        series = log.series_of(self.source)
        series.clock_runs_on = True
        last = self._last
        if last is not None and stamp is not None and record.iteration is not None:
            is_later = record.iteration > last.iteration and stamp > last.stamp_ns
            if is_later and last.attempt == series.attempt and series.is_continuing:
                record.wall_ns = (stamp - last.stamp_ns) // (record.iteration - last.iteration)
        is_new = series.add(record, label)
        if is_new and stamp is not None and record.iteration is not None:
            self._last = _Tick(record.iteration, stamp, series.attempt)
        return is_new
