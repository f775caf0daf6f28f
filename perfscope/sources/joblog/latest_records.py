"""The last records that were folded, with which copies are compared: the ranks of a job take the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from perfscope.sources.joblog.bulk import Numbers
from perfscope.sources.joblog.record import Record
from perfscope.sources.joblog.repetition import ANY_NUMBER, AddedOf
from perfscope.tables.columns import Int64

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
    def are_of_two_jobs(self) -> bool:
        """Whether most copies are unlike what they repeat."""
        return self.unlike >= _FEWEST_UNLIKE and 2 * self.unlike > self.compared

    def most_repetitions(self, _added_of: AddedOf) -> int:
        """As often as is wanted: nothing is decided by the counts before the end."""
        return ANY_NUMBER

    def append(self, number: int | None, wall_ns: int | None, samples: int | None) -> None:
        """Add a record."""
        self._latest.append((number, wall_ns, samples))

    def extend(self, numbers: Numbers | Iterable[None], wall_ns: Int64) -> None:
        """Add many records, of which the numbers are the last ones; a time that is not above 0 is none."""
        times = wall_ns[-COMPARED_ROWS:].tolist()
        for number, time_ns in zip(numbers, times, strict=True):
            self.append(None if number is None else int(number), time_ns if time_ns > 0 else None, None)

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
