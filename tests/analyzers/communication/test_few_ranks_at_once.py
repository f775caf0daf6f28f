"""What compares ranks takes as much memory for many as for few, and answers as a matrix of all of them would."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from benchmarks.synthetic_ranks import Made, make_job
from perfscope.analyzers import clock, collectives, stragglers
from perfscope.analyzers.communication import matched as matched_module
from perfscope.analyzers.communication.calls import GroupCalls
from perfscope.analyzers.communication.matching import match
from perfscope.analyzers.communication.rank_calls import CallsByGroup, RankCalls
from perfscope.packed import PackedRows

FEW, MANY = 1024, 4096
#: What a further rank may take while ranks are compared: 150 bytes of columns. Matrices of groups took 680.
MOST_BYTES_A_RANK = 300


def packed_calls(ranks: int) -> Sequence[tuple[RankCalls, ...]]:
    rows: PackedRows[tuple[RankCalls, ...]] = PackedRows()
    for measured in Made(make_job(ranks)):
        calls = measured.partials["collectives"]
        assert isinstance(calls, tuple)
        rows.append(calls)
    return rows


def peak_of(analyze: Callable[..., object], partials: Sequence[tuple[RankCalls, ...]]) -> int:
    tracemalloc.start()
    try:
        analyze(partials)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_comparing_takes_little_more_memory_for_many_ranks() -> None:
    few, many = packed_calls(FEW), packed_calls(MANY)
    for analyze in (collectives.analyze, clock.analyze):
        analyze(few)  # imports and caches are there before
        growth = (peak_of(analyze, many) - peak_of(analyze, few)) / (MANY - FEW)
        assert growth < MOST_BYTES_A_RANK, analyze


@pytest.mark.parametrize("cells", [1, 500, 2**15])
def test_columns_are_those_of_a_matrix_of_all_ranks(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matched_module, "_CELLS_AT_ONCE", cells)
    partials = [measured.partials["collectives"] for measured in Made(replace(make_job(64), is_flat=True))]
    calls = [partial for partial in partials if isinstance(partial, tuple)]
    ((_, members),) = CallsByGroup(calls).items()
    check(members)
    check({**members, 63: without_last(members[63])})  # the last call of the others has no match


def check(members: Mapping[int, GroupCalls]) -> None:
    found = match(members, with_ends=True)
    of_ranks = [members[rank] for rank in sorted(members)]
    matrix = np.stack([calls.duration_ns[: len(found.kind)] for calls in of_ranks]).astype(np.int64)
    assert np.array_equal(found.duration_ns, matrix)
    assert np.array_equal(found.transfer_ns, matrix.min(axis=0))
    assert np.array_equal(found.total_ns, matrix.sum(axis=0))
    assert np.array_equal(found.last, matrix.argmin(axis=0))
    ends = np.stack([calls.end_ns[: len(found.kind)] for calls in of_ranks])
    assert np.array_equal(found.end_ns[:, : ends.shape[1]], ends)


def without_last(calls: GroupCalls) -> GroupCalls:
    return with_fields(
        calls,
        kind=calls.kind[:-1],
        step=calls.step[:-1],
        duration_ns=calls.duration_ns[:-1],
        sequence=calls.sequence[:-1],
    )


def test_answers_do_not_depend_on_how_many_ranks_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    partials = packed_calls(64)
    at_once = [analyze(partials).data() for analyze in (collectives.analyze, clock.analyze, stragglers.analyze)]
    monkeypatch.setattr(matched_module, "_CELLS_AT_ONCE", 300)
    assert [analyze(partials).data() for analyze in (collectives.analyze, clock.analyze, stragglers.analyze)] == at_once
