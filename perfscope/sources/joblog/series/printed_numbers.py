"""The iteration numbers printed with one label, which show whether a number repeats another process or is a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf, is_far
from perfscope.tables.columns import Int64

#: How many iterations the processes of a job may be apart when they print.
SKEW = 4
#: How many numbers of a label are kept.
RECENT = 64
_DROPPED_AT_ONCE = 16


@dataclass(slots=True)
class PrintedNumbers:
    """The iteration numbers printed with one label.

    Attributes:
        last: The largest number of its attempt.
        attempt: Which attempt that is.
        counts: How often each of the latest numbers of the attempt was printed.
        processes: How many processes print with this label; None until enough iterations were printed to count them.
    """

    COUNTS: ClassVar = ("attempt", "counts")

    last: int
    attempt: int
    counts: Counter[int]
    processes: int | None = None

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted where counts that grow decide nothing: several processes print, not yet counted."""
        largest = max(added_of(self)["counts"].values(), default=0)
        if largest and (self.processes is not None or not is_far(max(self.counts.values()), largest, 2)):
            return 0
        return ANY_NUMBER

    def drop_old(self, interval: int) -> None:
        """Learn the number of processes from iterations that all have printed, and drop the oldest of them."""
        if self.processes is not None and len(self.counts) <= RECENT + _DROPPED_AT_ONCE:
            return
        old = [number for number in self.counts if number < self.last - SKEW * interval]
        if old:
            times_printed = Counter(self.counts[number] for number in old)
            self.processes = max(times_printed, key=lambda times: (times_printed[times], times))
        if len(self.counts) > RECENT:
            for number in old[: len(self.counts) - RECENT]:
                del self.counts[number]

    def add_runs(self, numbers: Sequence[int], interval: int) -> int:
        """Add numbers that go on, each printed by all processes; returns how many, up to where others seem to print."""
        processes, added = self.processes or 1, 0
        while added < len(numbers):
            room = RECENT + _DROPPED_AT_ONCE + 1 - len(self.counts)
            if room <= 0:
                self.last = numbers[added]
                self.drop_old(interval)
                if self.processes != processes or len(self.counts) > RECENT + _DROPPED_AT_ONCE:
                    self.last -= interval
                    break
                continue
            some = numbers[added : added + room]
            self.counts.update(dict.fromkeys(some, processes))
            added, self.last = added + len(some), some[-1]
        return added

    @property
    def is_of_one_process(self) -> bool:
        """Whether a number that is less than the last one is certainly that of a restart."""
        return self.processes == 1 or (self.processes is None and max(self.counts.values(), default=0) <= 1)

    def add_many(self, numbers: Int64, begins: Int64, attempt: int, interval: int) -> None:
        """Add numbers that ascend but at the rows ``begins``, up to an attempt; ``interval`` lies between two."""
        starts = np.unique(np.append(begins, 0))
        lowest, highest = numbers[starts], numbers[np.append(starts[1:], len(numbers)) - 1]
        lowest[0] = min(self.counts, default=lowest[0]) if not (len(begins) and begins[0] == 0) else lowest[0]
        if len(begins):
            self.counts = Counter()
        self.counts.update(numbers[starts[-1] if len(begins) else 0 :][-RECENT:].tolist())
        self.last, self.attempt = int(numbers[-1]), attempt
        if self.processes is None and (highest - lowest > SKEW * interval).any():
            self.processes = 1
        self.drop_old(interval)

    def are_repeats(self, numbers: Int64) -> bool:
        """Whether ``is_repeat`` holds for many numbers, none of them a new one, in any order."""
        if self.processes is not None or numbers.max() > self.last:
            return False
        return max(self.counts.values(), default=0) > 1 or bool((numbers == self.last).all())

    def is_repeat(self, number: int) -> bool:
        """Whether a number that does not grow was printed by another process; if not, the process itself went back."""
        times = self.counts[number]
        if self.processes is None:
            return number == self.last or max(self.counts.values(), default=0) > 1
        # A line that is printed twice is an accident; a restart at the very last number would be rare.
        return 0 < times < (max(self.processes, 2) if number == self.last else self.processes)
