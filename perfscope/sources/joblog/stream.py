"""What one label's processes have printed: whether the next number is a repeat of theirs, or a restart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

#: Iterations that processes may be apart.
SKEW = 4
#: Numbers that are remembered.
RECENT = 64


@dataclass(slots=True)
class Stream:
    """What has been printed with one label.

    Attributes:
        last: The largest number of its attempt.
        attempt: Which attempt that is.
        seen: How often each number of the attempt was printed, of the latest ones.
        processes: How many print with this label; None until enough iterations have told.
    """

    last: int
    attempt: int
    seen: Counter[int]
    processes: int | None = None

    def forget(self, interval: int) -> None:
        """Learn from numbers that all have printed, and drop them."""
        old = [number for number in self.seen if number < self.last - SKEW * interval]
        if old:
            counts = Counter(self.seen[number] for number in old)
            self.processes = max(counts, key=lambda count: (counts[count], count))
        if len(self.seen) > RECENT:
            for number in old[: len(self.seen) - RECENT]:
                del self.seen[number]

    def repeats(self, number: int) -> bool:
        """Whether a number that is not the next one is another process's; if not, its own went back."""
        times = self.seen[number]
        if self.processes is None:
            return number == self.last or max(self.seen.values(), default=0) > 1
        # A line that is there twice is a slip of the pen; a restart at the very last number would be rare.
        return 0 < times < (max(self.processes, 2) if number == self.last else self.processes)
