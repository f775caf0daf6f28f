"""Step times are differences of a printed clock, joined until its rounding matters little."""

from __future__ import annotations

import pytest

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.records import Record
from perfscope.tables.joblog import Disturbance, Iterations


def read(readings: list[tuple[int, int]], resolution_ns: int = NS_PER_S, unit_ns: int = NS_PER_S) -> Iterations:
    log = JobLogBuilder()
    clock = log.clock("clock")
    for step, elapsed in readings:
        clock.add(Record(step, loss=1.0), elapsed * unit_ns, resolution_ns)
    clock.close()
    return log.series["clock"].iterations()


def test_short_steps_are_joined_until_the_clock_has_moved_twenty_digits() -> None:
    rows = read([(step, step * 3) for step in range(11)])
    assert rows.iteration.tolist() == [0, 7, 10]
    assert rows.wall_ns.tolist() == [None, 3 * NS_PER_S, None]
    assert rows.span.tolist() == [1, 7, 3]


def test_where_nothing_else_is_timed_five_digits_are_enough() -> None:
    assert read([(1, 8), (2, 11), (3, 14), (4, 17)]).wall_ns.tolist() == [None, 3 * NS_PER_S]
    assert read([(1, 8), (2, 11)]).wall_ns.tolist() == [None, None]


@pytest.mark.parametrize(
    "copy", [(3, 62), (2, 61), (2, 59)], ids=["of the last step", "of a step before", "in between"]
)
def test_another_ranks_copy_is_dropped(copy: tuple[int, int]) -> None:
    rows = read([(1, 0), (2, 30), (3, 60), copy, (4, 90)])
    assert rows.iteration.tolist() == [1, 2, 3, 4]
    assert rows.attempt.max() == 0
    assert rows.wall_ns.tolist() == [None, 30 * NS_PER_S, 30 * NS_PER_S, 30 * NS_PER_S]


def test_a_clock_and_steps_that_begin_anew_are_a_restart() -> None:
    rows = read([(100, 1000), (110, 1300), (120, 1600), (110, 5), (120, 300)])
    assert rows.attempt.tolist() == [0, 0, 0, 1, 1]
    assert rows.wall_ns.tolist() == [None, 30 * NS_PER_S, 30 * NS_PER_S, None, 29_500_000_000]


def test_a_clock_that_is_set_back_gives_no_time_for_that_interval() -> None:
    rows = read([(10, 100), (20, 50), (30, 80)])
    assert rows.attempt.max() == 0
    assert rows.wall_ns.tolist() == [None, None, 3 * NS_PER_S]


def test_tokens_a_second_are_those_of_the_interval() -> None:
    log = JobLogBuilder()
    clock = log.clock("clock")
    for step, elapsed, tokens in ((10, 100, 1000), (20, 140, 9000)):
        clock.add(Record(step), elapsed * NS_PER_S, NS_PER_S, tokens=tokens)
    assert log.series["clock"].iterations().tokens_per_s.tolist() == [None, 200.0]


@pytest.mark.parametrize("runs_on", [True, False])
def test_an_evaluation_disturbs_the_interval_only_where_the_clock_runs_on(runs_on: bool) -> None:
    log = JobLogBuilder()
    clock = log.clock("clock", runs_on=runs_on)
    clock.add(Record(1), 0, NS_PER_S)
    log.on_disturbance(Disturbance.EVALUATION)
    clock.add(Record(2), 90 * NS_PER_S, NS_PER_S)
    assert log.series["clock"].iterations().disturbed.tolist() == ["", "evaluation" if runs_on else ""]
