"""Intervals of changes: against slow oracles, and how often they are wrong."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from scipy import stats

from perfscope.analyzers.compare.change import Samples, Variation, compare_loops, compare_samples
from perfscope.tables.columns import Float64


def autoregressive(generator: np.random.Generator, n: int, correlation: float, spread: float = 0.01) -> Float64:
    """Step times around 1 s, each of which resembles the one before it."""
    noise = generator.normal(0, spread, n + 100)
    values = np.zeros(n + 100)
    for index in range(1, n + 100):
        values[index] = correlation * values[index - 1] + noise[index]
    return np.exp(values[100:])


def one(values: Float64) -> Samples:
    return Samples((values,))


def finds(a: Float64, b: Float64) -> int:
    """-1 where B is faster, 1 where it is slower, 0 where no difference is found."""
    interval = compare_samples(one(a), one(b)).interval
    assert interval is not None
    return 1 if interval[0] > 0 else -1 if interval[1] < 0 else 0


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_of_200_pairs_of_the_same_training_at_most_5_percent_are_false_alarms(correlation: float) -> None:
    generator = np.random.default_rng(7)
    pairs = [[autoregressive(generator, 100, correlation) for _ in "ab"] for _ in range(200)]
    assert sum(finds(a, b) != 0 for a, b in pairs) <= 10


def test_two_percent_are_found_in_100_steps() -> None:
    generator = np.random.default_rng(11)
    found = [
        finds(autoregressive(generator, 100, 0.3, 0.003), 1.02 * autoregressive(generator, 100, 0.3, 0.003))
        for _ in range(200)
    ]
    assert found.count(1) >= 190
    assert found.count(-1) == 0


@pytest.mark.parametrize("steps", [20, 45, 90])
def test_single_slow_steps_hide_no_change(steps: int) -> None:
    """Logs of CI: steps spread 1 %, every tenth is disturbed, by up to a half, and the machine drifts a little."""
    generator = np.random.default_rng(23)

    def logged() -> Float64:
        values = autoregressive(generator, steps, 0.3) * np.exp(np.linspace(0, generator.normal(0, 0.003), steps))
        disturbance: Float64 = values * (1 + 0.5 * generator.random(steps) * (generator.random(steps) < 0.1))
        return disturbance

    pairs = [(logged(), logged()) for _ in range(200)]
    answers = {change: [finds(a, b * (1 + change)) for a, b in pairs] for change in (0.0, 0.02, -0.02, 0.05, -0.05)}
    assert answers[0.0].count(0) >= 190
    for change, least in ((0.02, 100), (0.05, 180)):
        assert answers[change].count(1) >= least
        assert answers[-change].count(-1) >= least


def test_many_steps_against_few_give_a_wide_interval() -> None:
    generator = np.random.default_rng(13)
    many, few = (autoregressive(generator, n, 0.2, 0.03) for n in (10_000, 10))
    other = autoregressive(generator, 10_000, 0.2, 0.03)
    wide, narrow = (compare_samples(one(many), one(each), between_runs=0).interval for each in (few, other))
    assert wide is not None
    assert narrow is not None
    assert wide[1] - wide[0] > 5 * (narrow[1] - narrow[0])
    assert wide[0] < 0 < wide[1]


def test_one_step_cannot_tell() -> None:
    change = compare_samples(one(np.array([1.0])), one(np.array([2.0])))
    assert change.interval is None
    assert change.change == 1
    assert "1 step of each side" in change.reason
    assert compare_samples(one(np.ones(10_000)), one(np.array([2.0]))).interval is None


def test_b_against_a_is_the_reverse_of_a_against_b() -> None:
    generator = np.random.default_rng(17)
    a, b = autoregressive(generator, 80, 0.4), 1.1 * autoregressive(generator, 70, 0.4)
    forth, back = compare_samples(one(a), one(b)), compare_samples(one(b), one(a))
    assert forth.interval is not None
    assert back.interval is not None
    assert log(1 + forth.change) == pytest.approx(-log(1 + back.change))
    assert log(1 + forth.interval[0]) == pytest.approx(-log(1 + back.interval[1]), rel=0.1)


def test_several_runs_have_welch_s_interval_of_their_medians() -> None:
    generator = np.random.default_rng(19)
    sides = [
        Samples(tuple(autoregressive(generator, 50, 0.3) * np.exp(generator.normal(0, spread)) for _ in range(count)))
        for count, spread in ((3, 0.02), (5, 0.05))
    ]
    change = compare_samples(sides[0], sides[1])
    assert change.variation is Variation.RUNS
    medians = [[log(np.median(run)) for run in side.runs] for side in sides]
    oracle = stats.ttest_ind(medians[1], medians[0], equal_var=False).confidence_interval(0.95)
    assert change.interval is not None
    assert [log(1 + bound) for bound in change.interval] == pytest.approx([oracle.low, oracle.high])


def test_a_run_that_drifts_has_a_wider_interval() -> None:
    generator = np.random.default_rng(29)
    quiet = [autoregressive(generator, 100, 0.0, 0.002) for _ in "ab"]
    drifting = [values * np.exp(np.linspace(-0.03, 0.03, 100)) for values in quiet]
    widths = []
    for pair in (quiet, drifting):
        interval = compare_samples(one(pair[0]), one(pair[1])).interval
        assert interval is not None
        widths.append(interval[1] - interval[0])
    assert widths[1] > 3 * widths[0]


def loop(values: Float64, named: float = 0.0, beside: float = 0.0) -> Samples:
    return Samples((values,), is_mean=True, named=(named,), beside=(beside,))


def test_a_known_cause_that_went_away_is_seen_where_steps_spread() -> None:
    generator = np.random.default_rng(31)
    pairs = [[autoregressive(generator, 60, 0.2, 0.05) for _ in "ab"] for _ in range(100)]
    changes = [compare_loops(loop(a, named=0.25), loop(b)) for a, b in pairs]
    assert sum(change.interval is not None and change.interval[1] < 0 for change in changes) >= 95
    assert all(change.interval is not None and change.interval[0] <= change.change for change in changes)


def test_loops_of_the_same_training_give_no_alarm() -> None:
    generator = np.random.default_rng(37)
    pairs = [[autoregressive(generator, 60, 0.2, 0.05) for _ in "ab"] for _ in range(200)]
    changes = [
        compare_loops(
            loop(a, generator.normal(0.3, 0.01), generator.normal(0, 0.02)),
            loop(b, generator.normal(0.3, 0.01), generator.normal(0, 0.02)),
        )
        for a, b in pairs
    ]
    alarms = [change for change in changes if change.interval is not None and not holds_zero(change.interval)]
    assert len(alarms) <= 10


def holds_zero(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]


def test_a_rest_that_became_slower_hides_no_more_than_it_took() -> None:
    """Validation of a quarter went away, and all other steps became longer by as much: nothing is certain."""
    generator = np.random.default_rng(41)
    a, b = (autoregressive(generator, 60, 0.2, 0.05) for _ in "ab")
    change = compare_loops(loop(a, named=0.25), loop(1.25 * b))
    assert change.interval is not None
    assert holds_zero(change.interval)
