"""Scaling laws against data that follow them, and against the last points of published series."""

from __future__ import annotations

import csv
from itertools import groupby

import numpy as np
import pytest

from perfscope.analyzers.scaling.fits import LAWS, Configuration, Fit, Prediction, fit_law
from tests.conftest import ROOT

GPUS = (1, 2, 4, 8, 16, 32)


def fit(law: str, observations: list[tuple[int, float]], *predict: int) -> Fit:
    """Fit runs on clusters of nodes of one GPU."""
    speeds: dict[int, list[float]] = {}
    for gpus, speed in observations:
        speeds.setdefault(gpus, []).append(speed)
    return fit_law(law, [Configuration(gpus, tuple(runs), nodes=gpus) for gpus, runs in speeds.items()], predict)


def series(law: str, *parameters: float, gpus: tuple[int, ...] = GPUS) -> list[tuple[int, float]]:
    return [(n, float(LAWS[law](np.asarray([float(n)]), *parameters)[0])) for n in gpus]


@pytest.mark.parametrize(("law", "parameters"), [("amdahl", (100.0, 0.03)), ("doubling", (150.0, 0.02))])
def test_a_law_is_recovered_from_its_own_figures(law: str, parameters: tuple[float, ...]) -> None:
    found = fit(law, series(law, *parameters), 64)
    assert tuple((found.parameters or {}).values()) == pytest.approx(parameters, rel=1e-9)
    assert found.relative_error == pytest.approx(0, abs=1e-9)
    assert found.predictions[0].samples_per_s == pytest.approx(series(law, *parameters, gpus=(64,))[0][1])


def test_figures_that_no_share_explains_give_the_nearest_share() -> None:
    growing, falling = [(1, 100.0), (2, 220.0), (4, 480.0)], [(1, 100.0), (2, 90.0), (4, 80.0)]
    assert (fit("amdahl", growing).parameters or {})["sigma"] == 0
    assert (fit("amdahl", falling).parameters or {})["sigma"] == 1
    found = fit("doubling", growing, 8)
    assert found.parameters == {"lambda": pytest.approx((100 * 110 * 120) ** (1 / 3)), "loss": 0}
    assert found.predictions[0].samples_per_s < 8 * 120
    assert found.intervals is not None
    assert found.intervals["loss"][0] == 0


def test_more_repeats_on_the_same_configurations_do_not_make_an_interval_narrower() -> None:
    draw = np.random.default_rng(3)
    observations = [(n, speed * draw.normal(1, 0.03)) for n, speed in series("doubling", 100.0, 0.04)]
    few, some = fit("doubling", observations, 64), fit("doubling", observations * 9, 64)
    assert some.intervals == few.intervals
    assert some.predictions == few.predictions
    assert (few.observations, some.observations, some.configurations) == (6, 54, 6)


def last_of(points: list[tuple[int, float]], nodes_of: int) -> tuple[Prediction, float]:
    """The last point by the earlier ones, and as published."""
    *earlier, (last, measured) = points
    configurations = [Configuration(gpus, (speed,), max(1, gpus // nodes_of)) for gpus, speed in earlier]
    [prediction] = fit_law("doubling", configurations, (last,)).predictions
    return prediction, measured


def half_width(prediction: Prediction) -> float:
    assert prediction.interval is not None
    return (prediction.interval[1] - prediction.interval[0]) / 2 / prediction.samples_per_s


#: Tokens/s of a GPU, by doublings: NVIDIA/dgxc-benchmarking 25.02, its READMEs of Llama 3.1, Nemotron4, GPT3 and MaxText.
DGXC = {
    "70b BF16": (64, (1121.2, 1114.6, 1112.8, 1107.0, 1102.8, 1103.8)),
    "70b FP8": (64, (1566.8, 1557.0, 1524.1, 1522.3, 1512.8, 1490.8)),
    "8b BF16": (8, (10253.5, 10090.2, 10082.4, 10082.5, 9962.1)),
    "8b FP8": (8, (13881.8, 13834.9, 13659.0, 13603.7, 13477.8)),
    "MaxText 70b BF16": (128, (1052.8, 1060.9, 1055.7, 1050.1, 1030.6)),
    "MaxText 70b FP8": (128, (1805.6, 1726.8, 1772.4, 1727.7, 1754.4)),
    "175b BF16": (128, (493.0, 487.2, 486.5, 484.6, 482.4)),
    "175b FP8": (128, (728.0, 715.5, 709.4, 703.8, 687.2)),
    "15b BF16": (16, (5826.4, 5801.7, 5758.9, 5730.7, 5744.7, 5698.8, 5659.4, 5675.1)),
    "15b FP8": (16, (8035.3, 8007.8, 8000.0, 7957.3, 7895.9, 7728.3, 7824.3, 7728.3)),
    "340b BF16": (128, (222.1, 219.3, 217.9, 216.5, 211.6)),
    "340b FP8": (128, (324.0, 319.0, 314.1, 306.6, 293.4)),
    "405b BF16": (576, (204.8, 203.6, 202.5)),
    "405b FP8": (576, (325.8, 322.9, 320.0)),
    "LoRA 70b BF16": (8, (1796.9, 1742.9, 1677.0)),
    "LoRA 70b FP8": (8, (2520.5, 2445.3, 2155.8)),
}


def test_the_last_points_of_dgxc_are_in_narrow_intervals() -> None:
    answers = [
        last_of([(first << index, speed * (first << index)) for index, speed in enumerate(speeds)], nodes_of=8)
        for first, speeds in DGXC.values()
        if len(speeds) > 3 or first > 8  # two points on one node and two tell nothing of four
    ]
    assert all(low <= measured <= high for one, measured in answers for low, high in [one.interval or (0, 0)])
    assert np.median([abs(one.samples_per_s / measured - 1) for one, measured in answers]) < 0.007
    assert np.median([half_width(one) for one, _ in answers]) < 0.04


def published_series() -> list[list[tuple[int, float]]]:
    """Series of four points and more that DLPerf publishes: pairs of GPUs and samples/s, by GPUs."""
    with (ROOT / "fixtures" / "published" / "dlperf_series.csv").open(newline="") as file:
        groups = groupby(csv.DictReader(file), key=lambda row: (row["file"], row["line"], row["column"]))
        return [sorted((int(row["gpus"]), float(row["samples_per_s"])) for row in group) for _, group in groups]


def test_the_last_points_of_published_series_are_in_nineteen_of_twenty_intervals() -> None:
    """97 series of DLPerf, most of which have one node with several GPUs and the step to a network."""
    answers = [last_of(points, nodes_of=8) for points in published_series()]
    told = [(one, measured, one.interval) for one, measured in answers if one.interval is not None]
    held = [interval[0] <= measured <= interval[1] for _, measured, interval in told]
    assert np.mean(held) >= 0.95
    assert np.median([half_width(one) for one, _, _ in told]) <= 0.2
    assert len(held) > 0.9 * len(answers)


@pytest.mark.parametrize("configurations", [4, 6])
def test_where_points_scatter_by_1_percent_the_half_width_is_6_percent(configurations: int) -> None:
    draw, held, widths = np.random.default_rng(7), [], []
    for _ in range(400):
        points = [(n, x * np.exp(draw.normal(0, 0.01))) for n, x in series("doubling", 100.0, 0.02)[:configurations]]
        prediction = fit("doubling", points).predictions[0]
        assert prediction.interval is not None
        [(_, truth)] = series("doubling", 100.0, 0.02, gpus=(prediction.gpus,))
        held.append(prediction.interval[0] <= truth * np.exp(draw.normal(0, 0.01)) <= prediction.interval[1])
        widths.append(half_width(prediction))
    assert np.mean(held) >= 0.94
    assert np.median(widths) <= 0.06


@pytest.mark.parametrize(
    ("law", "nodes", "speeds", "reason"),
    [
        ("doubling", 2, [(1, 100.0), (2, 120.0), (4, 360.0), (8, 400.0)], "the interval is wider than the prediction"),
        ("doubling", 1, [(1, 100.0), (2, 198.0), (4, 392.0), (8, 780.0)], "all runs are on one node"),
        ("amdahl", 2, [(1, 100.0), (2, 190.0), (4, 360.0), (8, 700.0)], "GPUs run out of work"),
    ],
)
def test_what_cannot_be_told_is_said_with_its_reason(
    law: str, nodes: int, speeds: list[tuple[int, float]], reason: str
) -> None:
    configurations = [Configuration(gpus, (speed,), nodes) for gpus, speed in speeds]
    [prediction] = fit_law(law, configurations, (64,)).predictions
    assert prediction.interval is None
    assert reason in (prediction.reason or "")


def test_two_points_tell_what_published_series_scatter_by() -> None:
    found = fit("doubling", [(8, 800.0), (16, 1568.0)], 32, 4096)
    near, far = found.predictions
    assert near.samples_per_s == pytest.approx(32 * 98 * 0.98)
    assert 0.1 < half_width(near) < 0.12
    assert far.interval is None
    assert fit("doubling", [(8, 800.0), (8, 790.0)]).reason == "a law needs two different numbers of GPUs"
