"""Of many ranks every one that is made late is found, by how much and why, and no other; clocks are aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.synthetic_ranks import ON_A_HOST, Job, Made, Straggler, make_job
from perfscope.analyzers import clock, collectives, stragglers
from perfscope.analyzers.communication.calls import GroupCalls
from perfscope.analyzers.communication.lateness import find_late_ranks
from perfscope.analyzers.communication.rank_calls import RankCalls, RanksOfGroup
from perfscope.analyzers.communication.waits import GroupWait, RankWait
from perfscope.constants import MANY_RANKS, NS_PER_MS

RANKS = 1024
#: What a cause is called in the reason.
REASONS = {"compute": "computed longer: slower", "not_shown": "does not show", "data_loading": "loaded data"}


def calls_of(job: Job) -> list[tuple[RankCalls, ...]]:
    partials = []
    for measured in Made(job):
        calls = measured.partials["collectives"]
        assert isinstance(calls, tuple)
        partials.append(calls)
    return partials


@cache
def analyzed(seed: int, count: int) -> tuple[Job, stragglers.Stragglers]:
    job = make_job(RANKS, seed=seed, stragglers=count)
    return job, stragglers.analyze(calls_of(job))


@pytest.mark.parametrize(("seed", "count"), [(1, 12), (2, 40)])
def test_every_planted_straggler_is_found_and_no_other_rank(seed: int, count: int) -> None:
    job, result = analyzed(seed, count)
    assert result.late is not None
    assert sorted(late.rank for late in result.late) == [straggler.rank for straggler in job.stragglers]


def test_lateness_is_what_was_planted() -> None:
    job, result = analyzed(1, 12)
    assert result.late is not None
    found = {late.rank: late.late_ns for late in result.late}
    for straggler in job.stragglers:
        assert found[straggler.rank] == pytest.approx(sum(straggler.late_ns), rel=0.02)


def test_the_reason_is_what_was_planted() -> None:
    job, result = analyzed(1, 12)
    causes = {straggler.rank: straggler.cause for straggler in job.stragglers}
    for late in result.late or ():
        assert late.reason is not None
        assert REASONS[causes[late.rank]] in (late.reason.text or "")


def test_no_rank_is_late_in_a_clean_job() -> None:
    _, result = analyzed(1, 0)
    assert result.late == ()
    (section,) = [section for section in result.sections() if section.title == "Ranks that arrive late"]
    assert "0 of 1024 ranks arrive later" in section.notes[0]


def test_ranks_of_one_host_are_blamed_each_for_its_own_lateness() -> None:
    """The six others of the host arrive as late at the data-parallel groups, and are not to blame."""
    late_ns = (20 * NS_PER_MS,) * 3, (12 * NS_PER_MS,) * 3
    job = make_job(RANKS, stragglers=0)
    job = replace(job, stragglers=tuple(Straggler(ON_A_HOST + index, "not_shown", late_ns[index]) for index in (0, 1)))
    result = stragglers.analyze(calls_of(job))
    assert [late.rank for late in result.late or ()] == [ON_A_HOST, ON_A_HOST + 1]


def test_few_ranks_are_told_as_ever() -> None:
    job = make_job(MANY_RANKS, stragglers=3)
    result = stragglers.analyze(calls_of(job))
    assert result.late is None
    assert "late" not in result.data()  # type: ignore[operator]
    assert [section.title for section in result.sections()] == ["Stragglers"]


def test_lateness_equals_a_slow_oracle() -> None:
    random = np.random.default_rng(3)
    groups = [group("TP", range(first, first + 4), random.integers(0, 50, 4).tolist()) for first in range(0, 32, 4)] + [
        group("DP", range(place, 32, 4), random.integers(0, 50, 8).tolist()) for place in range(4)
    ]
    found = {late.rank: late.late_ns for late in find_late_ranks(groups, -(10**6))}
    assert found == {rank: oracle(groups, rank) for rank in range(32)}


def group(role: str, ranks: Sequence[int], waited: Sequence[int]) -> GroupWait:
    members = tuple(RankWait(rank, wait, wait, 0.0, 0) for rank, wait in zip(ranks, waited, strict=True))
    return GroupWait(f"{role}{ranks[0]}", "", role, 1, members, (), has_stages=False)


def oracle(groups: Sequence[GroupWait], rank: int) -> int:
    """The definition, word by word."""

    def wait_in(one: GroupWait) -> int:
        return next(member.wait for member in one.ranks if member.rank == rank)

    def upper_median(values: Sequence[int]) -> int:
        return sorted(values)[len(values) // 2]

    own = [one for one in groups if any(member.rank == rank for member in one.ranks)]
    differences = []
    for one in own:
        elsewhere = 0
        for other in own:
            same_axis = [member.wait for each in groups if each.role == other.role for member in each.ranks]
            elsewhere += 0 if other is one else max(0, wait_in(other) - upper_median(same_axis))
        differences.append(upper_median([member.wait for member in one.ranks]) - wait_in(one) - elsewhere)
    return max(differences)


def test_clocks_are_found_as_they_were_set() -> None:
    job = make_job(RANKS, stragglers=0)
    for rank in clock.analyze(calls_of(job)).ranks:
        assert rank.offset_ns is not None
        assert rank.residual_ns is not None
        assert abs(rank.offset_ns - job.skew_ns[rank.rank // ON_A_HOST]) <= rank.residual_ns + 1


def test_late_ranks_of_one_large_group_are_found() -> None:
    job = replace(make_job(RANKS, stragglers=30), is_flat=True)
    result = stragglers.analyze(calls_of(job))
    assert sorted(late.rank for late in result.late or ()) == [straggler.rank for straggler in job.stragglers]


def test_each_rank_of_a_group_is_read_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a rank, the operations of all ranks would take time with the square of the ranks."""
    ranks, looks = 512, 0
    look = RanksOfGroup.__getitem__

    def count(group: RanksOfGroup, rank: int) -> GroupCalls:
        nonlocal looks
        looks += 1
        return look(group, rank)

    calls = calls_of(replace(make_job(ranks, stragglers=1), is_flat=True))
    monkeypatch.setattr(RanksOfGroup, "__getitem__", count)
    collectives.analyze(calls)
    clock.analyze(calls)
    stragglers.analyze(calls)
    assert looks <= 2 * 3 * (ranks + 2)
