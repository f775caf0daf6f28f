"""Records as columns of numbers while a log is read: eight bytes a figure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite, nan
from operator import attrgetter
from statistics import median

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.series.record import LARGEST_INTEGER, Record
from perfscope.tables.columns import Bool, Int64, MaskedFloat64, MaskedInt64
from perfscope.tables.joblog import Disturbance, Iterations

#: The kinds of disturbance by the number that stands for them in the column.
DISTURBANCES = ("", Disturbance.EVALUATION, Disturbance.SAVE)

_ABSENT = -1
_INTEGERS = (
    "iteration",
    "attempt",
    "wall_ns",
    "wall_resolution_ns",
    "disturbed",
    "samples",
    "skipped",
    "nan",
    "moment",
)
_FLOATS = (
    "samples_per_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "tflops_resolution",
    "loss",
    "loss_scale",
)
_FIELDS = (*(name for name in _INTEGERS if name not in ("attempt", "disturbed")), *_FLOATS)
_fields_of = attrgetter(*_FIELDS)


class RecordColumns:
    """One array a field of ``Record``, and the attempt and the disturbance of each record."""

    def __init__(self) -> None:
        self._written_integers = {name: array("q") for name in _INTEGERS}
        self._written_floats = {name: array("d") for name in _FLOATS}
        self._unwritten: list[tuple[Record, int, int]] = []
        self._has_times = False

    def __len__(self) -> int:
        return len(self._written_integers["wall_ns"]) + len(self._unwritten)

    def append(self, record: Record, attempt: int, disturbance: int) -> None:
        """Append a record; ``disturbance`` is its place in ``DISTURBANCES``."""
        self._unwritten.append((record, attempt, disturbance))
        self._has_times = self._has_times or record.wall_ns is not None

    @property
    def has_times(self) -> bool:
        """Whether a record has a time."""
        return self._has_times

    @property
    def _integers(self) -> dict[str, array[int]]:
        self.write()
        return self._written_integers

    @property
    def _floats(self) -> dict[str, array[float]]:
        self.write()
        return self._written_floats

    def write(self) -> None:
        """Write the last records into the columns; many at once cost less."""
        if not self._unwritten:
            return
        records, attempts, disturbances = zip(*self._unwritten, strict=True)
        columns = zip(*map(_fields_of, records), strict=True)
        for name, values in zip(_FIELDS, columns, strict=True):
            if name in self._written_floats:
                self._written_floats[name].extend([nan if value is None else value for value in values])
            else:
                self._written_integers[name].extend([_ABSENT if value is None else value for value in values])
        self._written_integers["attempt"].extend(attempts)
        self._written_integers["disturbed"].extend(disturbances)
        self._unwritten = []

    def iterations_from(self, row: int) -> list[int]:
        """The numbers of the records from a row on; a negative row counts from the end."""
        return self._integers["iteration"][row:].tolist()

    def moments(self) -> list[int]:
        """The number of each record among those that a ``MomentsBuilder`` marked."""
        return self._integers["moment"].tolist()

    def find_latest(self, number: int, rows: int) -> tuple[int | None, int | None] | None:
        """Time and samples of the record of an iteration among the last rows; None where there is none."""
        numbers = self._integers["iteration"][-rows:]
        if number not in numbers:
            return None
        row = numbers.index(number) - len(numbers)
        wall_ns, samples = self._integers["wall_ns"][row], self._integers["samples"][row]
        return None if wall_ns == _ABSENT else wall_ns, None if samples == _ABSENT else samples

    def join_attempt(self, first: int, after: int, attempt: int) -> int:
        """Of the rows from ``first`` on, drop those up to iteration ``after`` and give the rest another attempt.

        Returns how many were dropped.
        """
        numbers = self._integers["iteration"]
        rows = [row for row in range(first, len(numbers)) if numbers[row] > after]
        dropped = len(numbers) - first - len(rows)
        for integers in self._integers.values():
            integers[first:] = array("q", [integers[row] for row in rows])
        for floats in self._floats.values():
            floats[first:] = array("d", [floats[row] for row in rows])
        for row in range(first, len(numbers)):
            self._integers["attempt"][row] = attempt
        self._has_times = self.median_ns() is not None
        return dropped

    def median_ns(self) -> int | None:
        """Median time; None without one."""
        times = [value for value in self._integers["wall_ns"] if value != _ABSENT]
        return int(median(times)) if times else None

    def median_samples_per_s(self) -> float | None:
        """Median throughput as the log states it; None without one."""
        speeds = [value for value in self._floats["samples_per_s"] if isfinite(value)]
        return float(median(speeds)) if speeds else None

    def set_times_by_throughput(self, samples: int) -> None:
        """Set the time of every record without one to ``samples``, the batch, divided by its throughput."""
        wall_ns = self._integers["wall_ns"]
        for row, speed in enumerate(self._floats["samples_per_s"]):
            if wall_ns[row] == _ABSENT and speed > 0 and isfinite(speed):
                time_ns = samples / speed * NS_PER_S
                wall_ns[row] = round(time_ns) if 1 <= time_ns <= LARGEST_INTEGER else _ABSENT
        self._has_times = self.median_ns() is not None

    def drop_times_after_starts(self, iterations: int) -> None:
        """Take the time of every record less than so many iterations behind the first one of its attempt."""
        first = attempt = _ABSENT
        wall_ns, numbers = self._integers["wall_ns"], self._integers["iteration"]
        for row, number in enumerate(numbers):
            if self._integers["attempt"][row] != attempt:
                first, attempt = number, self._integers["attempt"][row]
            elif first < number < first + iterations:
                wall_ns[row] = _ABSENT
        self._has_times = self.median_ns() is not None

    def table(
        self,
        interval: int | None,
        *,
        starts_over: bool = False,
        first_span: int | None = None,
        starts: Sequence[int] = (),
    ) -> Iterations:
        """The records as a table, each the mean of ``interval`` iterations, or of all since the record before.

        ``first_span`` is what a first record is then the mean of; None: all since iteration 0. See ``IterationSeries``
        for ``starts_over``. ``starts`` are the iterations that each attempt goes on from, where they are known.
        """
        floats = {name: _masked_floats(values) for name, values in self._floats.items()}
        kinds = np.asarray(DISTURBANCES, np.str_)
        return Iterations(
            iteration=_masked(self._integers["iteration"]),
            span=self._spans_since(first_span, starts)
            if interval is None
            else self._spans(interval, starts_over=starts_over),
            attempt=as_integers(self._integers["attempt"]),
            wall_ns=_masked(self._integers["wall_ns"]),
            wall_resolution_ns=_masked(self._integers["wall_resolution_ns"]),
            disturbed=kinds[as_integers(self._integers["disturbed"])],
            samples=_masked(self._integers["samples"]),
            skipped=as_integers(self._integers["skipped"]),
            nan=as_integers(self._integers["nan"]),
            **floats,
        )

    def _spans_since(self, first_span: int | None, starts: Sequence[int]) -> Int64:
        """How many iterations lie between each record and the one before."""
        numbers, attempts = as_integers(self._integers["iteration"]), as_integers(self._integers["attempt"])
        span = np.ones(len(numbers), np.int64)
        if not len(numbers):
            return span
        span[1:] = np.where(self._follows(), np.diff(numbers), 1)
        first = np.flatnonzero(np.diff(attempts, prepend=-1))
        timed = first[(as_integers(self._integers["wall_ns"])[first] != _ABSENT) & (numbers[first] > 0)]
        span[timed] = numbers[timed] if first_span is None else np.minimum(numbers[timed], first_span)
        for row in np.setdiff1d(first, timed).tolist():
            attempt, usual = int(attempts[row]), int(span[row + 1]) if row + 1 < len(span) else 0
            if attempt < len(starts) and 0 < numbers[row] - starts[attempt] <= usual:
                span[row] = numbers[row] - starts[attempt]
        return span

    def _spans(self, interval: int, *, starts_over: bool) -> Int64:
        """How many iterations each record is the mean of: ``interval``, or fewer where fewer lie between."""
        numbers, attempts = as_integers(self._integers["iteration"]), as_integers(self._integers["attempt"])
        span = np.full(len(numbers), interval or 1, np.int64)
        if not len(numbers):
            return span
        follows = self._follows()
        since = np.where(follows, np.diff(numbers), interval)
        span[1:] = np.minimum(since, interval)
        first = np.flatnonzero(np.diff(attempts, prepend=-1))
        # What a resumed run counts from is not stated; a first record off the grid is one that is printed by itself.
        early = (numbers[first] > 0) & (numbers[first] < interval)
        span[first[early]] = numbers[first[early]]
        if starts_over:
            seconds = first[first + 1 < len(numbers)]
            again = seconds[follows[seconds] & (since[seconds] < interval) & (numbers[seconds] % interval != 0)]
            span[again] = 1
            span[again + 1] = since[again] + 1
        return span

    def _follows(self) -> Bool:
        """Which records but the first one follow the one before in the same attempt."""
        numbers, attempts = as_integers(self._integers["iteration"]), as_integers(self._integers["attempt"])
        follows: Bool = (attempts[1:] == attempts[:-1]) & (numbers[1:] > numbers[:-1]) & (numbers[:-1] != _ABSENT)
        return follows


def as_integers(values: array[int]) -> Int64:
    """A column as an array of its own."""
    return np.asarray(values, np.int64)


def _masked(values: array[int]) -> MaskedInt64:
    column = as_integers(values)
    return np.ma.MaskedArray(np.maximum(column, 0), mask=column == _ABSENT)


def _masked_floats(values: array[float]) -> MaskedFloat64:
    column = np.asarray(values, np.float64)
    absent = ~np.isfinite(column)
    return np.ma.MaskedArray(np.where(absent, 0.0, column), mask=absent)
