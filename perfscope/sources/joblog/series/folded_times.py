"""The records of a log that is too long to keep them one by one, counted by time.

The counts are exact and small: logs print tenths of milliseconds, so times repeat.
"""

from __future__ import annotations

from array import array
from typing import ClassVar

import numpy as np

from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.sources.joblog.repeats.repetition import ALIKE, ANY_NUMBER, AddedOf
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.series.record_columns import as_integers
from perfscope.tables.columns import Int64
from perfscope.tables.joblog import FoldedRecords

_MERGE_AT_SINGLE = 1 << 12
_MERGE_AT_ROWS = 1 << 19
_FEWEST_OF_A_COUNT = 64  # places of the counts for each time: with more, sorting is faster
_WIDEST_NS = 400 * NS_PER_S


class FoldedTimes:
    """Distinct times and how often each occurred, with what else is summed over the records.

    Attributes:
        records: How many there are.
        skipped: Skipped iterations.
        last_loss: The last loss.
    """

    COUNTS: ClassVar = (
        "records",
        "skipped",
        "_wall_total_ns",
        "_samples",
        "_nan",
        "_disturbed",
        "_count",
        "_warmups",
    )

    def __init__(self) -> None:
        self.records = 0
        self._wall_ns = np.empty(0, np.int64)
        self._count = np.empty(0, np.int64)
        self._pending: list[Int64] = []
        self._pending_rows = 0
        self._single = array("q")
        self._wall_total_ns = 0
        self._samples: int | None = 0
        self.skipped = 0
        self._nan = 0
        self._disturbed = 0
        self._warmups: list[int] = []
        self.last_loss: float | None = None
        self._last_loss_scale: float | None = None

    def add(self, record: Record, *, is_disturbed: bool, begins: bool) -> None:
        """Add one record; ``begins`` says that it is the first one of a start."""
        self.records += 1
        self.skipped += record.skipped
        self._nan += record.nan
        self._samples = None if self._samples is None or record.samples is None else self._samples + record.samples
        self.set_last(record)
        if record.wall_ns is None:
            return
        self._wall_total_ns += record.wall_ns
        if begins:
            self._warmups.append(record.wall_ns)
        elif is_disturbed:
            self._disturbed += 1
        else:
            self._single.append(record.wall_ns)
            if len(self._single) >= _MERGE_AT_SINGLE:
                self._merge()

    def set_last(self, record: Record) -> None:
        """Keep the figures of a record, or of a copy, as those of the last one."""
        self.last_loss = record.loss if record.loss is not None else self.last_loss
        self._last_loss_scale = record.loss_scale if record.loss_scale is not None else self._last_loss_scale

    def add_many(self, wall_ns: Int64, samples: int | None, begins: Int64 | None = None) -> None:
        """Add many undisturbed records and their samples, None where those are unknown; a time above 0 is one.

        ``begins`` are the rows of the first ones of a start, if there are any.
        """
        self.records += len(wall_ns)
        if begins is not None and len(begins):
            first = wall_ns[begins]
            self._warmups.extend(first[first > 0].tolist())
            self._wall_total_ns += int(first[first > 0].sum())
            wall_ns = np.delete(wall_ns, begins)
        timed = wall_ns if wall_ns.min(initial=1) > 0 else wall_ns[wall_ns > 0]
        self._wall_total_ns += int(timed.sum())
        self._samples = None if self._samples is None or samples is None else self._samples + samples
        self._pending.append(timed)
        self._pending_rows += len(timed)
        if self._pending_rows >= _MERGE_AT_ROWS:
            self._merge()

    def table(self, interval: int, last_iteration: int | None) -> FoldedRecords:
        """The counts, each record the mean of ``interval`` iterations."""
        self._merge()
        return FoldedRecords(
            wall_ns=self._wall_ns,
            count=self._count,
            records=self.records,
            iterations=self.records * interval,
            last_iteration=last_iteration,
            wall_total_ns=self._wall_total_ns * interval,
            samples=None if self._samples is None else self._samples * interval,
            skipped=self.skipped,
            nan=self._nan,
            disturbed=self._disturbed,
            warmups=tuple(self._warmups),
            last_loss=self.last_loss,
            last_loss_scale=self._last_loss_scale,
        )

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted, where the same times began the starts of each repetition."""
        added, times = added_of(self)["_warmups"], self._warmups
        last = times[len(times) - added :]
        return ANY_NUMBER if not added or times[-ALIKE * added :] == last * ALIKE else 0

    def settle(self) -> None:
        """Count the times that wait for it."""
        if self._single or self._pending:
            self._merge()

    def _merge(self) -> None:
        """Merge the new times into the sorted distinct ones; a stable sort of two sorted lists takes one pass."""
        values, counts = _count(np.concatenate((*self._pending, as_integers(self._single))))
        joined = np.concatenate((self._wall_ns, values))
        if len(joined):
            order = np.argsort(joined, kind="stable")
            ascending = joined[order]
            first = np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1))
            self._wall_ns = ascending[first]
            self._count = np.add.reduceat(np.concatenate((self._count, counts))[order], first)
        self._pending = []
        self._pending_rows = 0
        self._single = array("q")


def _count(times: Int64) -> tuple[Int64, Int64]:
    """The distinct times, ascending, and how often each occurs."""
    if len(times) and (width := int(times.max()) - (least := int(times.min()))) < _WIDEST_NS:
        above = times - least
        tenths = above // (NS_PER_MS // 10)
        is_dense = width // (NS_PER_MS // 10) <= _FEWEST_OF_A_COUNT * len(times)
        if is_dense and (tenths * (NS_PER_MS // 10) == above).all():  # counting takes one pass, sorting many
            counts = np.bincount(tenths, minlength=width // (NS_PER_MS // 10) + 1)
            places = np.flatnonzero(counts)
            return least + places * (NS_PER_MS // 10), counts[places]
    values, counts = np.unique(times, return_counts=True)
    return values, counts
