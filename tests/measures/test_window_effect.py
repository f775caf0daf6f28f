"""The test of a window's effect: what it must see, and what it must not take for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfscope.measures.statistics import count_values
from perfscope.measures.window_effect import Effect, WindowEffect, compare_sides
from perfscope.tables.columns import Float64

MS = 10**6


def noise(n: int, seed: int, correlation: float = 0.0) -> Float64:
    """Noise of 1 % that remembers the step before."""
    generator = np.random.default_rng(seed)
    values = [float(generator.normal())]
    for draw in generator.normal(size=n - 1):
        values.append(correlation * values[-1] + (1 - correlation**2) ** 0.5 * float(draw))
    return 0.01 * np.asarray(values)


def effect(before: Float64, after: Float64, kinds: tuple[int, int] | None = None) -> WindowEffect:
    """The effect of a window of five steps between steps of these times in milliseconds."""
    first = 2 + len(before)
    step = np.concatenate([np.arange(2, first), np.arange(first + 5, first + 5 + len(after))])
    wall = np.concatenate([before, after]) * MS
    kind = np.zeros(len(step), np.int64)
    if kinds is not None:
        kind = np.repeat(np.asarray(kinds), (len(before), len(after)))
    return compare_sides(step, wall.astype(np.int64), kind, first)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
@pytest.mark.parametrize(("before", "after"), [(12, 40), (20, 20), (40, 400), (400, 8)])
def test_steps_that_a_window_slowed_are_seen(before: int, after: int, correlation: float) -> None:
    for seed in range(5):
        steps = 20 * (1 + noise(before + after, seed, correlation))
        found = effect(steps[:before], 1.25 * steps[before:])
        assert found.verdict is Effect.SLOWER
        assert found.change == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("before", "after"), [(5, 50), (20, 20), (50, 300)])
def test_a_window_without_effect_is_hardly_ever_taken_for_one(before: int, after: int, correlation: float) -> None:
    verdicts = []
    for seed in range(40):
        steps = 20 * (1 + noise(before + after, seed, correlation))
        verdicts.append(effect(steps[:before], steps[before:]).verdict)
    assert verdicts.count(Effect.SLOWER) <= 2


def test_a_drift_is_no_window() -> None:
    for seed in range(5):
        steps = 20 * (1 + noise(200, seed, 0.3)) * np.linspace(1, 1.3, 200)
        assert effect(steps[:80], steps[80:]).verdict in (Effect.DRIFT, Effect.NO_DIFFERENCE)


def test_a_difference_that_does_not_matter_is_none() -> None:
    steps = 20 * (1 + noise(2000, 0) / 10)
    assert effect(steps[:1000], 1.01 * steps[1000:]).verdict is Effect.NO_DIFFERENCE


def test_steps_that_are_faster_behind_a_window_are_no_effect_of_it() -> None:
    steps = 20 * (1 + noise(80, 0))
    assert effect(1.2 * steps[:40], steps[40:]).verdict is Effect.FASTER


def test_single_stalls_change_nothing() -> None:
    steps = 20 * (1 + noise(80, 3))
    steps[[50, 55, 61, 70]] *= 20
    assert effect(steps[:40], steps[40:]).verdict is Effect.NO_DIFFERENCE


@pytest.mark.parametrize(("before", "after"), [(0, 30), (1, 30), (4, 30), (30, 0), (30, 4), (0, 0)])
def test_too_few_steps_on_a_side_are_not_tested_and_both_medians_are_there(before: int, after: int) -> None:
    steps = np.full(before + after, 20.0)
    found = effect(steps[:before], 2 * steps[before:])
    assert found.verdict is Effect.UNTESTED
    assert "at least 5 on each side" in (found.reason or "")
    assert (found.before_s, found.after_s) == (0.020 if before else None, 0.040 if after else None)


def test_steps_of_another_kind_on_the_other_side_are_not_compared() -> None:
    steps = np.full(40, 20.0)
    found = effect(steps[:20], 4 * steps[20:], kinds=(2, 8))
    assert found.verdict is Effect.UNTESTED
    assert "differ in kind" in (found.reason or "")


def test_few_steps_of_a_quiet_spell_before_a_window_blame_it_for_nothing() -> None:
    steps = 50 * (1 + noise(140, 5) / 10)
    steps[6:] *= 1.6
    assert effect(steps[:6], steps[6:]).verdict is Effect.DRIFT
    assert effect(np.concatenate([steps[:6], steps[:6]]), steps[6:]).verdict is Effect.SLOWER


VALUES = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@given(values=VALUES, fraction=st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]))
def test_quantiles_are_numpys(values: list[int], fraction: float) -> None:
    assert count_values(values).quantile(fraction) == pytest.approx(np.quantile(values, fraction))


def test_nothing_has_no_median() -> None:
    empty = count_values([])
    assert (empty.median(), empty.mean(), empty.median_interval()) == (None, None, None)


def test_two_values_have_no_interval() -> None:
    assert count_values([1.0, 2.0]).median_interval() is None


@pytest.mark.parametrize("n", [3, 7, 15, 49])
def test_the_interval_is_that_of_drawn_resamples(n: int) -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(100, 5, n)
    medians = np.median(draw.choice(values, (40_000, n)), axis=1)
    assert count_values(values).median_interval() == pytest.approx(np.percentile(medians, [2.5, 97.5]))


@pytest.mark.parametrize("n", [3, 4, 7, 8, 49, 50, 1000, 1001, 20_000])
def test_its_ranks_are_the_binomials(n: int) -> None:
    ranks = np.arange(1, n + 1)
    low = ranks[np.searchsorted(stats.binom.sf((n + 1) // 2 - 1, n, ranks / n), 0.025, "right")]
    high = ranks[np.searchsorted(stats.binom.sf(n // 2, n, ranks / n), 0.975)]
    assert count_values(ranks).median_interval() == (low, high)
