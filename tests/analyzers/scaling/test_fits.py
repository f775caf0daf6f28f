"""Scaling laws against data that follow them, and against a search that knows no calculus."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.scaling.fits import Fit, amdahl, fit_laws, gustafson, usl

GPUS = (1, 2, 4, 8, 16, 32)


def fits(observations: list[tuple[int, float]], *predict: int) -> dict[str, Fit]:
    return {fit.law: fit for fit in fit_laws(observations, predict)}


@pytest.mark.parametrize(
    ("law", "function", "parameters"),
    [
        ("amdahl", amdahl, (100.0, 0.03)),
        ("gustafson", gustafson, (100.0, 0.2)),
        ("usl", usl, (150.0, 0.02, 0.0004)),
    ],
)
def test_a_law_is_recovered_from_its_own_figures(law: str, function: object, parameters: tuple[float, ...]) -> None:
    observations = [(n, float(function(np.asarray([float(n)]), *parameters)[0])) for n in GPUS]  # type: ignore[operator]
    fit = fits(observations, 64)[law]
    assert tuple(fit.parameters.values()) == pytest.approx(parameters, rel=1e-4)
    assert fit.error == pytest.approx(0, abs=1e-6)
    assert fit.predictions[0].samples_per_s == pytest.approx(
        float(function(np.asarray([64.0]), *parameters)[0]),  # type: ignore[operator]
        rel=1e-4,
    )


def test_amdahl_by_hand() -> None:
    # With a serial share of a half no number of GPUs is more than twice as fast: 2 are 4/3, 4 are 8/5.
    assert amdahl(np.asarray([1.0, 2.0, 4.0, 1e9]), 1.0, 0.5).tolist() == pytest.approx([1, 4 / 3, 8 / 5, 2])


def test_gustafson_by_hand() -> None:
    assert gustafson(np.asarray([1.0, 2.0, 4.0]), 1.0, 0.5).tolist() == [1.0, 1.5, 2.5]


def test_the_universal_law_peaks_where_it_is_largest() -> None:
    observations = [(n, float(usl(np.asarray([float(n)]), 100.0, 0.05, 0.001)[0])) for n in (*GPUS, 64, 128)]
    fit = fits(observations)["usl"]
    everywhere = np.arange(1.0, 200.0)
    assert fit.peak_gpus == pytest.approx(np.sqrt(0.95 / 0.001), rel=1e-3)
    assert abs(everywhere[np.argmax(fit.throughput(everywhere))] - fit.peak_gpus) <= 1


def test_no_grid_point_fits_better() -> None:
    draw = np.random.default_rng(7)
    observations = [(n, float(amdahl(np.asarray([float(n)]), 100.0, 0.04)[0] * draw.normal(1, 0.02))) for n in GPUS * 3]
    fit = fits(observations)["amdahl"]
    gpus, speeds = (np.asarray(column, np.float64) for column in zip(*observations, strict=True))
    best = min(
        float(np.sqrt(np.mean((amdahl(gpus, speed, serial) / speeds - 1) ** 2)))
        for speed in np.linspace(90, 110, 81)
        for serial in np.linspace(0, 0.1, 101)
    )
    assert fit.error is not None
    assert fit.error <= best + 1e-9


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(11)
    held = predicted = 0
    for _ in range(100):
        observations = [
            (n, float(amdahl(np.asarray([float(n)]), 100.0, 0.04)[0] * draw.normal(1, 0.02))) for n in GPUS * 3
        ]
        fit = fits(observations, 64)["amdahl"]
        low, high = fit.intervals["sigma"] or (1.0, 0.0)
        held += low <= 0.04 <= high
        below, above = fit.predictions[0].interval or (1.0, 0.0)
        predicted += below <= float(amdahl(np.asarray([64.0]), 100.0, 0.04)[0]) <= above
    assert 88 <= held <= 100
    assert 88 <= predicted <= 100


def test_two_points_give_two_parameters_without_an_interval_and_no_universal_law() -> None:
    found = fits([(1, 100.0), (8, 600.0)])
    assert found["amdahl"].intervals == {"lambda": None, "sigma": None}
    assert found["amdahl"].predictions[0].interval is None
    assert found["amdahl"].predictions[0].gpus == 16
    assert found["usl"].reason == "3 parameters need 3 different numbers of GPUs, not 2"
    assert found["usl"].data()["parameters"] is None


def test_a_kappa_that_cannot_be_told_from_zero_has_no_peak() -> None:
    draw = np.random.default_rng(5)
    observations = [(n, 100.0 * n * draw.normal(1, 0.01)) for n in GPUS * 2]
    assert fits(observations)["usl"].peak_gpus is None
