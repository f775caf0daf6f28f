"""Step times from a clock that a framework prints: the time since its start, rounded to seconds or milliseconds.

The time of a step is a difference of two readings. Readings are joined until the clock has moved far enough for its
rounding to matter little, so that whole seconds say enough about short steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.bulk import PlainLines
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.record_lines import add_evenly
from perfscope.tables.columns import Int64

_PRECISE = 20
_MANY = 16
_USABLE = 5

#: A reading of fewer steps behind the last one is a copy of another rank's.
SKEW = 4


@dataclass(frozen=True, slots=True)
class _Reading:
    step: int
    elapsed_ns: int
    tokens: int | None


class ElapsedClock:
    """Makes the records of one source from readings of its clock.

    Attributes:
        source: The source of the records.
        runs_on: The clock runs on through evaluations and saves.
    """

    def __init__(self, source: str, *, runs_on: bool = True) -> None:
        self.source = source
        self.runs_on = runs_on
        self._begin: _Reading | None = None
        self._last: _Reading | None = None
        self._pending: Record | None = None
        self._resolution_ns = 1

    def add(
        self,
        log: JobLogBuilder,
        record: Record,
        elapsed_ns: int,
        resolution_ns: int,
        *,
        tokens: int | None = None,
        label: bytes | None = None,
    ) -> None:
        """Add a reading after the iteration of ``record``; the time of its record is set where it is precise.

        Args:
            log: The log.
            record: The iteration, and what else its line states.
            elapsed_ns: The clock.
            resolution_ns: What its last printed digit stands for.
            tokens: Tokens up to here, of which a throughput is made; None where unknown.
            label: The launcher's label of the line.
        """
        assert record.iteration is not None
        reading = _Reading(record.iteration, elapsed_ns, tokens)
        series = log.series_of(self.source)
        series.clock_runs_on, series.covers_gaps = self.runs_on, True
        last, begin = self._last, self._begin
        if last is not None and reading.step <= last.step:
            if reading.step == last.step or reading.step > last.step - SKEW or elapsed_ns > last.elapsed_ns:
                return  # another rank's copy
            self.close(log)
            series.on_restart()
            last = begin = None
        self._last, self._resolution_ns = reading, resolution_ns
        if last is None or begin is None or elapsed_ns < last.elapsed_ns:
            self.restart(log)
            self._last = self._begin = reading
            series.add(record, label)
            return
        moved_ns = elapsed_ns - begin.elapsed_ns
        if moved_ns < _PRECISE * resolution_ns:
            self._pending = record
            return
        steps = reading.step - begin.step
        record.wall_ns = moved_ns // steps
        record.wall_resolution_ns = max(resolution_ns // steps, 1)
        if tokens is not None and begin.tokens is not None and tokens > begin.tokens:
            record.tokens_per_s = (tokens - begin.tokens) / (moved_ns / 1e9)
        self._begin, self._pending = reading, None
        series.add(record, label)

    def add_each(
        self,
        log: JobLogBuilder,
        steps: Int64,
        clocks_ns: Int64,
        resolution_ns: int,
        record_of: Callable[[int], Record],
    ) -> None:
        """Add readings as ``add`` does; those that only wait for the clock to move are passed over.

        Args:
            log: The log.
            steps: The iteration of each reading.
            clocks_ns: The clock of each.
            resolution_ns: What the clock's last printed digit stands for.
            record_of: Makes the record of a row.
        """
        clocks = clocks_ns.tolist()
        if len(clocks) < _MANY:
            for row, clock_ns in enumerate(clocks):
                self.add(log, record_of(row), clock_ns, resolution_ns)
            return
        goes_back = (np.diff(steps) <= 0) | (np.diff(clocks_ns) < 0)
        ends = iter((*np.flatnonzero(goes_back).tolist(), len(clocks) - 1))
        row, end = 0, -1
        while row < len(clocks):
            end = next(ends) if row > end else end
            reading = _Reading(int(steps[row]), clocks[row], None)
            self.add(log, record_of(row), reading.elapsed_ns, resolution_ns)
            row += 1
            if row <= end and self._begin is not None and self._last == reading:
                enough_ns = self._begin.elapsed_ns + _PRECISE * resolution_ns
                row = bisect_left(clocks, enough_ns, row, end + 1)
                if row > end and reading.step < int(steps[end]):
                    self._last, self._pending = _Reading(int(steps[end]), clocks[end], None), record_of(end)

    def add_many(self, log: JobLogBuilder, plain: PlainLines, resolution_ns: int | Int64) -> None:
        """Add many readings of the clock, which are the ``wall_ns`` of the lines."""
        numbers = np.asarray(plain.iteration, np.int64).tolist()
        resolutions = np.broadcast_to(np.asarray(resolution_ns, np.int64), len(numbers)).tolist()
        readings = list(zip(numbers, plain.wall_ns.tolist(), resolutions, strict=True))
        row = 0
        while row < len(readings):
            begin, last = self._begin, self._last
            step, elapsed_ns, resolution = readings[row]
            if begin is None or last is None or step <= last.step or elapsed_ns < last.elapsed_ns:
                self.add(log, Record(step), elapsed_ns, resolution, label=plain.label)
                row += 1
            else:
                row += self._add_forward(log, plain.label, islice(readings, row, None), begin, last)

    def _add_forward(
        self,
        log: JobLogBuilder,
        label: bytes | None,
        readings: Iterable[tuple[int, int, int]],
        begin: _Reading,
        last: _Reading,
    ) -> int:
        """Add readings while steps and clock go on; returns how many these are."""
        step, clock_ns, first_step, begin_ns = last.step, last.elapsed_ns, begin.step, begin.elapsed_ns
        precise: list[int] = []
        wall_ns: list[int] = []
        rows = 0
        for number, elapsed_ns, resolution_ns in readings:
            if number <= step or elapsed_ns < clock_ns:
                break
            step, clock_ns, self._resolution_ns = number, elapsed_ns, resolution_ns
            rows += 1
            if clock_ns - begin_ns >= _PRECISE * resolution_ns:
                wall_ns.append((clock_ns - begin_ns) // (step - first_step))
                precise.append(step)
                first_step, begin_ns = step, clock_ns
        lines = PlainLines(np.asarray(precise, np.int64), np.asarray(wall_ns, np.int64), label=label)
        add_evenly(log.series_of(self.source), lines, 0, len(precise))
        self._begin, self._last = _Reading(first_step, begin_ns, None), _Reading(step, clock_ns, None)
        self._pending = None if precise and precise[-1] == step else Record(step)
        return rows

    def restart(self, log: JobLogBuilder) -> None:
        """The clock begins anew, as at the start of an epoch; what it has not yet measured precisely has no time."""
        if self._pending is not None:
            log.series_of(self.source).add(replace(self._pending, wall_ns=None))
        self._pending = self._begin = None

    def close(self, log: JobLogBuilder) -> None:
        """Add the last iteration, without a time where it is not precise, unless nothing else is timed."""
        begin, last, pending = self._begin, self._last, self._pending
        if begin is not None and last is not None and pending is not None:
            series, moved_ns = log.series_of(self.source), last.elapsed_ns - begin.elapsed_ns
            if not series.has_times and moved_ns >= _USABLE * self._resolution_ns:
                steps = last.step - begin.step
                pending.wall_ns = moved_ns // steps
                pending.wall_resolution_ns = max(self._resolution_ns // steps, 1)
                series.add(pending)
                self._pending = None
        self.restart(log)
