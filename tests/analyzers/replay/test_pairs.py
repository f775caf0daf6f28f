"""Every kind of scenario against a training in which the change was really made, by its unprofiled steps."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.whatif_pairs import ALL, FOLDER, MISSED, PAIRS, Pair
from perfscope.analyzers.replay.graphs import measure
from perfscope.analyzers.replay.pipeline_changes import doubt_transfers
from perfscope.analyzers.whatif import answer
from perfscope.constants import NS_PER_MS
from perfscope.schedules.catalog import Schedule
from perfscope.schedules.prediction import PassTimes, Setup
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events

LARGEST_ERROR, MEDIAN_ERROR = 0.05, 0.03


def error_of(pair: Pair) -> float:
    return abs(pair.predict_ms() / pair.truth_ms - 1)


def name(pair: Pair) -> str:
    return f"{pair.traces}-{pair.scenario}-{pair.made}"


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_a_change_takes_what_it_took_where_it_was_made(pair: Pair) -> None:
    assert error_of(pair) <= LARGEST_ERROR


def test_the_median_error_is_small_where_misses_count_too() -> None:
    assert statistics.median(map(error_of, ALL)) <= MEDIAN_ERROR


@pytest.mark.parametrize("pair", PAIRS, ids=name)
def test_a_prediction_is_nearer_than_no_change(pair: Pair) -> None:
    """A scenario that answers with the step as it is would be right where a change makes no difference alone."""
    unchanged_ms = pair.undisturbed_ms
    assert unchanged_ms is not None
    if abs(unchanged_ms / pair.truth_ms - 1) > LARGEST_ERROR:
        assert error_of(pair) < abs(unchanged_ms / pair.truth_ms - 1)


@pytest.mark.parametrize("pair", MISSED, ids=name)
def test_what_is_listed_as_missed_is_missed(pair: Pair) -> None:
    assert error_of(pair) > LARGEST_ERROR


@pytest.mark.parametrize("undisturbed_ms", [66.0, 75.6, 90.0])
def test_other_micro_batches_start_from_the_step_as_it_was_measured_and_not_from_its_replay(
    undisturbed_ms: float,
) -> None:
    """So many micro-batches as there are change nothing, wherever the replay of the profiled steps is."""
    paths = sorted((FOLDER / "pairs" / "pipelines" / "1f1b_m4").glob("*.json.gz"))
    graphs = tuple(partial for path in paths if (partial := measure(read_trace(path, BASIC_EVENTS | Events.WAITS))))
    found = answer(graphs, ("microbatches=4", "microbatches=8"), undisturbed_ms * NS_PER_MS)
    same, more = found.outlooks
    assert same.step_ns == pytest.approx(undisturbed_ms * NS_PER_MS)
    assert same.saved_ns == pytest.approx(0, abs=1)
    assert more.step_ns + more.saved_ns == pytest.approx(undisturbed_ms * NS_PER_MS)
    assert -more.saved_ns == pytest.approx(4 * 10.2 * NS_PER_MS, rel=0.15)


def test_other_schedules_are_doubted_by_the_transfers_that_nobody_saw() -> None:
    times = PassTimes(forward=(1, 1), backward=(2, 2), weight=(1, 1), transfer=(0, 0))
    setups = {
        name: Setup(schedule=name, devices=2, microbatches=8, chunks=1, times=times)
        for name in (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZBV)
    }

    def doubt(now: Schedule, then: Schedule) -> float:
        return doubt_transfers(setups[now], setups[then])

    assert doubt(Schedule.GPIPE, Schedule.ONE_F_ONE_B) == doubt(Schedule.ZBV, Schedule.ZBV) == 0
    assert 0 < doubt(Schedule.ZB_H1, Schedule.ZBV) < doubt(Schedule.ONE_F_ONE_B, Schedule.ZBV)
