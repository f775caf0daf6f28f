"""The records of one source of step times, in the order of the file, as columns of numbers.

Every record that is printed is kept, those of further ranks too. What is a copy and where the job started again is
decided once, when the log has been read: see ``resolve``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.moments import MomentsBuilder
from perfscope.sources.joblog.resolve import ABSENT, Resolved, resolve
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.joblog import Disturbance, Iterations

#: No count and no time in nanoseconds is larger (two weeks): damaged digits can say anything.
LARGEST_INTEGER = 1 << 50

#: The kinds of disturbance by the number that stands for them in the column, the gravest first.
DISTURBANCES = ("", Disturbance.EVALUATION, Disturbance.SAVE)
_INTEGERS = ("iteration", "wall_resolution_ns", "samples")
_COUNTS = ("skipped", "nan")
#: What is kept of each record, however many there are; the other figures of a ``Record`` follow.
_ALWAYS = ("iteration", "wall_ns", "label", "begins", "disturbed", "stamp_ns", "moment", "samples")
_AT_ONCE = 1 << 12


class Record(msgspec.Struct):
    """One iteration record; see ``perfscope.tables.joblog.Iterations`` for the meaning of its values."""

    iteration: int | None = None
    wall_ns: int | None = None
    samples: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    loss: float | None = None
    loss_scale: float | None = None
    skipped: int = 0
    nan: int = 0
    wall_resolution_ns: int | None = None
    tflops_resolution: float | None = None

    def drop_impossible(self) -> None:
        """Take what no record can have; the number is left."""
        if self.wall_ns is not None and not 0 < self.wall_ns <= LARGEST_INTEGER:
            self.wall_ns = None
        if self.samples is not None and not 0 < self.samples <= LARGEST_INTEGER:
            self.samples = None
        if not 0 <= self.skipped <= LARGEST_INTEGER:
            self.skipped = 0
        if not 0 <= self.nan <= LARGEST_INTEGER:
            self.nan = 0


_FIGURES = tuple(name for name in Record.__struct_fields__ if name not in _ALWAYS)
_FLOATS = tuple(name for name in _FIGURES if name not in (*_INTEGERS, *_COUNTS))
_PLACES = {name: place for place, name in enumerate((*_ALWAYS, *_FIGURES))}
_figures_of = attrgetter(*_FIGURES)


class RecordSeries:
    """The records of one source in one log.

    Attributes:
        clock_runs_on: The time of a record begins at the record before it, so it contains evaluations and saves.
        covers_gaps: A record is the mean since the record before it, however many iterations lie between.
        measures_from_zero: Where records cover gaps, a first record with a time is the mean of all iterations so far.
        expects_gaps: Lines are counted anew in every epoch, so that gaps at its end are no missing records.
        untimed_after_start: How many iterations after the first one of a start have a mean that contains that one.
        starts_over: After a start the first iteration is printed by itself, and is also part of the next record's mean.
        stated_interval: How many iterations lie between two records according to the set-up; None without a statement.
        batch: The samples of a step, of which and the throughput a time follows where a record states none.
    """

    def __init__(self, moments: MomentsBuilder | None = None) -> None:
        self.clock_runs_on = self.covers_gaps = self.expects_gaps = self.starts_over = False
        self.measures_from_zero = True
        self.untimed_after_start = 0
        self.stated_interval: int | None = None
        self.batch: int | None = None
        self.has_times = False
        self._moments = moments
        self._labels: dict[bytes | None, int] = {None: 0}
        self._begins = self._disturbance = 0
        self._first_stamp_ns: int | None = None
        self._waiting: list[tuple[Any, ...]] = []
        self._blocks: list[Float64] = []
        self._rows = 0
        self._resolved: Resolved | None = None

    def add(self, record: Record, label: bytes | None = None, stamp_ns: int | None = None) -> None:
        """Append a record as it is printed, at ``stamp_ns`` where its time is that since the record before it."""
        number = record.iteration
        if number is not None and number > LARGEST_INTEGER:
            return
        record.drop_impossible()
        if stamp_ns is not None:
            self._first_stamp_ns = stamp_ns if self._first_stamp_ns is None else self._first_stamp_ns
            stamp_ns -= self._first_stamp_ns
        self.has_times = self.has_times or record.wall_ns is not None
        moment = self._moments.mark() if self._moments is not None else None
        rank = self._labels.setdefault(label, len(self._labels))
        happened = (rank, self._begins, self._disturbance, stamp_ns, moment)
        self._waiting.append((number, record.wall_ns, *happened, record.samples, *_figures_of(record)))
        self._begins = self._disturbance = 0
        if len(self._waiting) >= _AT_ONCE:
            self._write()
        self._resolved = None

    def add_many(self, iteration: Int64, wall_ns: Int64, samples: Float64) -> None:
        """Append many undisturbed records without a label, of which only these figures are known."""
        self._write()
        block = np.full((len(iteration), len(_ALWAYS)), np.nan, order="F")
        for name, values in (("iteration", iteration), ("wall_ns", wall_ns), ("samples", samples)):
            block[:, _PLACES[name]] = values
        for name in ("label", "begins", "disturbed"):
            block[:, _PLACES[name]] = 0
        block[:1, _PLACES["begins"]], block[:1, _PLACES["disturbed"]] = self._begins, self._disturbance
        self._begins = self._disturbance = 0
        self.has_times = True
        self._keep(block)
        self._resolved = None

    def on_restart(self) -> None:
        """A process begins to train."""
        self._begins = 1

    def on_disturbance(self, kind: Disturbance) -> None:
        """Training is interrupted; where the clock runs on, the time of the next record contains that."""
        if self.clock_runs_on:
            self._disturbance = min(DISTURBANCES.index(kind), self._disturbance or len(DISTURBANCES))

    @property
    def rows(self) -> int:
        """How many records were printed, copies included."""
        return self._rows + len(self._waiting)

    def new_since(self, rows: int) -> int:
        """How many records that are no copies came after the first ``rows`` that were printed."""
        return len(self.resolved.rows) - int(np.searchsorted(self.resolved.rows, rows))

    def __len__(self) -> int:
        return len(self.resolved.rows)

    @property
    def resolved(self) -> Resolved:
        """What are copies, and where the job started again: what ``resolve`` makes of all records so far."""
        if self._resolved is None:
            self._write()
            self._resolved = resolve(self._column)
        return self._resolved

    @property
    def interval(self) -> int:
        """How many iterations lie between two records: what occurs most often, 1 without two records."""
        return self.resolved.interval

    @property
    def irregular_gaps(self) -> int:
        """Places where more iterations lie between two records than elsewhere, and no record covers them."""
        if self.covers_gaps or self.expects_gaps:
            return 0
        return sum(count for gap, count in self.resolved.gaps.items() if gap > self.interval)

    def median_ns(self) -> int | None:
        """Median time of the records; None without one."""
        if not len(self.resolved.rows):
            return None
        times = self._times()
        times = times[~np.isnan(times)]
        return int(np.median(times)) if len(times) else None

    def median_samples_per_s(self) -> float | None:
        """Median throughput of the records, as the log states it; None without one."""
        if not len(self.resolved.rows):
            return None
        speeds = self._column("samples_per_s")
        speeds = speeds[np.isfinite(speeds)]
        return float(np.median(speeds)) if len(speeds) else None

    def moments(self) -> list[int]:
        """The numbers of the records in a ``MomentsBuilder``."""
        moments: list[int] = self._column("moment").astype(np.int64).tolist()
        return moments

    def iterations(self) -> Iterations:
        """The records of one rank as a table."""
        attempt, disturbed = self.resolved.attempt, self.resolved.disturbed
        columns: dict[str, Any] = {name: self._masked(name, np.int64) for name in _INTEGERS}
        columns |= {name: self._masked(name, np.float64) for name in _FLOATS}
        columns |= {name: self._masked(name, np.int64).data for name in _COUNTS}
        kinds, times = np.asarray(DISTURBANCES, np.str_), self._times()
        return Iterations(
            span=self._spans_since() if self.covers_gaps else self._spans(),
            attempt=attempt,
            wall_ns=np.ma.MaskedArray(np.nan_to_num(times).astype(np.int64), mask=np.isnan(times)),
            disturbed=kinds[disturbed],
            **columns,
        )

    def _write(self) -> None:
        if self._waiting:
            self._waiting, waiting = [], self._waiting
            self._keep(np.asarray(waiting, np.float64))

    def _keep(self, block: Float64) -> None:
        self._blocks.append(block)
        self._rows += len(block)

    def _column(self, name: str) -> Float64:
        # Until they are resolved these are all records that were printed.
        place, column = _PLACES[name], np.full(self._rows, np.nan)
        first = 0
        for block in self._blocks:
            if place < block.shape[1]:
                column[first : first + len(block)] = block[:, place]
            first += len(block)
        return column if self._resolved is None else column[self._resolved.rows]

    def _masked(self, name: str, kind: type[np.generic]) -> np.ma.MaskedArray[tuple[int], np.dtype[Any]]:
        values = self._column(name)
        is_absent = ~np.isfinite(values)
        values[is_absent] = 0
        return np.ma.MaskedArray(values.astype(kind), mask=is_absent)

    def _times(self) -> Float64:
        """The times: as they are stated, else from dates, or from the throughput of a known batch."""
        wall_ns = self._column("wall_ns")
        if self._first_stamp_ns is not None:
            wall_ns = np.where(np.isnan(wall_ns), self._times_between_stamps(), wall_ns)
        if self.batch is not None:
            speeds = self._column("samples_per_s")
            is_stated = np.isfinite(speeds) & (speeds > 0)
            times = np.rint(self.batch / np.where(is_stated, speeds, np.nan) * NS_PER_S)
            times[~((times >= 1) & (times <= LARGEST_INTEGER))] = np.nan
            wall_ns = np.where(np.isnan(wall_ns), times, wall_ns)
        if self.untimed_after_start:
            numbers, attempt = self._column("iteration"), self.resolved.attempt
            first = np.flatnonzero(np.diff(attempt, prepend=-1))
            after = numbers - np.repeat(numbers[first], np.diff(first, append=len(numbers)))
            wall_ns[(after > 0) & (after < self.untimed_after_start)] = np.nan
        return wall_ns

    def _times_between_stamps(self) -> Float64:
        """The time since the last record before with a stamp, over the iterations between, in the same start."""
        stamps, numbers, attempt = self._column("stamp_ns"), self._column("iteration"), self.resolved.attempt
        times = np.full(len(stamps), np.nan)
        rows = np.flatnonzero(~np.isnan(stamps) & ~np.isnan(numbers))
        moved, steps = (np.diff(column[rows]).astype(np.int64) for column in (stamps, numbers))
        is_timed = (moved > 0) & (steps > 0) & (np.diff(attempt[rows]) == 0)
        times[rows[1:][is_timed]] = moved[is_timed] // steps[is_timed]
        times[~((times >= 1) & (times <= LARGEST_INTEGER))] = np.nan
        return times

    @property
    def _iterations_per_record(self) -> int:
        """How many iterations a record is the mean of; a stated number that the records contradict is not believed."""
        if not self.stated_interval:
            return self.resolved.interval
        return min(self.stated_interval, self.resolved.interval) if self.resolved.gaps else self.stated_interval

    def _spans_since(self) -> Int64:
        numbers, attempts = _integers(self._column("iteration")), self.resolved.attempt
        span = np.ones(len(numbers), np.int64)
        if not len(numbers):
            return span
        span[1:] = np.where(self._follows(numbers), np.diff(numbers), 1)
        first = np.flatnonzero(np.diff(attempts, prepend=-1))
        timed = first[~np.isnan(self._times()[first]) & (numbers[first] > 0)]
        span[timed] = numbers[timed] if self.measures_from_zero else np.minimum(numbers[timed], self.interval)
        if 0 not in timed and 0 < numbers[0] <= span[1:2].sum():
            span[0] = numbers[0]  # within the first interval of a start from zero
        return span

    def _spans(self) -> Int64:
        """How many iterations each record is the mean of: as many as usual, or fewer where fewer lie between."""
        numbers, attempts, interval = (
            _integers(self._column("iteration")),
            self.resolved.attempt,
            self._iterations_per_record,
        )
        span = np.full(len(numbers), interval or 1, np.int64)
        if not len(numbers):
            return span
        follows = self._follows(numbers)
        since = np.where(follows, np.diff(numbers), interval)
        span[1:] = np.minimum(since, interval)
        first = np.flatnonzero(np.diff(attempts, prepend=-1))
        # What a resumed run counts from is not stated; a first record off the grid is one that is printed by itself.
        early = (numbers[first] > 0) & (numbers[first] < interval)
        span[first[early]] = numbers[first[early]]
        if self.starts_over:
            seconds = first[first + 1 < len(numbers)]
            again = seconds[follows[seconds] & (since[seconds] < interval) & (numbers[seconds] % interval != 0)]
            span[again] = 1
            span[again + 1] = since[again] + 1
        return span

    def _follows(self, numbers: Int64) -> Bool:
        """Which records but the first one follow the one before in the same attempt."""
        attempts = self.resolved.attempt
        follows: Bool = (attempts[1:] == attempts[:-1]) & (numbers[1:] > numbers[:-1]) & (numbers[:-1] != ABSENT)
        return follows


def _integers(values: Float64) -> Int64:
    return np.where(np.isnan(values), ABSENT, values).astype(np.int64)
