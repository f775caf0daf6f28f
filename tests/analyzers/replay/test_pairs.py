"""Every kind of scenario against a training in which the change was really made, by its unprofiled steps."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.whatif_pairs import ALL, MISSED, PAIRS, Pair

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
