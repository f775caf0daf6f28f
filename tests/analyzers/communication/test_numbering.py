"""Ranks with one window each are numbered in columns, and as all others are."""

from __future__ import annotations

import random

import pytest

from perfscope.analyzers.communication.rank_calls import NumberedCalls, RankCalls, number_ranks_and_runs


def calls(rank: int | None, first_ns: int, trace: str, device: int = 0) -> tuple[RankCalls]:
    return (RankCalls(rank, device, 7, trace, "", first_ns, first_ns + 10, 0, (), 0, None, None),)


def numbers(partials: list[tuple[RankCalls]]) -> list[NumberedCalls]:
    return list(number_ranks_and_runs(partials))


@pytest.mark.parametrize("seed", range(5))
def test_ranks_with_one_window_are_numbered_as_they_are_among_others(seed: int) -> None:
    chance = random.Random(seed)
    ranks = chance.sample(range(100), 40)
    alone = [calls(rank, chance.randrange(8), f"{place:02}", rank % 3) for place, rank in enumerate(ranks)]
    without_rank = calls(None, 1000, "99")
    assert numbers(alone) == numbers([*alone, without_rank])[:-1]
    assert [numbered.rank for numbered in numbers(alone)] == ranks
    assert all(numbered.counts and numbered.run == 0 for numbered in numbers(alone))


def test_a_second_window_that_overlaps_the_first_does_not_count() -> None:
    first, second, third = numbers([calls(0, 0, "a"), calls(0, 5, "b"), calls(0, 10, "c")])
    assert (first.counts, second.counts, third.counts) == (True, False, True)


def test_what_began_at_one_time_is_in_the_order_of_its_traces() -> None:
    assert [numbered.moment for numbered in numbers([calls(0, 0, "b"), calls(1, 0, "a")])] == [1, 0]
