"""Sets of time as sorted, disjoint, half-open intervals: union, difference, intersection and measure, in integers.

Everything that is said about overlap and idle time is arithmetic on these sets. No float is involved, so the parts add
up to the whole exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from perfscope.tables.columns import Int64


def _nothing() -> Int64:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of moments.

    Attributes:
        start: Where each interval begins, ascending.
        end: Where it ends; greater than its start and smaller than the next one's.
    """

    start: Int64 = field(default_factory=_nothing)
    end: Int64 = field(default_factory=_nothing)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def measure(self) -> int:
        """Total length."""
        return int((self.end - self.start).sum())

    def __or__(self, other: Intervals) -> Intervals:
        return union(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    def __and__(self, other: Intervals) -> Intervals:
        return _intersect(self, other)

    def __sub__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self
        return self & other.gaps(int(self.start[0]), int(self.end[-1]))

    def gaps(self, start: int, end: int) -> Intervals:
        """What of [start, end) is not in the set."""
        if end <= start:
            return Intervals()
        inside = self.clip(start, end)
        begins = np.concatenate([[start], inside.end]).astype(np.int64)
        ends = np.concatenate([inside.start, [end]]).astype(np.int64)
        kept = begins < ends
        return Intervals(begins[kept], ends[kept])

    def clip(self, start: int, end: int) -> Intervals:
        """What of the set lies in [start, end)."""
        begins, ends = np.maximum(self.start, start), np.minimum(self.end, end)
        kept = begins < ends
        return Intervals(begins[kept], ends[kept])


def union(start: Int64, end: Int64) -> Intervals:
    """The moments that any of the intervals covers; they may overlap, touch and be empty, in any order."""
    kept = start < end
    start, end = start[kept], end[kept]
    if not len(start):
        return Intervals()
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return Intervals(start[opens], reach[closes])


def _intersect(one: Intervals, other: Intervals) -> Intervals:
    """Where both sets are open: a sweep over their edges."""
    if not len(one) or not len(other):
        return Intervals()
    edges = np.concatenate([one.start, other.start, one.end, other.end])
    change = np.repeat(np.array([1, -1], np.int64), len(one) + len(other))
    # At one moment an end comes before a start, so that intervals that only touch share nothing.
    order = np.lexsort((change, edges))
    depth = np.cumsum(change[order])
    opened = np.flatnonzero(depth > 1)
    return Intervals(edges[order][opened], edges[order][opened + 1])
