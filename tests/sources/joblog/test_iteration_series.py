"""Copies of other ranks, restarts, and logs too long to keep."""

from __future__ import annotations

import random

import numpy as np
import pytest

from perfscope.sources.joblog.series.iteration_series import IterationSeries
from perfscope.sources.joblog.series.record import Record
from perfscope.tables.joblog import Disturbance


def fill(series: IterationSeries, *numbers: int, label: bytes | None = None) -> list[int]:
    return [number for number in numbers if series.add(Record(iteration=number, wall_ns=10**9), label)]


def test_a_copy_of_the_last_iteration_is_dropped() -> None:
    series = IterationSeries()
    assert fill(series, 1, 1, 2, 2, 3, 3) == [1, 2, 3]
    assert series.copies == 3
    assert series.attempt == 0


def test_a_labelled_rank_that_prints_later_is_a_copy() -> None:
    series = IterationSeries()
    assert fill(series, 1, 2, 3, label=b"[rank0]:") == [1, 2, 3]
    assert fill(series, 1, 2, 3, label=b"[rank1]:") == []
    assert fill(series, 4, label=b"[rank0]:") == [4]
    assert series.attempt == 0


def test_unlabelled_copies_may_come_out_of_order() -> None:
    series = IterationSeries()
    assert fill(series, 1, 1, 2, 3, 2, 3) == [1, 2, 3]
    assert series.attempt == 0


def test_a_restart_goes_back_and_its_work_is_redone() -> None:
    series = IterationSeries()
    assert fill(series, 1, 2, 3, 4, 5, 4, 5, 6) == [1, 2, 3, 4, 5, 4, 5, 6]
    assert series.attempt == 1
    assert series.redone == 2


def test_a_process_that_says_that_it_begins_is_a_restart_without_going_back() -> None:
    series = IterationSeries()
    fill(series, 1, 2)
    series.on_restart()
    series.on_restart()
    fill(series, 3, 4)
    assert series.iterations().attempt.tolist() == [0, 0, 1, 1]
    assert series.redone == 0


def test_an_interval_is_what_lies_between_most_records() -> None:
    series = IterationSeries()
    fill(series, 10, 20, 30, 50, 60)
    assert series.interval() == 10
    assert series.irregular_gaps == 1
    assert series.iterations().span.tolist() == [10] * 5
    fill(series, 63)
    assert series.iterations().span.tolist() == [10] * 5 + [3]


def test_the_first_record_of_a_run_cannot_cover_more_than_its_number() -> None:
    series = IterationSeries()
    fill(series, 3, 13, 23)
    assert series.iterations().span.tolist() == [3, 10, 10]


def test_only_a_clock_that_runs_on_is_disturbed() -> None:
    running, stopped = IterationSeries(), IterationSeries()
    running.clock_runs_on = True
    for series in (running, stopped):
        fill(series, 1)
        series.on_disturbance(Disturbance.SAVE)
        fill(series, 2, 3)
    assert running.iterations().disturbed.tolist() == ["", "save", ""]
    assert stopped.iterations().disturbed.tolist() == ["", "", ""]


def test_a_folded_log_keeps_every_time() -> None:
    times = np.random.default_rng(0).integers(1, 50, 5000) * 10**8
    series = IterationSeries(records_kept=100)
    for number, wall_ns in enumerate(times, 1):
        series.add(Record(iteration=number, wall_ns=int(wall_ns), samples=8))
    folded = series.folded()
    assert folded is not None
    assert len(series.iterations()) == 100
    assert np.repeat(folded.wall_ns, folded.count).tolist() == sorted(times[100:].tolist())
    assert folded.records == folded.iterations == 4900
    assert folded.samples == 4900 * 8
    assert folded.last_iteration == 5000


def test_a_folded_restart_is_warm_up_apart() -> None:
    series = IterationSeries(records_kept=2)
    fill(series, 1, 2, 3, 4, 3, 4)
    folded = series.folded()
    assert folded is not None
    assert len(folded.warmups) == 1
    assert folded.count.sum() == 3


def test_unlabelled_ranks_may_be_apart_from_the_beginning_on() -> None:
    series = IterationSeries()
    fill(series, 1, 2, 1, 3, 2, 1, 3, 4, 2, 3, 4, 4, 5)
    table = series.iterations()
    assert table.iteration.tolist() == [1, 2, 3, 4, 5]
    assert set(table.attempt.tolist()) == {0}
    assert (series.copies, series.redone) == (8, 0)


def test_a_line_that_is_there_twice_is_no_restart_and_no_second_rank() -> None:
    series = IterationSeries()
    assert fill(series, *range(1, 21), 20, 21, 22, 20, 21, 22, 23) == [*range(1, 23), 20, 21, 22, 23]
    assert (series.copies, series.attempt, series.redone) == (1, 1, 3)


def test_two_unlabelled_ranks_that_restart_go_back_together() -> None:
    series = IterationSeries()
    fill(series, *(number for number in range(1, 11) for _ in range(2)))
    fill(series, *(number for number in range(8, 13) for _ in range(2)))
    assert series.iterations().iteration.tolist() == [*range(1, 11), *range(8, 13)]
    assert (series.attempt, series.redone) == (1, 3)


def test_labelled_ranks_go_back_one_after_the_other() -> None:
    series = IterationSeries()
    ranks = (b"[rank0]:", b"[rank1]:")
    for number, rank in [
        (1, 0),
        (1, 1),
        (2, 0),
        (3, 0),
        (2, 1),
        (3, 1),
        (2, 1),
        (3, 1),
        (2, 0),
        (4, 1),
        (3, 0),
        (4, 0),
    ]:
        fill(series, number, label=ranks[rank])
    assert series.iterations().iteration.tolist() == [1, 2, 3, 2, 3, 4]
    assert (series.attempt, series.redone) == (1, 2)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_whatever_the_order_of_ranks_each_attempt_is_counted_once(ranks: int, labelled: bool) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        skew, gap = draw.choice([0, 1, 3]), draw.choice([1, 10])
        first, series, expected = 1, IterationSeries(), []
        for _ in range(3):
            last = first + draw.randint(8, 30)
            places = [first] * ranks
            while min(places) <= last:
                ready = [rank for rank, at in enumerate(places) if at <= last and at - min(places) <= skew]
                rank = draw.choice(ready)
                fill(series, places[rank] * gap, label=b"[rank%d]:" % rank if labelled else None)
                places[rank] += 1
            expected += [number * gap for number in range(first, last + 1)]
            first = draw.randint(first + 1, last - 5)
        assert series.iterations().iteration.tolist() == expected, (seed, skew, gap)
        assert series.attempt == 2


@pytest.mark.parametrize("order", ["by step", "by rank"])
def test_unnumbered_records_of_two_labelled_ranks_are_those_of_one(order: str) -> None:
    series, lines = IterationSeries(), [(step, rank) for step in range(6) for rank in (0, 1)]
    if order == "by rank":
        lines.sort(key=lambda line: line[1])
    for step, rank in lines:
        series.add(Record(wall_ns=(step + 1) * 10**9), b"[rank%d]:" % rank)
    assert (len(series), series.copies, series.unnumbered_ranks) == (6, 6, 2)
    assert series.median_ns() == 3_500_000_000


def test_a_rank_that_prints_more_unnumbered_records_than_the_others_goes_on_alone() -> None:
    series = IterationSeries()
    for label, count in ((b"[rank0]:", 3), (b"[rank1]:", 5)):
        for _ in range(count):
            series.add(Record(wall_ns=10**9), label)
    assert (len(series), series.copies) == (5, 3)


def test_unnumbered_records_without_labels_are_all_counted() -> None:
    series = IterationSeries()
    for _ in range(4):
        series.add(Record(wall_ns=10**9))
    assert (len(series), series.copies) == (4, 0)
