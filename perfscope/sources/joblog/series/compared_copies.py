"""The records of a log that repeat those of another process: how many, and whether they can be of the same job."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeAlias

from perfscope.sources.joblog.series.kept_records import KeptRecords
from perfscope.sources.joblog.series.latest_records import COMPARED_ROWS, LatestRecords
from perfscope.sources.joblog.series.printed_numbers import PrintedNumbers
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.series.turns import Turns

#: After so many copies ranks print in turn, or again.
MANY_COPIES = 128

#: A series, a record that was added to it, and its label.
AddedRecord: TypeAlias = "tuple[ComparedCopies, Record, bytes | None]"


class ComparedCopies(KeptRecords):
    """Records, and their copies; see ``IterationSeries``."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0
        self._since_new = 0
        self._latest = LatestRecords()
        self._numbers: dict[bytes | None, PrintedNumbers] = {}
        self._turns: dict[bytes | None, Turns] = {}
        self._added: list[AddedRecord] | None = None

    @abstractmethod
    def add(self, record: Record, label: bytes | None = None) -> bool:
        """Append a record and return True, unless it is a copy."""

    @abstractmethod
    def add_last_again(self, record: Record, label: bytes | None, times: int) -> bool:
        """Add the last record again for further ranks behind its label; return whether all are copies of it."""

    def observe(self, added: list[AddedRecord] | None) -> None:
        """Tell of each further record that is added, be it a copy or not, until None is given."""
        self._added = added

    def may_be_printed_by(self, processes: int, label: bytes | None) -> bool:
        """Whether no other number of processes is known to print with a label."""
        numbers = self._numbers.get(label)
        return numbers is None or numbers.processes in (None, processes)

    @property
    def mixture(self) -> str | None:
        """Why the records cannot be of one job; None where they can."""
        if any(turns.are_of_two_jobs for turns in self._turns.values()):
            return "records of two jobs take turns: their iteration numbers go to and fro"
        if self._latest.are_of_two_jobs:
            return "records of two jobs take turns: they repeat each iteration with another time or batch"
        return None

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
