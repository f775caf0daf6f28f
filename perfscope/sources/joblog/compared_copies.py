"""The records of a log that repeat those of another process: how many, and whether they can be of the same job."""

from __future__ import annotations

from perfscope.sources.joblog.kept_records import KeptRecords
from perfscope.sources.joblog.latest_records import COMPARED_ROWS, LatestRecords
from perfscope.sources.joblog.record import Record

#: After so many copies ranks print in turn, or again.
MANY_COPIES = 128


class ComparedCopies(KeptRecords):
    """Records, and their copies; see ``IterationSeries``."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0
        self._since_new = 0
        self._latest = LatestRecords()

    def add_copies(self, count: int, compared: int) -> None:
        """Count records that repeat others, and how many of these were compared and found alike."""
        self.copies += count
        self._latest.compared += compared

    @property
    def is_repeating(self) -> bool:
        """Whether many records came since the last new one, which is so where ranks without a label have finished."""
        return self._since_new >= MANY_COPIES

    def _on_copy(self, record: Record, number: int) -> None:
        """Count a repeated record, and whether it can be one of the same iteration of the same job."""
        self.copies += 1
        self._since_new += 1
        original = self._find_latest(number)
        if original is not None and record.wall_ns is not None:
            self._latest.compare(record, *original)

    def _find_latest(self, number: int) -> tuple[int | None, int | None] | None:
        """Time and samples of the record of an iteration among the last ones; None where there is none."""
        return self._latest.find(number) if self._latest else self._columns.find_latest(number, COMPARED_ROWS)
