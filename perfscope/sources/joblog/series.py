"""Iteration records as they are read: copies of other ranks dropped, restarts noticed, memory bounded.

Several ranks can print the same iteration, with or without a label in front, at once or some iterations apart. A job
that restarts goes back to the iteration of its checkpoint. Both look like an iteration number that does not grow. A
process counts up, so that each label is followed by itself: where it goes back, its process has started again. Where
several processes share a label, or have none, that first looks like a restart, too; but then numbers repeat, or go
back again at once, and the restart is taken back.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.stream import RECENT, SKEW, Stream
from perfscope.tables.columns import Int64
from perfscope.tables.joblog import Disturbance, Folded, Iterations

#: Records that are kept one by one; a log of more is folded.
KEPT = 1 << 12

_MERGE_AT = 1 << 17
_SUSPECTED = 16
_ABSENT = -1
_KINDS = ("", Disturbance.EVALUATION, Disturbance.SAVE)
_INTEGERS = ("iteration", "attempt", "wall_ns", "disturbed", "samples", "skipped", "nan")
_OPTIONAL = ("wall_ns", "samples")
_INTEGERS_OF_RECORDS = (*_OPTIONAL, "skipped", "nan")
_LARGEST = 1 << 50  # two weeks, as a time; damaged digits can say anything
_FLOATS = ("samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "loss", "loss_scale")


@dataclass(slots=True)
class Record:
    """One iteration record. Absent values are None; see ``perfscope.tables.joblog.Iterations`` for their meaning."""

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


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """What a restart changed that may be none: how much there was before, and what is to be put back."""

    label: bytes | None
    records: int
    attempt: int
    redone: int
    last: int
    gaps: Counter[int]
    seen: Counter[int]


class Series:
    """The iteration records of one source in one log.

    Attributes:
        kept: How many records are kept one by one.
        clock_runs_on: A record's time goes from the record before it, whatever happened between.
        starts_over: The first record of a start is printed by itself, and counted again in the mean of the next one.
        copies: Records that repeated another rank's.
        attempt: Restarts so far.
        redone: Iterations that were done again after a restart.
        last: Number of the last iteration.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self.clock_runs_on = False
        self.starts_over = False
        self.copies = 0
        self.attempt = 0
        self.redone = 0
        self.last: int | None = None
        self._streams: dict[bytes | None, Stream] = {}
        self._suspicion: _Suspicion | None = None
        self._restarting = False
        self._disturbed = 0
        self._gaps: Counter[int] = Counter()
        self._integers = {name: array("q") for name in _INTEGERS}
        self._floats = {name: array("d") for name in _FLOATS}
        self._fold = _Fold()

    def __len__(self) -> int:
        return len(self._integers["wall_ns"]) + self._fold.records

    def restart(self) -> None:
        """A line says that a process begins to train; several ranks may say so."""
        self._restarting = len(self) > 0
        self._streams.clear()
        self._suspicion = None

    def disturb(self, kind: Disturbance) -> None:
        """Something else than training happens; where the clock runs on, the next record's time contains it."""
        if self.clock_runs_on:
            self._disturbed = _KINDS.index(kind)

    def add(self, record: Record, label: bytes | None = None) -> bool:
        """Append a record unless it is another rank's copy of one, or absurd; say whether it was appended."""
        number = record.iteration
        if number is not None and number > _LARGEST:
            return False
        for name in _INTEGERS_OF_RECORDS:
            value = getattr(record, name)
            if value is not None and not 0 < value <= _LARGEST:
                setattr(record, name, None if name in _OPTIONAL else 0)
        if number is not None and not self._restarting and self._is_copy(number, label):
            self.copies += 1
            return False
        begins = self._begin(number, label)
        if self.is_full:
            self._fold.add(record, self._disturbed, begins=begins)
        else:
            self._keep(record)
        self._disturbed = 0
        return True

    def add_folded(self, iterations: Int64, wall_ns: Int64, samples: int | None) -> None:
        """Append many plain records at once: numbers ascending, evenly spaced, beyond the ones that are kept."""
        self._fold.add_many(wall_ns, samples)
        self.last = int(iterations[-1])
        stream = self._streams.get(None)
        processes = (stream.processes if stream else None) or 1  # their numbers grow one by one
        seen = Counter(iterations[-RECENT:].tolist())
        self._streams[None] = Stream(self.last, self.attempt, seen, processes)
        self._suspicion = None

    @property
    def is_full(self) -> bool:
        """Whether further records are folded."""
        return len(self._integers["wall_ns"]) >= self.kept

    @property
    def is_continuing(self) -> bool:
        """Whether the next record follows the last one in the same process."""
        return not self._restarting

    @property
    def is_undisturbed(self) -> bool:
        """Whether nothing is pending that the next record must be told of."""
        return self._disturbed == 0 and not self._restarting

    def interval(self) -> int:
        """How many iterations lie between two records: what occurs most often, 1 where nothing tells."""
        return min(self._gaps, key=lambda gap: (-self._gaps[gap], gap)) if self._gaps else 1

    @property
    def has_intervals(self) -> bool:
        """Whether two records tell how many iterations lie between them."""
        return bool(self._gaps)

    @property
    def irregular(self) -> int:
        """Places where more iterations lie between two records than elsewhere."""
        usual = self.interval()
        return sum(count for gap, count in self._gaps.items() if gap > usual)

    def median_ns(self) -> int | None:
        """Median time of the kept records; None without one."""
        known = [value for value in self._integers["wall_ns"] if value != _ABSENT]
        return int(np.median(known)) if known else None

    def median_samples_per_s(self) -> float | None:
        """Median throughput of the kept records, as the log states it; None without one."""
        known = [value for value in self._floats["samples_per_s"] if not math.isnan(value)]
        return float(np.median(known)) if known else None

    def time_by(self, samples: int) -> None:
        """Give every record without a time the one that its throughput means, for a batch of ``samples``."""
        wall_ns = self._integers["wall_ns"]
        for index, speed in enumerate(self._floats["samples_per_s"]):
            if wall_ns[index] == _ABSENT and speed > 0:
                time_ns = samples / speed * NS_PER_S
                wall_ns[index] = round(time_ns) if 1 <= time_ns <= _LARGEST else _ABSENT

    def iterations(self, interval: int) -> Iterations:
        """The kept records as a table, each the mean of ``interval`` iterations or of those since the record before."""
        number = _masked(self._integers["iteration"])
        span = self._spans(interval)
        floats = {name: _masked_floats(values) for name, values in self._floats.items()}
        kinds = np.asarray(_KINDS, np.str_)
        return Iterations(
            iteration=number,
            span=span,
            attempt=_integers(self._integers["attempt"]),
            wall_ns=_masked(self._integers["wall_ns"]),
            disturbed=kinds[_integers(self._integers["disturbed"])],
            samples=_masked(self._integers["samples"]),
            skipped=_integers(self._integers["skipped"]),
            nan=_integers(self._integers["nan"]),
            **floats,
        )

    def _spans(self, interval: int) -> Int64:
        numbers, attempts = _integers(self._integers["iteration"]), _integers(self._integers["attempt"])
        span = np.full(len(numbers), interval, np.int64)
        if not len(numbers):
            return span
        follows = (attempts[1:] == attempts[:-1]) & (numbers[1:] > numbers[:-1]) & (numbers[:-1] != _ABSENT)
        since = np.where(follows, np.diff(numbers), interval)
        span[1:] = np.minimum(since, interval)
        first = np.flatnonzero(np.diff(attempts, prepend=-1))
        # What a resumed run counts from is not told; a first record off the grid is one that is printed by itself.
        early = (numbers[first] > 0) & (numbers[first] < interval)
        span[first[early]] = numbers[first[early]]
        if self.starts_over:
            seconds = first[first + 1 < len(numbers)]
            again = seconds[follows[seconds] & (since[seconds] < interval) & (numbers[seconds] % interval != 0)]
            span[again] = 1
            span[again + 1] = since[again] + 1
        return span

    def folded(self, interval: int) -> Folded | None:
        """The records beyond those; None where there are none."""
        return self._fold.table(interval, self.last) if self._fold.records else None

    def _is_copy(self, number: int, label: bytes | None) -> bool:
        """Whether a record repeats one of another process; says so of the label's stream."""
        stream = self._streams.get(label)
        if stream is None:
            if self.last is None:
                return False
            self._streams[label] = Stream(number, self.attempt, Counter({number: 1}))
            return number <= self.last
        if self._is_taken_back(stream, number, label):
            stream = self._streams[label]
        if number > stream.last:
            stream.last = number
            if self._gaps:
                stream.forget(self.interval())
        elif stream.repeats(number):
            stream.seen[number] += 1
            return True
        else:
            stream.last, stream.attempt = number, stream.attempt + 1
            stream.seen = Counter()
        stream.seen[number] += 1
        if stream.attempt > self.attempt:
            return False
        return stream.attempt < self.attempt or (self.last is not None and number <= self.last)

    def _is_taken_back(self, stream: Stream, number: int, label: bytes | None) -> bool:
        """Take a suspected restart back, if the numbers do not go on as those of one process do."""
        known = self._suspicion
        if known is None or known.label != label:
            return False
        if stream.last < number <= stream.last + self.interval():
            is_past = number > known.last + SKEW * self.interval()
            if is_past or len(self) > known.records + _SUSPECTED:
                self._suspicion = None
            return False
        self._suspicion = None
        if self.is_full:
            return False
        numbers = self._integers["iteration"]
        kept = [place for place in range(known.records, len(numbers)) if numbers[place] > known.last]
        self.copies += len(numbers) - known.records - len(kept)
        seen = known.seen + Counter(numbers[known.records :])
        for integers in self._integers.values():
            integers[known.records :] = array("q", [integers[place] for place in kept])
        for floats in self._floats.values():
            floats[known.records :] = array("d", [floats[place] for place in kept])
        for place in range(known.records, len(numbers)):
            self._integers["attempt"][place] = known.attempt
        self.attempt, self.redone, self._gaps = known.attempt, known.redone, known.gaps
        self.last = max(known.last, *numbers[known.records :]) if kept else known.last
        self._streams = {label: Stream(self.last, known.attempt, seen)}
        return True

    def _begin(self, number: int | None, label: bytes | None) -> bool:
        """Take note of the number; whether the record begins an attempt."""
        first = len(self) == 0
        back = number is not None and self.last is not None and number <= self.last
        if self._restarting or back:
            self._suspicion = None if self._restarting else self._suspect(label)
            self.attempt += 1
            if back and number is not None and self.last is not None:
                self.redone += self.last - number + 1
        elif number is not None and self.last is not None:
            self._gaps[number - self.last] += 1
        begins = first or self._restarting or back
        self._restarting = False
        if number is not None:
            self.last = number
            stream = self._streams.setdefault(label, Stream(number, self.attempt, Counter({number: 1})))
            stream.last, stream.attempt = number, self.attempt
        return begins

    def _suspect(self, label: bytes | None) -> _Suspicion | None:
        """What to put back if this is no restart; None where it surely is one."""
        stream = self._streams.get(label)
        if stream is None or stream.processes is not None or self.last is None:
            return None
        seen = Counter(dict.fromkeys(self._integers["iteration"][-SKEW:], 1))
        return _Suspicion(label, len(self), self.attempt, self.redone, self.last, Counter(self._gaps), seen)

    def _keep(self, record: Record) -> None:
        integers = self._integers
        integers["iteration"].append(_or_absent(record.iteration))
        integers["attempt"].append(self.attempt)
        integers["wall_ns"].append(_or_absent(record.wall_ns))
        integers["disturbed"].append(self._disturbed)
        integers["samples"].append(_or_absent(record.samples))
        integers["skipped"].append(record.skipped)
        integers["nan"].append(record.nan)
        for name, values in self._floats.items():
            value = getattr(record, name)
            values.append(math.nan if value is None or not math.isfinite(value) else value)


class _Fold:
    """Counts of times, exact and small: logs print tenths of milliseconds, so times repeat."""

    def __init__(self) -> None:
        self.records = 0
        self.wall_ns = np.empty(0, np.int64)
        self.count = np.empty(0, np.int64)
        self.pending: list[Int64] = []
        self.pending_rows = 0
        self.single = array("q")
        self.wall_total_ns = 0
        self.samples: int | None = 0
        self.skipped = 0
        self.nan = 0
        self.disturbed = 0
        self.warmups: list[int] = []
        self.last_loss: float | None = None
        self.last_loss_scale: float | None = None

    def add(self, record: Record, disturbed: int, *, begins: bool) -> None:
        self.records += 1
        self.skipped += record.skipped
        self.nan += record.nan
        self.samples = None if self.samples is None or record.samples is None else self.samples + record.samples
        self.last_loss = record.loss if record.loss is not None else self.last_loss
        self.last_loss_scale = record.loss_scale if record.loss_scale is not None else self.last_loss_scale
        if record.wall_ns is None:
            return
        self.wall_total_ns += record.wall_ns
        if begins:
            self.warmups.append(record.wall_ns)
        elif disturbed:
            self.disturbed += 1
        else:
            self.single.append(record.wall_ns)
            if len(self.single) >= KEPT:
                self._merge()

    def add_many(self, wall_ns: Int64, samples: int | None) -> None:
        self.records += len(wall_ns)
        self.wall_total_ns += int(wall_ns.sum())
        self.samples = None if self.samples is None or samples is None else self.samples + samples
        self.pending.append(wall_ns)
        self.pending_rows += len(wall_ns)
        if self.pending_rows >= _MERGE_AT:
            self._merge()

    def table(self, interval: int, last: int | None) -> Folded:
        self._merge()
        return Folded(
            wall_ns=self.wall_ns,
            count=self.count,
            records=self.records,
            iterations=self.records * interval,
            last_iteration=last,
            wall_total_ns=self.wall_total_ns * interval,
            samples=None if self.samples is None else self.samples * interval,
            skipped=self.skipped,
            nan=self.nan,
            disturbed=self.disturbed,
            warmups=tuple(self.warmups),
            last_loss=self.last_loss,
            last_loss_scale=self.last_loss_scale,
        )

    def _merge(self) -> None:
        """Both lists of distinct times are ascending, so that a stable sort of them joined is one pass."""
        values, counts = np.unique(np.concatenate((*self.pending, _integers(self.single))), return_counts=True)
        joined = np.concatenate((self.wall_ns, values))
        if len(joined):
            order = np.argsort(joined, kind="stable")
            ascending = joined[order]
            first = np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1))
            self.wall_ns = ascending[first]
            self.count = np.add.reduceat(np.concatenate((self.count, counts))[order], first)
        self.pending = []
        self.pending_rows = 0
        self.single = array("q")


def _or_absent(value: int | None) -> int:
    return _ABSENT if value is None else value


def _integers(values: array[int]) -> Int64:
    return np.asarray(values, np.int64)


def _masked(values: array[int]) -> np.ma.MaskedArray[tuple[int], np.dtype[np.int64]]:
    column = _integers(values)
    return np.ma.MaskedArray(np.maximum(column, 0), mask=column == _ABSENT)


def _masked_floats(values: array[float]) -> np.ma.MaskedArray[tuple[int], np.dtype[np.float64]]:
    column = np.asarray(values, np.float64)
    absent = np.isnan(column)
    return np.ma.MaskedArray(np.where(absent, 0.0, column), mask=absent)
