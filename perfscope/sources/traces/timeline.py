"""The host's timeline of one window on the clock of another one, in which the host did the same but faster or slower.

Both windows recorded the same launches. A moment between two of them is put at the same share of the way between them,
so that what began before a launch begins before it, and what was inside a range remains inside.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from msgspec import Struct

from perfscope.tables.columns import Bool, Int64


class Timeline(Struct, frozen=True, eq=False):
    """Moments of one window, in order, and the same moments of another one, in order, both in nanoseconds."""

    moments_ns: Int64
    same_ns: Int64

    @classmethod
    def through(cls, moments_ns: Int64, same_ns: Int64) -> Timeline:
        """A timeline through pairs of moments.

        Threads that launch at the same time need not do so in the same order again: of pairs that contradict each
        other, as few as possible are left out. There must be at least one pair.
        """
        order = np.lexsort((same_ns, moments_ns))
        is_new: Bool = np.ones(len(order), np.bool_)  # all kernels of a CUDA graph have one launch
        is_new[1:] = (np.diff(moments_ns[order]) != 0) | (np.diff(same_ns[order]) != 0)
        moments, same = moments_ns[order][is_new], same_ns[order][is_new]
        kept = np.arange(len(moments)) if _rises(moments, same) else _longest_rise(moments, same)
        return cls(moments[kept], same[kept])

    def at(self, moments_ns: Int64) -> Int64:
        """The same moments of the other window; beyond the ends of the timeline time runs as it does there."""
        if len(self.moments_ns) == 1:
            return np.asarray(self.same_ns[0] + moments_ns - self.moments_ns[0])
        after = np.clip(np.searchsorted(self.moments_ns, moments_ns, side="right"), 1, len(self.moments_ns) - 1)
        start, same_start = self.moments_ns[after - 1], self.same_ns[after - 1]
        length, same_length = self.moments_ns[after] - start, self.same_ns[after] - same_start
        offset = moments_ns - start
        is_inside = (offset >= 0) & (offset <= length)
        stretched = np.rint(offset / length * same_length).astype(np.int64)
        beyond = np.where(offset < 0, offset, offset - length + same_length)
        return np.asarray(same_start + np.where(is_inside, stretched, beyond))


def _rises(moments: Int64, same: Int64) -> bool:
    return bool((np.diff(moments) > 0).all() and (np.diff(same) > 0).all())


def _longest_rise(moments: Int64, same: Int64) -> Int64:
    """The rows of a longest sequence in which both columns rise strictly."""
    order = np.lexsort((-same, moments))  # of equal moments the largest first, so that only one of them can rise
    ends: list[int] = []
    end_rows: list[int] = []
    before = np.full(len(moments), -1, np.int64)
    for row, value in zip(order.tolist(), same[order].tolist(), strict=True):
        place = bisect_left(ends, value)
        before[row] = end_rows[place - 1] if place else -1
        if place == len(ends):
            ends.append(value)
            end_rows.append(row)
        else:
            ends[place], end_rows[place] = value, row
    rise = [end_rows[-1]]
    while before[rise[-1]] >= 0:
        rise.append(int(before[rise[-1]]))
    return np.array(rise[::-1], np.int64)
