"""Step times from a clock that a framework prints: the time since its start, rounded to seconds or milliseconds.

The time of a step is a difference of two readings. Readings are joined until the clock has moved far enough for its
rounding to matter little, so that whole seconds say enough about short steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfscope.sources.joblog.bulk.record_lines import add_evenly
from perfscope.sources.joblog.content.builder import JobLogBuilder
from perfscope.sources.joblog.series.iteration_series import FEW, IterationSeries
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import PlainLines
from perfscope.tables.columns import Bool, Int64

_PRECISE = 20
_USABLE = 5
_FEW_READINGS = 64
_NOWHERE = np.empty(0, np.int64)
#: The row of a reading that waits for the clock to move: none, or one that came before the others.
_NONE, _EARLIER = -1, -2

#: The column of losses among those of many lines: the bits of their numbers, NaN without one.
LOSS = "loss"

#: A reading of fewer steps behind the last one is a copy of another rank's.
SKEW = 4


@dataclass(frozen=True, slots=True)
class _Reading:
    step: int
    elapsed_ns: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class _Readings:
    """Many readings: steps, clocks, what their last digit stands for, records, and where the clock begins anew."""

    steps: Sequence[int]
    clocks_ns: Sequence[int]
    resolutions_ns: Sequence[int]
    record_of: Callable[[int], Record]
    have_loss: bool
    anew: frozenset[int] = frozenset()
    label: bytes | None = None


@dataclass(slots=True)
class _Ends:
    """The rows at which records end, their times, -1 without one, and the steps that each is the mean of."""

    rows: list[int] = field(default_factory=list)
    wall_ns: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, row: int, wall_ns: int, steps: int) -> None:
        """Add a record."""
        self.rows.append(row)
        self.wall_ns.append(wall_ns)
        self.steps.append(steps)

    def add_untimed(self, row: int) -> None:
        """Add a record without a time, if the row is one."""
        if row != _NONE:
            self.add(row, -1, 1)


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
        anew: Int64 = _NOWHERE,
        *,
        have_loss: bool = True,
    ) -> None:
        """Add readings as ``add`` does, one after the other.

        Args:
            log: The log.
            steps: The iteration of each reading.
            clocks_ns: The clock of each.
            resolution_ns: What the clock's last printed digit stands for.
            record_of: Makes the record of a row.
            anew: The rows before which the clock begins anew, as ``restart`` says, ascending.
            have_loss: Whether a record may have a loss.
        """
        resolutions, rows = [resolution_ns] * len(steps), frozenset(anew.tolist())
        self._add_all(log, _Readings(steps.tolist(), clocks_ns.tolist(), resolutions, record_of, have_loss, rows))

    def add_many(self, log: JobLogBuilder, plain: PlainLines, resolution_ns: int | Int64) -> None:
        """Add many readings of the clock, which are the ``wall_ns`` of the lines; ``LOSS`` may be a column of them."""
        steps = np.asarray(plain.iteration, np.int64).tolist()
        resolutions = np.broadcast_to(np.asarray(resolution_ns, np.int64), len(steps)).tolist()
        losses = plain.columns[LOSS].view(np.float64) if LOSS in plain.columns else None

        def record_of(row: int) -> Record:
            return Record(steps[row], loss=None if losses is None or np.isnan(losses[row]) else float(losses[row]))

        have_loss = losses is not None
        self._add_all(
            log, _Readings(steps, plain.wall_ns.tolist(), resolutions, record_of, have_loss, label=plain.label)
        )

    def _add_all(self, log: JobLogBuilder, readings: _Readings) -> None:
        row, rows = 0, len(readings.steps)
        while row < rows:
            if row in readings.anew:
                self.restart(log)
            record, label = readings.record_of(row), readings.label
            self.add(log, record, readings.clocks_ns[row], readings.resolutions_ns[row], label=label)
            row += 1
            if rows - row >= FEW and self._last is not None:
                row = self._add_forward(log, readings, row)

    def _add_forward(self, log: JobLogBuilder, readings: _Readings, first: int) -> int:
        """Add readings from a row on, of which only those that a record ends at are looked at for more.

        Returns the row behind the last one: not the end where the clock of a labelled process goes back.
        """
        assert self._last is not None
        first = self._add_precise(log, readings, first)
        step, clock_ns, resolution_ns = self._last.step, self._last.elapsed_ns, self._resolution_ns
        begin_step, begin_ns = (self._begin.step, self._begin.elapsed_ns) if self._begin is not None else (-1, 0)
        waiting = _NONE if self._pending is None else _EARLIER
        anew, is_labelled, ends = readings.anew, readings.label is not None, _Ends()
        has_times = log.series_of(self.source).has_times
        row = first
        for row in range(first, len(readings.steps)):
            number, now_ns = readings.steps[row], readings.clocks_ns[row]
            if row in anew:
                ends.add_untimed(waiting)
                begin_step, waiting = -1, _NONE
            if number <= step:
                if number > step - SKEW or now_ns > clock_ns:
                    continue  # another rank's copy
                if is_labelled or not has_times:
                    break
                ends.add_untimed(waiting)
                ends.starts.append(len(ends.rows))
                begin_step, waiting = -1, _NONE
            is_anew = begin_step < 0 or now_ns < clock_ns
            if is_anew and is_labelled:
                break
            resolution_ns = readings.resolutions_ns[row]
            if is_anew:
                ends.add_untimed(waiting)
                ends.add(row, -1, 1)
            elif now_ns - begin_ns >= _PRECISE * resolution_ns:
                ends.add(row, (now_ns - begin_ns) // (number - begin_step), number - begin_step)
            else:
                waiting, step, clock_ns = row, number, now_ns
                continue
            begin_step, begin_ns, waiting = number, now_ns, _NONE
            step, clock_ns = number, now_ns
        else:
            row = len(readings.steps)
        self._add_ends(log, readings, ends)
        self._last, self._resolution_ns = _Reading(step, clock_ns, None), resolution_ns
        self._begin = _Reading(begin_step, begin_ns, None) if begin_step >= 0 else None
        if waiting != _EARLIER:
            self._pending = None if waiting == _NONE else readings.record_of(waiting)
        return row

    def _add_precise(self, log: JobLogBuilder, readings: _Readings, first: int) -> int:
        """Add readings that each end a record, up to the first one that does not; returns the row behind them."""
        if self._begin is None or self._pending is not None or self._begin != self._last:
            return first
        moved_ns = readings.clocks_ns[first] - self._begin.elapsed_ns
        if moved_ns < _PRECISE * readings.resolutions_ns[first]:
            return first  # as with whole seconds, mostly
        row, size = first, _FEW_READINGS
        while row < len(readings.steps):
            rows = range(row, min(row + size, len(readings.steps)))
            count = self._add_precise_of(log, readings, rows)
            row, size = row + count, 2 * size
            if count < len(rows):
                break
        return row

    def _add_precise_of(self, log: JobLogBuilder, readings: _Readings, rows: range) -> int:
        """Add the first ones of some readings that each end a record; returns how many, none where these are few."""
        assert self._begin is not None
        places = slice(rows.start, rows.stop)
        steps = np.diff(np.asarray(readings.steps[places], np.int64), prepend=self._begin.step)
        moved_ns = np.diff(np.asarray(readings.clocks_ns[places], np.int64), prepend=self._begin.elapsed_ns)
        is_precise = (steps > 0) & (moved_ns >= _PRECISE * np.asarray(readings.resolutions_ns[places], np.int64))
        if readings.anew:
            is_precise &= [row not in readings.anew for row in rows]
        count = len(rows) if is_precise.all() else int(np.argmin(is_precise))
        if count < FEW:
            return 0
        wall_ns = moved_ns[:count] // steps[:count]
        self._add_ends(log, readings, _Ends(list(rows[:count]), wall_ns.tolist(), steps[:count].tolist()))
        last = rows[count - 1]
        self._begin = self._last = _Reading(readings.steps[last], readings.clocks_ns[last], None)
        self._resolution_ns = readings.resolutions_ns[last]
        return count

    def _add_ends(self, log: JobLogBuilder, readings: _Readings, ends: _Ends) -> None:
        """Add the records that end at rows of readings: at once where the further records of the series are folded."""
        series, earlier = log.series_of(self.source), self._pending

        def record_at(row: int) -> Record:
            return earlier if row == _EARLIER and earlier is not None else readings.record_of(row)

        if not series.is_full or len(ends.rows) < FEW:
            starts = set(ends.starts)
            for added, (row, wall_ns, steps) in enumerate(zip(ends.rows, ends.wall_ns, ends.steps, strict=True)):
                record = record_at(row)
                if wall_ns >= 0:
                    record.wall_ns = wall_ns
                    record.wall_resolution_ns = max(readings.resolutions_ns[row] // steps, 1)
                if added in starts:
                    series.on_restart()
                series.add(record, readings.label)
            return
        numbers = [readings.steps[row] if row != _EARLIER else record_at(row).iteration for row in ends.rows]
        lines = PlainLines(np.asarray(numbers), np.asarray(ends.wall_ns), label=readings.label)
        is_new = _add_lines(series, lines, np.asarray(ends.starts, np.int64))
        if readings.have_loss:
            losses = (record_at(ends.rows[added]).loss for added in np.flatnonzero(is_new)[::-1].tolist())
            series.folded_times.last_loss = next(
                (loss for loss in losses if loss is not None), series.folded_times.last_loss
            )

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


def _add_lines(series: IterationSeries, lines: PlainLines, starts: Int64) -> Bool:
    """Add lines to a series that is full; before the rows ``starts`` the process has started again."""
    rows = len(lines.wall_ns)
    first = int(starts[0]) if len(starts) else rows
    is_new = np.ones(rows, np.bool_)
    is_new[:first] = add_evenly(series, lines, 0, first)
    if first < rows:
        numbers = np.asarray(lines.iteration, np.int64)
        series.on_restart()
        is_new[first] = series.add(Record(int(numbers[first]), int(lines.wall_ns[first])), lines.label)
        if first + 1 < rows:
            rest = slice(first + 1, rows)
            series.fold(numbers[rest], lines.wall_ns[rest], None, lines.label, starts[1:] - first - 1)
    return is_new
