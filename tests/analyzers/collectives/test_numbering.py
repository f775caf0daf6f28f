"""Ranks, devices, runs and windows are numbered in the order of time."""

from __future__ import annotations

from perfscope.analyzers.collectives.rank_calls import NumberedCalls, RankCalls, number_ranks_and_runs


def calls(rank: int | None, first_ns: int, trace: str, device: int = 0) -> tuple[RankCalls]:
    return (RankCalls(rank, device, 7, trace, "", first_ns, first_ns + 10, 0, (), 0, None, None),)


def numbers(partials: list[tuple[RankCalls]]) -> list[NumberedCalls]:
    return list(number_ranks_and_runs(partials))


def test_devices_without_a_rank_are_numbered_below_zero() -> None:
    found = numbers([calls(3, 0, "a"), calls(None, 0, "b"), calls(3, 0, "a", device=1), calls(None, 5, "b")])
    assert [numbered.rank for numbered in found] == [3, -1, -2, -1]


def test_a_second_window_that_overlaps_the_first_does_not_count() -> None:
    first, second, third = numbers([calls(0, 0, "a"), calls(0, 5, "b"), calls(0, 10, "c")])
    assert (first.counts, second.counts, third.counts) == (True, False, True)
