"""What follows from the records of a log that are kept, and from those that were folded: medians, spans, tables."""

from __future__ import annotations

from perfscope.sources.joblog.series.folded_times import FoldedTimes
from perfscope.sources.joblog.series.gaps import Gaps
from perfscope.sources.joblog.series.record_columns import RecordColumns
from perfscope.tables.joblog import FoldedRecords, Iterations


class KeptRecords:
    """Records that are kept, and those that are folded; see ``IterationSeries``, which adds them."""

    def __init__(self) -> None:
        self.covers_gaps, self.measures_from_zero = False, True
        self.expects_gaps = False
        self.starts_over = False
        self.untimed_after_start = 0
        self.stated_interval: int | None = None
        self.starts: list[int] = []  # the iteration that each start goes on from, where the log states it
        self.last: int | None = None
        self.folded_times = FoldedTimes()
        self._gaps = Gaps()
        self._columns = RecordColumns()

    def __len__(self) -> int:
        return len(self._columns) + self.folded_times.records

    def settle(self) -> None:
        """Put records that wait to be written or counted into their place."""
        self._columns.write()
        self.folded_times.settle()

    def interval(self) -> int:
        """How many iterations lie between two records: what occurs most often, 1 without two records."""
        return self._gaps.usual

    @property
    def iterations_per_record(self) -> int:
        """How many iterations a record is the mean of; a stated number that the records contradict is not believed."""
        if not self.stated_interval:
            return self.interval()
        return min(self.stated_interval, self.interval()) if self._gaps.counts else self.stated_interval

    @property
    def irregular_gaps(self) -> int:
        """Places where more iterations lie between two records than elsewhere, and no record covers them."""
        if self.covers_gaps or self.expects_gaps:
            return 0
        return self._gaps.count_above_usual()

    @property
    def has_times(self) -> bool:
        """Whether a kept record has a time."""
        return self._columns.has_times

    def median_ns(self) -> int | None:
        """Median time of the kept records; None without one."""
        return self._columns.median_ns()

    def median_samples_per_s(self) -> float | None:
        """Median throughput of the kept records, as the log states it; None without one."""
        return self._columns.median_samples_per_s()

    def set_times_by_throughput(self, samples: int) -> None:
        """Set the time of every record without one to ``samples``, the batch, divided by its throughput."""
        self._columns.set_times_by_throughput(samples)

    def drop_times_after_starts(self) -> None:
        """Take the times of the kept records that follow the first one of a start too closely."""
        self._columns.drop_times_after_starts(self.untimed_after_start)

    def moments(self) -> list[int]:
        """The numbers of the kept records in a ``MomentsBuilder``."""
        return self._columns.moments()

    def iterations(self) -> Iterations:
        """The kept records as a table."""
        if self.covers_gaps:
            first_span = None if self.measures_from_zero else self.interval()
            return self._columns.table(None, first_span=first_span, starts=self.starts)
        return self._columns.table(self.iterations_per_record, starts_over=self.starts_over)

    def folded(self) -> FoldedRecords | None:
        """The folded records; None where there are none."""
        return self.folded_times.table(self.iterations_per_record, self.last) if self.folded_times.records else None
