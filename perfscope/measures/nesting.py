"""Spans of threads that nest: which one is the innermost at a moment.

The innermost span is the last-begun one that is still open, also where spans overlap without nesting.
"""

from __future__ import annotations

import numpy as np

from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, distinct


class Nesting:
    """Some spans, by thread and start; of those that begin together the one that ends last is around the others.

    ``order`` has the outer spans first. ``parent`` is the innermost span around a span's start, or ABSENT.
    """

    def __init__(self, start_ns: Int64, end_ns: Int64, thread: Int64) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns
        self.order: Int64 = np.lexsort((-end_ns, start_ns, thread))
        self.parent = np.full(len(start_ns), ABSENT, np.int64)
        self._rows: dict[int, Int64] = {}
        for number in distinct(thread):
            rows = self.order[thread[self.order] == number]
            self._rows[number] = rows
            self._find_parents(rows)

    def _find_parents(self, rows: Int64) -> None:
        parents = np.full(len(rows), ABSENT, np.int64)
        open_spans: list[tuple[int, int]] = []
        starts, ends = self._start_ns[rows].tolist(), self._end_ns[rows].tolist()
        for place, (row, start, end) in enumerate(zip(rows.tolist(), starts, ends, strict=True)):
            while open_spans and open_spans[-1][0] <= start:
                open_spans.pop()
            if open_spans:
                parents[place] = open_spans[-1][1]
            open_spans.append((end, row))
        self.parent[rows] = parents

    def innermost(self, moments_ns: Int64, threads: Int64) -> Int64:
        """For each moment on a thread the innermost span there, its end excluded, or ABSENT."""
        result = np.full(len(moments_ns), ABSENT, np.int64)
        for number, rows in self._rows.items():
            mine = np.flatnonzero(threads == number)
            if not len(mine):
                continue
            moments = moments_ns[mine]
            last = np.searchsorted(self._start_ns[rows], moments, side="right") - 1
            row = np.where(last < 0, ABSENT, rows[np.maximum(last, 0)])
            is_past = (row != ABSENT) & (self._end_ns[row] <= moments)
            while is_past.any():
                row[is_past] = self.parent[row[is_past]]
                is_past = (row != ABSENT) & (self._end_ns[row] <= moments)
            result[mine] = row
        return result
