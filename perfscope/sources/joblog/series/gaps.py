"""How many iterations lie between two records, and how often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf, is_far
from perfscope.tables.columns import Int64


@dataclass(slots=True)
class Gaps:
    """The gaps between records that follow each other.

    Attributes:
        counts: How often each gap occurred.
        usual: The one that occurs most often, of several the smallest; 1 without any.
    """

    COUNTS: ClassVar = ("counts",)

    counts: Counter[int] = field(default_factory=Counter)
    usual: int = 1

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted where the usual gap is far ahead of the others, or stays as far ahead."""
        added, usual = added_of(self)["counts"], self.usual
        least = added.get(usual, 0)
        is_certain = all(
            added[gap] == least
            or (added[gap] < least and is_far(self.counts[usual] - count, least - added[gap], least))
            for gap, count in self.counts.items()
        )
        return ANY_NUMBER if is_certain else 0

    def add(self, gap: int, times: int = 1) -> None:
        """Add a gap."""
        self.counts[gap] += times
        if (self.counts[gap], -gap) > (self.counts[self.usual], -self.usual):
            self.usual = gap

    def add_many(self, gaps: Int64) -> None:
        """Add many gaps."""
        if len(gaps) and (gaps == gaps[-1]).all():
            self.add(int(gaps[-1]), len(gaps))
            return
        for gap, times in zip(*np.unique(gaps, return_counts=True), strict=True):
            self.add(int(gap), int(times))

    def copy(self) -> Gaps:
        """A copy of its own."""
        return Gaps(self.counts.copy(), self.usual)

    def count_above_usual(self) -> int:
        """How many gaps are larger than the usual one."""
        return sum(count for gap, count in self.counts.items() if gap > self.usual)
