"""Copies of other ranks, and restarts."""

from __future__ import annotations

import random

import pytest

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.records import Record, RecordSeries
from perfscope.tables.joblog import Disturbance, Iterations


def fill(series: RecordSeries, *numbers: int, label: bytes | None = None) -> list[int]:
    """Print records, and return those of them that are new."""
    before = series.rows
    for number in numbers:
        series.add(Record(iteration=number, wall_ns=10**9), label)
    return [numbers[row - before] for row in series.resolved.rows.tolist() if row >= before]


def attempts(series: RecordSeries) -> int:
    return int(series.resolved.attempt[-1])


def test_a_restart_goes_back_and_its_work_is_redone() -> None:
    series = RecordSeries()
    assert fill(series, 1, 2, 3, 4, 5, 4, 5, 6) == [1, 2, 3, 4, 5, 4, 5, 6]
    assert attempts(series) == 1
    assert series.resolved.redone == 2


def test_a_record_of_ten_iterations_that_is_repeated_is_ten() -> None:
    series = RecordSeries()
    fill(series, *range(10, 201, 10), *range(110, 301, 10))
    assert series.resolved.redone == 100
    alone = RecordSeries()
    fill(alone, *range(10, 201, 10), 101, *range(110, 301, 10))  # the first one of a start is printed by itself
    assert alone.resolved.redone == 100


def test_a_process_that_says_that_it_begins_is_a_restart_without_going_back() -> None:
    series = RecordSeries()
    fill(series, 1, 2)
    series.on_restart()
    series.on_restart()
    fill(series, 3, 4)
    assert series.iterations().attempt.tolist() == [0, 0, 1, 1]
    assert series.resolved.redone == 0


def test_an_interval_is_what_lies_between_most_records() -> None:
    series = RecordSeries()
    fill(series, 10, 20, 30, 50, 60)
    assert series.interval == 10
    assert series.irregular_gaps == 1
    assert series.iterations().span.tolist() == [10] * 5
    fill(series, 63)
    assert series.iterations().span.tolist() == [10] * 5 + [3]


def test_only_a_clock_that_runs_on_is_disturbed() -> None:
    running, stopped = RecordSeries(), RecordSeries()
    running.clock_runs_on = True
    for series in (running, stopped):
        fill(series, 1)
        series.on_disturbance(Disturbance.SAVE)
        fill(series, 2, 3)
    assert running.iterations().disturbed.tolist() == ["", "save", ""]
    assert stopped.iterations().disturbed.tolist() == ["", "", ""]


def test_a_line_that_is_there_twice_is_no_restart_and_no_second_rank() -> None:
    series = RecordSeries()
    assert fill(series, *range(1, 21), 20, 21, 22, 20, 21, 22, 23) == [*range(1, 23), 20, 21, 22, 23]
    assert (series.resolved.copies, attempts(series), series.resolved.redone) == (1, 1, 3)


@pytest.mark.parametrize(("records", "kept"), [(8, 4), (4, 2), (4, 1), (6, 3), (6, 2)])
def test_a_process_that_crashes_again_and_again_is_one(records: int, kept: int) -> None:
    series, firsts = RecordSeries(), range(1, 5 * kept + 1, kept)
    fill(series, *(number for first in firsts for number in range(first, first + records)))
    assert (len(series), series.resolved.copies, attempts(series)) == (5 * records, 0, 4)
    assert series.resolved.redone == 4 * (records - kept)


def test_two_unlabelled_ranks_that_print_four_records_at_once_are_no_crashes() -> None:
    series = RecordSeries()
    fill(series, *(number for first in range(1, 20, 4) for _ in range(2) for number in range(first, first + 4)))
    assert (len(series), series.resolved.copies, attempts(series)) == (20, 20, 0)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_whatever_the_order_of_ranks_each_attempt_is_counted_once(ranks: int, labelled: bool) -> None:
    for seed in range(12):
        draw = random.Random(seed)
        skew, gap = draw.choice([0, 1, 3]), draw.choice([1, 10])
        first, series, expected = 1, RecordSeries(), []
        for _ in range(3):
            last = first + draw.randint(8, 30)
            places = [first] * ranks
            while min(places) <= last:
                ready = [rank for rank, at in enumerate(places) if at <= last and at - min(places) <= skew]
                rank = draw.choice(ready)
                series.add(Record(places[rank] * gap), b"[rank%d]:" % rank if labelled else None)
                places[rank] += 1
            expected += [number * gap for number in range(first, last + 1)]
            first = draw.randint(first + 1, last - 5)
        assert series.iterations().iteration.tolist() == expected, (seed, skew, gap)
        assert attempts(series) == 2


@pytest.mark.parametrize("order", ["by step", "by rank"])
def test_unnumbered_records_of_two_labelled_ranks_are_those_of_one(order: str) -> None:
    series, lines = RecordSeries(), [(step, rank) for step in range(6) for rank in (0, 1)]
    if order == "by rank":
        lines.sort(key=lambda line: line[1])
    for step, rank in lines:
        series.add(Record(wall_ns=(step + 1) * 10**9), b"[rank%d]:" % rank)
    assert (len(series), series.resolved.copies, series.resolved.unnumbered_ranks) == (6, 6, 2)
    assert series.median_ns() == 3_500_000_000


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
