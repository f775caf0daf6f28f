"""Sets of time as sorted, disjoint, half-open intervals: union, difference, intersection and measure, in integers.

Overlap and idle time are arithmetic on these sets. No float is involved, so the parts add up to the window exactly.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct, field

from perfscope.tables.columns import Bool, Int64, nothing


class TimeSpans(Protocol):
    """A table whose rows have a start and an end: device events, or spans of the host."""

    @property
    def start_ns(self) -> Int64:
        """When each began."""

    @property
    def end_ns(self) -> Int64:
        """When each ended."""


class Intervals(Struct, frozen=True, eq=False):
    """A set of moments: disjoint intervals, ascending, none of which touches the next."""

    start: Int64 = field(default_factory=nothing)
    end: Int64 = field(default_factory=nothing)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def measure(self) -> int:
        """Total length."""
        return int((self.end - self.start).sum())

    def __or__(self, right: Intervals) -> Intervals:
        return union(np.concatenate([self.start, right.start]), np.concatenate([self.end, right.end]))

    def __and__(self, right: Intervals) -> Intervals:
        return _intersect(self, right)

    def __sub__(self, right: Intervals) -> Intervals:
        if not len(self) or not len(right):
            return self
        return self & right.gaps(int(self.start[0]), int(self.end[-1]))

    def gaps(self, start: int, end: int) -> Intervals:
        """The part of [start, end) that is not in the set."""
        if end <= start:
            return Intervals()
        inside = self.clip(start, end)
        begins = np.concatenate([[start], inside.end]).astype(np.int64)
        ends = np.concatenate([inside.start, [end]]).astype(np.int64)
        is_proper = begins < ends
        return Intervals(begins[is_proper], ends[is_proper])

    def clip(self, start: int, end: int) -> Intervals:
        """The part of the set that lies in [start, end)."""
        begins, ends = np.maximum(self.start, start), np.minimum(self.end, end)
        is_proper = begins < ends
        return Intervals(begins[is_proper], ends[is_proper])

    def measure_within(self, start: Int64, end: Int64) -> Int64:
        """How much of the set lies in each of some intervals [start, end)."""
        if not len(self):
            return np.zeros(len(start), np.int64)
        before = self.measure_before(np.stack([start, end], axis=1).reshape(-1)).reshape(-1, 2)
        return np.asarray(before[:, 1] - before[:, 0])

    def measure_before(self, moments: Int64) -> Int64:
        """How much of the set lies before each moment."""
        if not len(self):
            return np.zeros(len(moments), np.int64)
        total = np.concatenate([[0], np.cumsum(self.end - self.start)])
        begun = np.searchsorted(self.start, moments, side="right")
        last = np.maximum(begun - 1, 0)
        of_last = np.minimum(moments, self.end[last]) - self.start[last]
        return np.where(begun > 0, total[last] + of_last, 0)


def covered(spans: TimeSpans, rows: Bool | Int64) -> Intervals:
    """The moments that any of some rows covers."""
    return union(spans.start_ns[rows], spans.end_ns[rows])


def union(start: Int64, end: Int64) -> Intervals:
    """The moments that any of the intervals covers; they may overlap, touch and be empty, in any order."""
    is_proper = start < end
    start, end = start[is_proper], end[is_proper]
    if not len(start):
        return Intervals(start, end)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return Intervals(start[opens], reach[closes])


def _intersect(first: Intervals, second: Intervals) -> Intervals:
    """The moments of both sets: each interval of the smaller one with those of the larger one that it meets."""
    small, large = sorted((first, second), key=len)
    # Intervals that only touch share nothing.
    begin = np.searchsorted(large.end, small.start, side="right")
    meets = np.searchsorted(large.start, small.end, side="left") - begin
    row = np.repeat(np.arange(len(small)), meets)
    other = np.arange(len(row)) + np.repeat(begin - np.cumsum(meets) + meets, meets)
    return Intervals(np.maximum(small.start[row], large.start[other]), np.minimum(small.end[row], large.end[other]))
