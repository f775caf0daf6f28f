"""How many iterations lie between two records, and how often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Gaps:
    """The gaps between records that follow each other.

    Attributes:
        counts: How often each gap occurred.
        usual: The one that occurs most often, of several the smallest; 1 without any.
    """

    counts: Counter[int] = field(default_factory=Counter)
    usual: int = 1

    def add(self, gap: int, times: int = 1) -> None:
        """Add a gap."""
        self.counts[gap] += times
        if (self.counts[gap], -gap) > (self.counts[self.usual], -self.usual):
            self.usual = gap

    def copy(self) -> Gaps:
        """A copy of its own."""
        return Gaps(self.counts.copy(), self.usual)

    def count_above_usual(self) -> int:
        """How many gaps are larger than the usual one."""
        return sum(count for gap, count in self.counts.items() if gap > self.usual)
