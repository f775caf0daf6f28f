"""Step times from the dates in front of lines, for logs that print no time of their own."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.rules import LineMatch


@dataclass(slots=True)
class _Tick:
    iteration: int
    stamp_ns: int
    attempt: int


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
        series = log.series_of(self.source)
        series.clock_runs_on = True
        stamp = stamp_ns if stamp_ns is not None else line.timestamp_ns
        last = self._last
        if last is not None and stamp is not None and record.iteration is not None:
            is_later = record.iteration > last.iteration and stamp > last.stamp_ns
            if is_later and last.attempt == series.attempt and series.is_continuing:
                record.wall_ns = (stamp - last.stamp_ns) // (record.iteration - last.iteration)
        is_new = series.add(record, line.label)
        if is_new and stamp is not None and record.iteration is not None:
            self._last = _Tick(record.iteration, stamp, series.attempt)
        return is_new
