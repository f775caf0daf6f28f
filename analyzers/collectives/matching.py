"""How the operations of several ranks are matched to each other.

Ranks of a group call its operations in the same order. The n-th call of a step on one rank is therefore the n-th call
on every other. Where ranks made different operations in a step, NCCL's sequence numbers tell which belong together. In
a trace without them the step's operations have no match.

No clocks are compared: an operation's *transfer* is its shortest duration on any rank, and the time that it takes
longer on another rank is *waiting*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from perfscope.analyzers.collectives.calls import EVEN, EXCHANGES, GroupCalls, OperationKind, uneven
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT


class MatchedCalls(Struct, frozen=True, eq=False):
    """Operations of one group, each of which all given ranks made.

    Attributes:
        duration_ns: How long each took: one row a rank, one column an operation.
        end_ns: When it ended on the rank's wall clock, likewise; ABSENT where that is not known, or was not asked for.
        last: For each the row of the rank on which it is shortest, the first of several: that one arrived last.
        unmatched: How many operations of some rank have no match on every other rank.
    """

    ranks: tuple[int, ...]
    kinds: tuple[OperationKind, ...]
    kind: Int64
    step: Int64
    duration_ns: Int64
    end_ns: Int64
    transfer_ns: Int64
    total_ns: Int64
    last: Int64
    unmatched: int


def join_windows(first: GroupCalls, later: GroupCalls) -> GroupCalls:
    """The operations of two windows of one rank in one group, as one."""
    kinds = tuple(sorted({*first.kinds, *later.kinds}))
    of_first = np.array([kinds.index(kind) for kind in first.kinds], np.int64)
    of_later = np.array([kinds.index(kind) for kind in later.kinds], np.int64)
    covered_ns, hidden_ns = np.zeros(len(kinds), np.int64), np.zeros(len(kinds), np.int64)
    for index, calls in ((of_first, first), (of_later, later)):
        covered_ns[index] += calls.covered_ns
        hidden_ns[index] += calls.hidden_ns
    # The ends are those of the first operations; a gap in them would shift the others.
    all_ends = len(first.end_ns) == len(first.kind)
    has_sequences = len(first.sequence) > 0 and len(later.sequence) > 0
    return GroupCalls(
        key=first.key,
        description=first.description,
        size=first.size,
        kinds=kinds,
        kind=np.concatenate([of_first[first.kind], of_later[later.kind]]),
        step=np.concatenate([first.step, later.step]),
        sequence=np.concatenate([first.sequence, later.sequence]) if has_sequences else np.zeros(0, np.int64),
        duration_ns=np.concatenate([first.duration_ns, later.duration_ns]),
        end_ns=np.concatenate([first.end_ns, later.end_ns]) if all_ends else first.end_ns,
        covered_ns=covered_ns,
        hidden_ns=hidden_ns,
    )


def match(calls: Mapping[int, GroupCalls], *, with_ends: bool = False) -> MatchedCalls:
    """Match the operations that several ranks made in one group; ``calls`` is by rank.

    An operation that some rank does not have is left out and counted.
    """
    ranks = tuple(sorted(calls))
    of_ranks = [calls[rank] for rank in ranks]
    rows = match_rows(of_ranks)
    kinds, kind = _common_kinds(of_ranks, rows)
    every = list(zip(of_ranks, rows, strict=True))
    duration_ns = np.stack([of_rank.duration_ns[index].astype(np.int64) for of_rank, index in every])
    ends = [  # the first few operations alone have one
        np.where(index < len(of_rank.end_ns), of_rank.end_ns[np.minimum(index, len(of_rank.end_ns) - 1)], ABSENT)
        for of_rank, index in (every if with_ends else ())
    ]
    no_ends = np.broadcast_to(np.int64(ABSENT), duration_ns.shape)  # of the size of one number
    return MatchedCalls(
        ranks=ranks,
        kinds=kinds,
        kind=kind,
        step=of_ranks[0].step[rows[0]].astype(np.int64),
        duration_ns=duration_ns,
        end_ns=np.stack(ends) if with_ends else no_ends,
        transfer_ns=duration_ns.min(axis=0),
        total_ns=duration_ns.sum(axis=0),
        last=duration_ns.argmin(axis=0),
        unmatched=max(len(of_rank.kind) for of_rank in of_ranks) - len(kind),
    )


def _common_kinds(calls: Sequence[GroupCalls], rows: Sequence[Int64]) -> tuple[tuple[OperationKind, ...], Int64]:
    """The kinds of matched operations, and for each operation its index in them, as the first rank sees it.

    An exchange that is not of the same size on all ranks has unequal parts, which a single rank may not see.
    """
    own = {kind for rank_calls in calls for kind in rank_calls.kinds}
    exchanges = {kind for kind in own if kind.operation in EXCHANGES}
    kinds = tuple(sorted(own | {uneven(kind) for kind in exchanges}))
    number = {kind: index for index, kind in enumerate(kinds)}
    of_first = _numbers_of(calls[0], rows[0], number)
    if not exchanges:
        return kinds, of_first
    is_exchange = np.array([kind in exchanges for kind in kinds], np.bool_)[of_first]
    uneven_number = np.array([number[uneven(kind)] if kind in exchanges else ABSENT for kind in kinds])[of_first]
    differs = np.zeros(len(of_first), np.bool_)
    for rank_calls, row in zip(calls[1:], rows[1:], strict=True):
        differs |= _numbers_of(rank_calls, row, number) != of_first
    return kinds, np.where(is_exchange & differs, uneven_number, of_first)


def _numbers_of(calls: GroupCalls, rows: Int64, number: Mapping[OperationKind, int]) -> Int64:
    return np.array([number[kind] for kind in calls.kinds], np.int64)[calls.kind[rows]]


#: What must agree on every rank: an operation's sequence number, name, element type and size.
_Label: TypeAlias = tuple[int, str, str, int]


def _labels(calls: GroupCalls) -> list[tuple[int, _Label]]:
    described = [
        (
            "all_to_all" if kind.operation in EXCHANGES else kind.operation,
            kind.dtype,
            kind.bytes if kind.operation in EVEN else ABSENT,
        )
        for kind in calls.kinds
    ]
    sequence = calls.sequence if len(calls.sequence) else np.full(len(calls.kind), ABSENT)
    return [
        (int(step), (int(number), *described[kind]))
        for step, number, kind in zip(calls.step, sequence, calls.kind, strict=True)
    ]


def match_rows(calls: Sequence[GroupCalls]) -> list[Int64]:
    """For each rank the rows of the operations that all ranks have, in the same order."""
    if all(_has_same_operations(calls[0], rank_calls) for rank_calls in calls):
        return [np.arange(len(calls[0].kind))] * len(calls)
    labels = [_labels(rank_calls) for rank_calls in calls]
    if all(sequence == labels[0] for sequence in labels):
        return [np.arange(len(labels[0])) for _ in labels]
    rows: list[list[int]] = [[] for _ in labels]
    steps = [_by_step(sequence) for sequence in labels]
    for step in sorted(set.intersection(*(set(of_rank) for of_rank in steps))):
        own = [of_rank[step] for of_rank in steps]
        if all(len(calls_of_rank.sequence) for calls_of_rank in calls):
            common = set.intersection(*(set(of_rank.values()) for of_rank in own))
            own = [{row: label for row, label in of_rank.items() if label in common} for of_rank in own]
        if all(list(of_rank.values()) == list(own[0].values()) for of_rank in own):
            for rows_of_rank, of_rank in zip(rows, own, strict=True):
                rows_of_rank.extend(of_rank)
    return [np.array(rows_of_rank, np.int64) for rows_of_rank in rows]


def _has_same_operations(first: GroupCalls, second: GroupCalls) -> bool:
    """Whether two ranks made the same operations in the same order, by their columns: most ranks do."""
    return first.kinds == second.kinds and all(
        np.array_equal(of_first, of_second)
        for of_first, of_second in (
            (first.kind, second.kind),
            (first.step, second.step),
            (first.sequence, second.sequence),
        )
    )


def _by_step(labels: Sequence[tuple[int, _Label]]) -> dict[int, dict[int, _Label]]:
    steps: dict[int, dict[int, _Label]] = {}
    for row, (step, label) in enumerate(labels):
        steps.setdefault(step, {})[row] = label
    return steps
