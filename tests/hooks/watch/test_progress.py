"""A stall is noticed once, after so many times the median step; a slowdown only where several looks show it."""

from __future__ import annotations

import pytest

from perfscope.hooks.watch.progress import Progress, Stall, parse_anomaly

S = 10**9


def train(progress: Progress, steps: int, step_ns: int, *, begin: int = 0, now_ns: int = 0) -> int:
    """Steps that end one by one, each with a look; returns when the last one ended."""
    for step in range(begin + 1, begin + steps + 1):
        now_ns += step_ns
        progress.advance(step, now_ns, now_ns)
    return now_ns


def test_no_step_for_so_many_medians_is_a_stall_that_is_noticed_once() -> None:
    progress = Progress(factor=20, shortest_ns=1 * S, now_ns=0)
    now_ns = train(progress, 30, S // 2)
    assert progress.find_stall(30, now_ns + 9 * S) is None
    assert progress.find_stall(30, now_ns + 10 * S) == Stall(10 * S, 10 * S)
    assert progress.find_stall(30, now_ns + 11 * S) is None


def test_no_stall_is_shorter_than_the_shortest() -> None:
    progress = Progress(factor=20, shortest_ns=60 * S, now_ns=0)
    now_ns = train(progress, 30, S // 100)
    assert progress.find_stall(30, now_ns + 59 * S) is None
    assert progress.find_stall(30, now_ns + 60 * S) is not None


def test_a_step_ends_a_stall_and_does_not_count_as_a_usual_one() -> None:
    progress = Progress(factor=20, shortest_ns=S, now_ns=0)
    now_ns = train(progress, 30, S // 2)
    assert progress.find_stall(30, now_ns + 100 * S) is not None
    assert progress.advance(31, now_ns + 100 * S, now_ns + 100 * S)
    assert progress.limit_ns == 10 * S
    assert not progress.advance(32, now_ns + 101 * S, now_ns + 101 * S)


@pytest.mark.parametrize(("slow_looks", "is_slow"), [(2, False), (3, True)])
def test_a_slowdown_counts_where_three_looks_in_a_row_show_it(slow_looks: int, is_slow: bool) -> None:
    progress = Progress(factor=20, shortest_ns=S, now_ns=0)
    now_ns = train(progress, 40, S)
    found = []
    for step in range(41, 41 + slow_looks):
        now_ns += S * 3 // 2
        progress.advance(step, now_ns, now_ns)
        found.append(progress.find_slowdown(1.2))
        assert progress.find_slowdown(1.2) is None, "a look without a new step says nothing new"
    assert (found[-1] == pytest.approx(1.5)) is is_slow
    assert found[:2] == [None, None]


def test_steps_in_a_window_are_no_slowdown() -> None:
    progress = Progress(factor=20, shortest_ns=S, now_ns=0)
    now_ns = train(progress, 40, S)
    for step in range(41, 60):
        now_ns += 3 * S
        progress.advance(step, now_ns, now_ns, is_disturbed=True)
        assert progress.find_slowdown(1.2) is None


def test_a_clock_that_jumps_back_is_no_stall() -> None:
    progress = Progress(factor=20, shortest_ns=S, now_ns=100 * S)
    now_ns = train(progress, 30, S, now_ns=100 * S)
    assert progress.find_stall(30, now_ns - 50 * S) is None


@pytest.mark.parametrize("text", ["step>1x", "step>0.5x", "step<2x", "1.2", "", "step>1.2"])
def test_what_is_no_slowdown_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write step>1\.2x"):
        parse_anomaly(text)
