"""Medians, percentiles and the bootstrap interval against NumPy's and a drawn bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfscope.measures.statistics import count_values

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
