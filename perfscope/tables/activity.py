"""When threads of the host were inside operators: moments alone, without names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.tables.columns import Int64, nothing
from perfscope.tables.intervals import union


class ThreadSpans(Struct, frozen=True, eq=False):
    """Stretches of time of threads; those of a thread are apart from each other and in order."""

    start_ns: Int64 = field(default_factory=nothing)
    end_ns: Int64 = field(default_factory=nothing)
    thread: Int64 = field(default_factory=nothing)

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
        spans = union(start[rows], end[rows])
        joined.append((spans.start, spans.end, np.full(len(spans), number, np.int64)))
        is_open &= ~rows
    joined.sort(key=lambda columns: int(columns[2][0]) if len(columns[2]) else 0)
    columns = [np.concatenate(parts) for parts in zip(*joined, strict=True)] if joined else [nothing()] * 3
    return ThreadSpans(*columns)
