"""Places among the rows of many records."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import numpy as np

from perfscope.tables.columns import Bool, Int64


class Rows:
    """Rows of which something is true of them and the row behind them."""

    def __init__(self, is_true: Bool) -> None:
        self._rows = [*np.flatnonzero(is_true).tolist(), len(is_true)]

    def next_after(self, row: int) -> int:
        """The first one that is not before a row; the last row of all where there is none."""
        return self._rows[bisect_left(self._rows, row)]


def drop_times_after(begins: Int64, iterations: Int64, wall_ns: Int64, untimed: int) -> Int64:
    """Times without those less than ``untimed`` iterations behind the first record of a start, at ``begins``."""
    times = wall_ns.copy()
    for start, stop in pairwise((*begins.tolist(), len(iterations))):
        number = iterations[start:stop]
        times[start:stop][(number > number[0]) & (number < number[0] + untimed)] = -1
    return times
