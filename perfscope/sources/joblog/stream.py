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
            self.processes = max(self.processes or 0, *(self.seen[number] for number in old))
        if len(self.seen) > RECENT:
            for number in old[: len(self.seen) - RECENT]:
                del self.seen[number]

    def repeats(self, number: int) -> bool:
        """Whether a number that is not the next one is another process's; if not, its own went back."""
        times = self.seen[number]
        if self.processes is not None:
            return 0 < times < self.processes
        return number == self.last or max(self.seen.values(), default=0) > 1
