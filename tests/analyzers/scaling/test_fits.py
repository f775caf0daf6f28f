"""Scaling laws against data that follow them, and against a search that knows no calculus."""

from __future__ import annotations

import csv
from itertools import groupby

import numpy as np
import pytest

from perfscope.analyzers.scaling.fits import Configuration, Fit, LinearFit, amdahl, fit_law, fit_laws, usl
from tests.conftest import ROOT

GPUS = (1, 2, 4, 8, 16, 32)


def fits(observations: list[tuple[int, float]], *predict: int) -> dict[str, Fit]:
    """Fit runs on clusters of nodes of one GPU."""
    speeds: dict[int, list[float]] = {}
    for gpus, speed in observations:
        speeds.setdefault(gpus, []).append(speed)
    configurations = [Configuration(gpus, tuple(runs), nodes=gpus) for gpus, runs in speeds.items()]
    return {fit.law: fit for fit in fit_laws(configurations, predict)}


@pytest.mark.parametrize(
    ("law", "function", "parameters"),
    [
        ("amdahl", amdahl, (100.0, 0.03)),
        ("usl", usl, (150.0, 0.02, 0.0004)),
    ],
)
def test_a_law_is_recovered_from_its_own_figures(law: str, function: object, parameters: tuple[float, ...]) -> None:
    observations = [(n, float(function(np.asarray([float(n)]), *parameters)[0])) for n in GPUS]  # type: ignore[operator]
    fit = fits(observations, 64)[law]
    assert tuple((fit.parameters or {}).values()) == pytest.approx(parameters, rel=1e-4)
    assert fit.relative_error == pytest.approx(0, abs=1e-6)
    assert fit.predictions[0].samples_per_s == pytest.approx(
        float(function(np.asarray([64.0]), *parameters)[0]),  # type: ignore[operator]
        rel=1e-4,
    )


def test_the_universal_law_peaks_where_it_is_largest() -> None:
    observations = [(n, float(usl(np.asarray([float(n)]), 100.0, 0.05, 0.001)[0])) for n in (*GPUS, 64, 128)]
    fit = fits(observations)["usl"]
    everywhere = np.arange(1.0, 200.0)
    assert fit.peak_gpus == pytest.approx(np.sqrt(0.95 / 0.001), rel=1e-3)
    assert abs(everywhere[np.argmax(fit.throughput(everywhere))] - fit.peak_gpus) <= 1


def test_more_repeats_on_the_same_configurations_do_not_make_an_interval_narrower() -> None:
    draw = np.random.default_rng(3)
    observations = [(n, float(amdahl(np.asarray([float(n)]), 100.0, 0.04)[0] * draw.normal(1, 0.03))) for n in GPUS]
    few, some = fits(observations, 64)["amdahl"], fits(observations * 9, 64)["amdahl"]
    assert some.intervals == few.intervals
    assert some.predictions == few.predictions
    assert (few.observations, some.observations, some.configurations) == (6, 54, 6)


def published_series() -> list[list[tuple[int, float]]]:
    """Series of five points and more that DLPerf publishes: pairs of GPUs and samples/s, by GPUs."""
    with (ROOT / "fixtures" / "published" / "dlperf_series.csv").open(newline="") as file:
        groups = groupby(csv.DictReader(file), key=lambda row: (row["file"], row["line"], row["column"]))
        series = [sorted((int(row["gpus"]), float(row["samples_per_s"])) for row in group) for _, group in groups]
    return [points for points in series if len(points) >= 5]


def test_the_last_points_of_published_series_are_in_nine_of_ten_intervals() -> None:
    """68 series of DLPerf: with intervals of the mean over all runs 78 % for Amdahl's law, and no word of doubt."""
    held, widths = [], []
    for *points, (last, measured) in published_series():
        configurations = [Configuration(gpus, (speed,), max(1, gpus // 8)) for gpus, speed in points]
        [prediction] = fit_law("amdahl", configurations, (last,)).predictions
        if prediction.interval is not None:
            low, high = prediction.interval
            held.append(low <= measured <= high)
            widths.append((high - low) / prediction.samples_per_s)
    assert np.mean(held) >= 0.9
    assert np.median(widths) <= 1
    assert len(held) > 68 / 2


@pytest.mark.parametrize(
    ("configurations", "reason"),
    [
        ([(1, 100.0), (2, 190.0), (4, 360.0)], "3 configurations are too few, 4 are needed"),
        ([(1, 100.0), (2, 120.0), (4, 360.0), (8, 400.0), (16, 1400.0)], "the interval is wider than the prediction"),
        ([(1, 100.0), (2, 220.0), (4, 480.0), (8, 1050.0), (16, 2300.0)], "the law allows no such throughput"),
    ],
)
def test_what_cannot_be_told_is_said_with_its_reason(configurations: list[tuple[int, float]], reason: str) -> None:
    prediction = fits(configurations, 64)["amdahl"].predictions[0]
    assert prediction.interval is None
    assert reason in (prediction.reason or "")


def test_runs_on_one_node_tell_nothing_of_the_network() -> None:
    speeds = [(1, 100.0), (2, 198.0), (4, 392.0), (6, 590.0), (8, 780.0)]
    one_node = [Configuration(gpus, (speed,), nodes=1) for gpus, speed in speeds]
    inside, outside = fit_law("amdahl", one_node, (5, 16)).predictions
    assert inside.reason is None
    assert "one node" in (outside.reason or "")


def test_two_points_give_two_parameters_without_an_interval_and_no_universal_law() -> None:
    found = fits([(1, 100.0), (8, 600.0)])
    assert found["amdahl"].intervals == {"lambda": None, "sigma": None}
    assert found["amdahl"].predictions[0].interval is None
    assert found["amdahl"].predictions[0].gpus == 16
    assert found["usl"].reason == "3 parameters need 3 different numbers of GPUs, not 2"
    assert found["usl"].parameters is None


def test_a_kappa_that_cannot_be_told_from_zero_has_no_peak() -> None:
    draw = np.random.default_rng(5)
    observations = [(n, 100.0 * n * draw.normal(1, 0.01)) for n in GPUS * 2]
    assert fits(observations)["usl"].peak_gpus is None


def test_the_interval_of_a_ratio_of_coefficients_by_hand() -> None:
    """Of 0.1 / 1 the variance is 0.1 * 0.1 * 0.04 - 2 * 0.1 * 0.01 + 0.09, and the factor 2."""
    linear = LinearFit("amdahl", 6, np.asarray([1.0, 0.1]), np.asarray([[0.04, 0.01], [0.01, 0.09]]), 0.02, 2.0)
    speed, serial = linear.parameters()
    assert speed == pytest.approx((1 / 1.4, 1 / 0.6))
    assert serial == pytest.approx((0.1 - 2 * 0.0884**0.5, 0.1 + 2 * 0.0884**0.5))
