"""A stall is noticed once, after so many times the median step."""

from __future__ import annotations

import pytest

from perfscope.hooks.watch.watch import Progress, Stall

S = 10**9


def train(shortest_ns: int, step_ns: int, begin_ns: int = 0) -> tuple[Progress, int]:
    """Thirty steps that end one by one, each with a look; also returns when the last one ended."""
    progress = Progress(factor=20, shortest_ns=shortest_ns, now_ns=begin_ns)
    now_ns = begin_ns
    for step in range(1, 31):
        now_ns += step_ns
        progress.advance(step, now_ns, now_ns)
    return progress, now_ns


@pytest.mark.parametrize(("shortest_ns", "step_ns", "limit_ns"), [(S, S // 2, 10 * S), (60 * S, S // 100, 60 * S)])
def test_no_step_for_a_limit_is_a_stall_that_is_noticed_once(shortest_ns: int, step_ns: int, limit_ns: int) -> None:
    progress, now_ns = train(shortest_ns, step_ns)
    assert progress.find_stall(30, now_ns + limit_ns - 1) is None
    assert progress.find_stall(30, now_ns + limit_ns) == Stall(limit_ns, limit_ns)
    assert progress.find_stall(30, now_ns + limit_ns + S) is None


def test_a_step_ends_a_stall_and_neither_it_nor_one_in_a_window_is_a_usual_one() -> None:
    progress, now_ns = train(S, S // 2)
    assert progress.find_stall(30, now_ns + 100 * S) is not None
    assert progress.advance(31, now_ns + 100 * S, now_ns + 100 * S)
    for step in range(32, 90):
        assert not progress.advance(step, now_ns + step * 100 * S, now_ns + step * 100 * S, is_disturbed=True)
    assert progress.limit_ns == 10 * S


def test_a_clock_that_jumps_back_is_no_stall() -> None:
    progress, now_ns = train(S, S // 2, begin_ns=100 * S)
    assert progress.find_stall(30, now_ns - 50 * S) is None
