"""When threads of the host were inside operators: moments alone, without names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.tables.columns import Int64


def _nothing() -> Int64:
    return np.zeros(0, np.int64)


class ThreadSpans(Struct, frozen=True, eq=False):
    """Stretches of time of threads; those of a thread are apart from each other and in order."""

    start_ns: Int64 = field(default_factory=_nothing)
    end_ns: Int64 = field(default_factory=_nothing)
    thread: Int64 = field(default_factory=_nothing)

    def __len__(self) -> int:
        return len(self.start_ns)


def join_spans(tables: Sequence[ThreadSpans]) -> ThreadSpans:
    """The moments that any of some spans covers, by thread; they may overlap, and be in any order."""
    if not tables:
        return ThreadSpans()
    start, end, thread = (
        np.concatenate([getattr(table, column) for table in tables]) for column in ThreadSpans.__struct_fields__
    )
    joined = []
    is_open = np.ones(len(thread), np.bool_)
    while is_open.any():  # there are few threads
        number = int(thread[is_open.argmax()])
        rows = thread == number
        begins, ends = merge_spans(start[rows], end[rows])
        joined.append((begins, ends, np.full(len(begins), number, np.int64)))
        is_open &= ~rows
    joined.sort(key=lambda columns: int(columns[2][0]) if len(columns[2]) else 0)
    columns = [np.concatenate(parts) for parts in zip(*joined, strict=True)] if joined else [_nothing()] * 3
    return ThreadSpans(*columns)


def merge_spans(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """The moments that any of some spans covers, as disjoint spans in order; the given ones may be empty."""
    is_proper = start < end
    start, end = start[is_proper], end[is_proper]
    if not len(start):
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start[opens], reach[closes]
