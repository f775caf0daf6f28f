"""The last records that were folded, with which copies are compared: the ranks of a job take the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar

import numpy as np

from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf
from perfscope.sources.joblog.series.record import Record
from perfscope.sources.joblog.splitting.split_block import Numbers
from perfscope.tables.columns import Bool, Int64

#: With so many of the last records a copy is compared.
COMPARED_ROWS = 8
#: The ranks of a job wait for each other in every iteration.
MOST_APART = 1.25
_FEWEST_UNLIKE = 3


class LatestRecords:
    """Number, time and samples of the last records, and what comparing copies with them has shown.

    Attributes:
        compared: Copies that were compared.
        unlike: Copies with another time or batch.
    """

    COUNTS: ClassVar = ("compared", "unlike")

    def __init__(self) -> None:
        self.compared = 0
        self.unlike = 0
        self._latest: deque[tuple[int | None, int | None, int | None]] = deque(maxlen=COMPARED_ROWS)

    def __bool__(self) -> bool:
        return bool(self._latest)

    @property
    def has_time(self) -> bool:
        """Whether the last one has a time."""
        return bool(self._latest) and self._latest[-1][1] is not None

    @property
    def ascend(self) -> bool:
        """Whether there are some, and each has a larger number than the one before."""
        numbers = [number for number, _, _ in self._latest if number is not None]
        return len(numbers) == len(self._latest) > 0 and all(
            number < following for number, following in pairwise(numbers)
        )

    @property
    def are_of_two_jobs(self) -> bool:
        """Whether most copies are unlike what they repeat."""
        return self.unlike >= _FEWEST_UNLIKE and 2 * self.unlike > self.compared

    def most_repetitions(self, _added_of: AddedOf) -> int:
        """As often as is wanted: nothing is decided by the counts before the end."""
        return ANY_NUMBER

    def append(self, number: int | None, wall_ns: int | None, samples: int | None) -> None:
        """Add a record."""
        self._latest.append((number, wall_ns, samples))

    def extend(self, numbers: Numbers | Iterable[None], wall_ns: Int64, samples: Int64 | None = None) -> None:
        """Add many records, of which the numbers are the last ones; a time or a batch not above 0 is none."""
        times = wall_ns[-COMPARED_ROWS:].tolist()
        batches = [0] * len(times) if samples is None else samples[-COMPARED_ROWS:].tolist()
        for number, time_ns, batch in zip(numbers, times, batches, strict=True):
            latest = None if number is None else int(number)
            self.append(latest, time_ns if time_ns > 0 else None, batch if batch > 0 else None)

    def find(self, number: int) -> tuple[int | None, int | None] | None:
        """Time and samples of the record of an iteration; None where there is none."""
        return next(((wall_ns, samples) for latest, wall_ns, samples in self._latest if latest == number), None)

    def compare(self, record: Record, wall_ns: int | None, samples: int | None) -> None:
        """Compare a copy that has a time with what it repeats."""
        assert record.wall_ns is not None
        is_other_batch = samples is not None and record.samples is not None and samples != record.samples
        low, high = sorted((record.wall_ns, wall_ns or record.wall_ns))
        self.compared += 1
        self.unlike += is_other_batch or high > MOST_APART * low

    def compare_many(self, wall_ns: Int64, samples: Int64 | None, original: tuple[int | None, int | None]) -> None:
        """Compare many copies with what they repeat; those without a time, not above 0, are not compared."""
        is_timed = wall_ns > 0
        first_ns, first_samples = original
        times = wall_ns[is_timed]
        is_unlike = np.maximum(times, first_ns or times) > MOST_APART * np.minimum(times, first_ns or times)
        if samples is not None and first_samples is not None:
            is_unlike |= (samples[is_timed] > 0) & (samples[is_timed] != first_samples)
        self.compared += len(times)
        self.unlike += int(is_unlike.sum())

    def compare_rows(self, numbers: Int64, wall_ns: Int64, samples: Int64 | None, is_new: Bool) -> None:
        """Compare copies among records in turn, none of which goes back to another start, with what they repeat.

        Args:
            numbers: The iterations, of which the new ones ascend, and maybe some that do not belong to them.
            wall_ns: Their times; 0 or less where there is none.
            samples: Their batches; 0 or less where there is none.
            is_new: Which are no copies.
        """
        rows = len(is_new)
        numbers, times = numbers[:rows], wall_ns[:rows]
        if is_new.all():
            return
        batches = np.zeros(rows, np.int64) if samples is None else samples[:rows]
        latest_rows = np.asarray([[value or 0 for value in row] for row in self._latest], np.int64).T
        firsts = np.append(latest_rows[0], numbers[is_new])
        first_ns, first_samples = np.append(latest_rows[1], times[is_new]), np.append(latest_rows[2], batches[is_new])
        copies = np.flatnonzero(~is_new & (times > 0))
        places = np.searchsorted(firsts, numbers[copies])
        latest = len(self._latest) + np.cumsum(is_new)[copies]
        places = np.minimum(places, len(firsts) - 1)
        is_near = (firsts[places] == numbers[copies]) & (places >= latest - COMPARED_ROWS)
        copies, places = copies[is_near], places[is_near]
        copy_ns = times[copies]
        first_of_copy_ns = np.where(first_ns[places] > 0, first_ns[places], copy_ns)
        is_unlike = np.maximum(copy_ns, first_of_copy_ns) > MOST_APART * np.minimum(copy_ns, first_of_copy_ns)
        is_unlike |= (batches[copies] > 0) & (first_samples[places] > 0) & (batches[copies] != first_samples[places])
        self.compared += len(copies)
        self.unlike += int(is_unlike.sum())
