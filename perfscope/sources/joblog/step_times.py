"""Step times of logs that print none: from a clock that runs since the start, from dates, and steps over all epochs.

The time of a step is a difference of two readings. Readings of a rounded clock are joined until it has moved far enough
for its rounding to matter little, so that whole seconds say enough about short steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.records import Record, RecordSeries
from perfscope.sources.joblog.resolve import MOST_APART, SKEW

#: By how many of its last digits a clock has moved where its rounding matters little, and where it is a fifth.
PRECISE = 20
USABLE = 5


def are_alike(first_ns: int, second_ns: int) -> bool:
    """Whether two sources can have timed the same steps."""
    return max(first_ns, second_ns) <= MOST_APART * min(first_ns, second_ns)


class EpochCounter:
    """Turns the number of a step in its epoch into its number over all epochs.

    ``first_epoch`` is the number of the first one, where a log that begins with a later one had others of one length.
    """

    def __init__(self, first_epoch: int | None = None) -> None:
        self._first_epoch = first_epoch
        self._epochs: dict[int, tuple[int, int]] = {}

    def add(self, epoch: int, step: int, length: int = 0) -> int:
        """Record a step of an epoch and return its number over all epochs; ``length`` is 0 where it is unknown."""
        first, largest = self._epochs.get(epoch, (None, 0))
        if first is None:
            first = sum(self._epochs.get(epoch - 1, (0, 0)))
            if not self._epochs and self._first_epoch is not None:
                first = max(epoch - self._first_epoch, 0) * length
        self._epochs[epoch] = (first, max(largest, step, length))
        return first + step


@dataclass(frozen=True, slots=True)
class _Reading:
    step: int
    elapsed_ns: int
    tokens: int | None


class ElapsedClock:
    """Makes the records of one source from readings of its clock, which may run on through evaluations and saves."""

    def __init__(self, series: RecordSeries, *, runs_on: bool = True) -> None:
        self._series = series
        series.clock_runs_on, series.covers_gaps = runs_on, True
        self._begin: _Reading | None = None
        self._last: _Reading | None = None
        self._pending: Record | None = None
        self._resolution_ns = 1

    def add(
        self,
        record: Record,
        elapsed_ns: int,
        resolution_ns: int,
        *,
        tokens: int | None = None,
        label: bytes | None = None,
    ) -> None:
        """Add a reading after the iteration of ``record``; the time of its record is set where it is precise.

        ``resolution_ns`` is what the clock's last printed digit stands for, ``tokens`` those up to here, of which a
        throughput is made.
        """
        assert record.iteration is not None
        reading = _Reading(record.iteration, elapsed_ns, tokens)
        series, last, begin = self._series, self._last, self._begin
        if last is not None and reading.step <= last.step:
            if reading.step == last.step or reading.step > last.step - SKEW or elapsed_ns > last.elapsed_ns:
                return  # another rank's copy
            self.close()
            series.on_restart()
            last = begin = None
        self._last, self._resolution_ns = reading, resolution_ns
        if last is None or begin is None or elapsed_ns < last.elapsed_ns:
            self.restart()
            self._last = self._begin = reading
            series.add(record, label)
            return
        moved_ns = elapsed_ns - begin.elapsed_ns
        if moved_ns < PRECISE * resolution_ns:
            self._pending = record
            return
        steps = reading.step - begin.step
        record.wall_ns = moved_ns // steps
        record.wall_resolution_ns = max(resolution_ns // steps, 1)
        if tokens is not None and begin.tokens is not None and tokens > begin.tokens:
            record.tokens_per_s = (tokens - begin.tokens) / (moved_ns / NS_PER_S)
        self._begin, self._pending = reading, None
        series.add(record, label)

    def restart(self) -> None:
        """The clock begins anew, as at the start of an epoch; what it has not yet measured precisely has no time."""
        if self._pending is not None:
            self._series.add(msgspec.structs.replace(self._pending, wall_ns=None))
        self._pending = self._begin = None

    def close(self) -> None:
        """Add the last iteration, without a time where it is not precise, unless nothing else is timed."""
        begin, last, pending = self._begin, self._last, self._pending
        if begin is not None and last is not None and pending is not None:
            series, moved_ns = self._series, last.elapsed_ns - begin.elapsed_ns
            if not series.has_times and moved_ns >= USABLE * self._resolution_ns:
                steps = last.step - begin.step
                pending.wall_ns = moved_ns // steps
                pending.wall_resolution_ns = max(self._resolution_ns // steps, 1)
                series.add(pending)
                self._pending = None
        self.restart()
