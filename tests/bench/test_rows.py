"""Rows are summed up and compared as an independent calculation does, and chance is not taken for a difference."""

from __future__ import annotations

import random
from math import exp, log
from statistics import median

import pytest
from scipy import stats

from perfscope.bench.rows import BenchRow, Measurement, compare_rows, sum_up
from tests.bench.examples import measurement, variant

SINGLE, DDP = variant("single", 1), variant("ddp", 2)


def rows_of(steps: dict[str, list[float]]) -> dict[str, BenchRow]:
    """Rows of trainings with these steps in ms, one a round."""
    variants = {"single": SINGLE, "ddp": DDP}
    return {
        name: sum_up([measurement(variants[name], ms, number) for number, ms in enumerate(series)])[0]
        for name, series in steps.items()
    }


def test_a_row_is_the_median_of_its_trainings() -> None:
    row = rows_of({"ddp": [10.0, 30.0, 11.0]})["ddp"]
    assert row.step_s == pytest.approx(0.011)
    assert row.samples_per_s == pytest.approx(16 / 0.011)
    assert row.tokens_per_s == pytest.approx(256 / 0.011)


def test_the_interval_and_the_ratio_are_students() -> None:
    draw = random.Random(1)
    slow = [20.0 * exp(draw.gauss(0, 0.02)) for _ in range(5)]
    fast = [10.0 * exp(draw.gauss(0, 0.02)) for _ in range(5)]
    rows = rows_of({"single": slow, "ddp": fast})
    expected = stats.ttest_1samp([log(ms / 1e3) for ms in fast], 0).confidence_interval(0.95)
    assert rows["ddp"].samples_per_s_interval == pytest.approx(
        (16 / exp(expected.high), 16 / exp(expected.low)), rel=1e-6
    )
    ratio = compare_rows(rows["ddp"], rows["single"])
    assert ratio is not None
    logs = [log(one / other) for one, other in zip(slow, fast, strict=True)]
    paired = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert ratio.interval == pytest.approx((exp(paired.low), exp(paired.high)), rel=1e-6)
    assert ratio.ratio == pytest.approx(median(slow) / median(fast), rel=1e-6)
    assert ratio.differs is True


def test_a_row_without_a_training_has_its_reason_and_no_figure() -> None:
    (row,) = sum_up([Measurement(DDP, 0, reason="out of memory: CUDA out of memory")])
    figures = ("samples_per_s", "samples_per_s_interval", "memory_change", "step_s", "tokens_per_s", "last_loss")
    assert [row.data()[name] for name in figures] == [None] * 6
    assert row.notes == ("out of memory: CUDA out of memory",)
    assert compare_rows(row, rows_of({"single": [1.0]})["single"]) is None


def test_a_row_of_which_some_trainings_failed_says_how_many() -> None:
    (row,) = sum_up([measurement(DDP, 10.0), Measurement(DDP, 1, reason="failed: RuntimeError: gone")])
    assert row.trainings == 1
    assert row.notes == ("1 of 2 trainings failed: RuntimeError: gone",)
