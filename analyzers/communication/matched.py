"""The operations that all ranks of a group made: a column for what is of an operation, rows for what is of a rank.

A column is as long for ten thousand ranks as for two. The rows of all ranks would fill the memory: they are read again
where they are needed, those of few ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial as bind
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from perfscope.analyzers.communication.calls import Integers, Kind
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT

#: So many times are in memory at once, whatever the number of ranks.
_CELLS_AT_ONCE = 2**15

#: How long each operation of a rank took, and the ends of the first of them.
TimesOfRank: TypeAlias = tuple[Integers, Int64]


class Rows(NamedTuple):
    """The times of some neighbours among the ranks: one row a rank, one column an operation.

    Attributes:
        first: The row of the first of them, among those of all ranks.
        duration_ns: How long each operation took.
        end_ns: When it ended on the rank's wall clock; ABSENT where that is not known.
    """

    first: int
    duration_ns: Int64
    end_ns: Int64


class AlikeCalls(Struct, frozen=True, eq=False):
    """Operations that all ranks of a group made in the same order.

    Attributes:
        kinds: Their kinds.
        covered_ns: For each of ``kinds`` the time that its operations cover, over all ranks.
        hidden_ns: For each the part of that time during which compute runs.
    """

    kinds: tuple[Kind, ...]
    covered_ns: Int64
    hidden_ns: Int64


class MatchedCalls(Struct, frozen=True, eq=False):
    """Operations of one group, each of which all given ranks made.

    Attributes:
        ranks: The ranks, in order; the rows of ``read``.
        kinds: The kinds of operations.
        kind: For each operation its index in ``kinds``.
        step: For each the number of the profiler step that launched it, or ABSENT.
        transfer_ns: For each its shortest duration.
        total_ns: For each its duration over all ranks.
        last: For each the row of the rank on which it is shortest, the first of several: that one arrived last.
        read: Reads the times of all ranks, those of few at once.
        unmatched: How many operations of some rank have no match on every other rank.
        alike: Their times, where all ranks made the same operations in the same order, and none is left out.
    """

    ranks: Sequence[int]
    kinds: tuple[Kind, ...]
    kind: Int64
    step: Int64
    transfer_ns: Int64
    total_ns: Int64
    last: Int64
    read: Callable[[], Iterator[Rows]]
    unmatched: int = 0
    alike: AlikeCalls | None = None

    @property
    def duration_ns(self) -> Int64:
        """The durations on all ranks at once, for groups of few: one row a rank, one column an operation."""
        return np.concatenate([rows.duration_ns for rows in self.read()])

    @property
    def end_ns(self) -> Int64:
        """The ends on all ranks at once, likewise."""
        return np.concatenate([rows.end_ns for rows in self.read()])


class Columns(NamedTuple):
    """What the rows of all ranks say of each operation: see ``MatchedCalls``."""

    transfer_ns: Int64
    total_ns: Int64
    last: Int64
    read: Callable[[], Iterator[Rows]]


def sum_up(times: Callable[[], Iterable[TimesOfRank]], shape: tuple[int, int], *, with_ends: bool) -> Columns:
    """Go once through the times of all ranks; few ranks' times are kept, others are read again.

    Args:
        times: Gives those of each rank in order, as often as it is called.
        shape: How many ranks and operations there are.
        with_ends: Whether anybody asks for the ends.
    """
    blocks = _read_rows(times(), shape, with_ends=with_ends)
    rows = next(blocks)
    transfer_ns, last = rows.duration_ns.min(axis=0), rows.duration_ns.argmin(axis=0)
    total_ns = rows.duration_ns.sum(axis=0)
    if len(rows.duration_ns) == shape[0]:
        return Columns(transfer_ns, total_ns, last, bind(iter, (rows,)))
    del rows  # it would stay in memory beside the next ones
    for rows in blocks:
        shortest = rows.duration_ns.min(axis=0)
        is_later = shortest < transfer_ns
        last[is_later] = rows.first + rows.duration_ns.argmin(axis=0)[is_later]
        np.minimum(transfer_ns, shortest, out=transfer_ns)
        total_ns += rows.duration_ns.sum(axis=0)
    return Columns(transfer_ns, total_ns, last, lambda: _read_rows(times(), shape, with_ends=with_ends))


def _read_rows(times: Iterable[TimesOfRank], shape: tuple[int, int], *, with_ends: bool) -> Iterator[Rows]:
    """The rows of ranks as their times come; no memory for ends that nobody asks for."""
    ranks, operations = shape
    at_once = min(ranks, max(1, _CELLS_AT_ONCE // max(1, operations)))
    every = iter(times)
    for begin in range(0, ranks, at_once):
        count = min(at_once, ranks - begin)
        duration_ns = np.empty((count, operations), np.int64)
        end_ns = np.full(duration_ns.shape, ABSENT, np.int64) if with_ends else _no_ends(duration_ns)
        for row, (durations, ends) in enumerate(islice(every, count)):
            duration_ns[row] = durations
            if with_ends:
                end_ns[row, : len(ends)] = ends
        yield Rows(begin, duration_ns, end_ns)


def _no_ends(duration_ns: Int64) -> Int64:
    """ABSENT in that shape, which takes the memory of one number."""
    return np.broadcast_to(np.int64(ABSENT), duration_ns.shape)
