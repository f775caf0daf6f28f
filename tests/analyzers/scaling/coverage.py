"""How often the intervals of scaling laws hold the last point of published series."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from perfscope.analyzers.scaling.fits import LAWS, Configuration, Fit, fit_law

ROOT = Path(__file__).parents[3]
SERIES = {
    "DLPerf": ROOT / "fixtures" / "published" / "dlperf_series.csv",
    "others": ROOT / "fixtures" / "published" / "other_series.csv",
}
TRUTH = {"amdahl": (100.0, 0.02), "gustafson": (100.0, 0.1), "usl": (100.0, 0.01, 0.0002)}
GPUS_PER_NODE = 8
_FEWEST_FITTED = 3


def _hold(fit: Fit, measured: float) -> Iterator[tuple[bool, float]]:
    """Whether the prediction's interval holds a measurement, and its relative width; nothing where it cannot tell."""
    for prediction in fit.predictions:
        if prediction.interval is not None:
            low, high = prediction.interval
            yield low <= measured <= high, (high - low) / prediction.samples_per_s


def _summarize(predictions: list[tuple[bool, float]], asked: int) -> dict[str, Any]:
    return {
        "prediction": _share([holds for holds, _ in predictions]),
        "cannot_tell": round(1 - len(predictions) / asked, 3),
        "width": round(median(width for _, width in predictions), 3) if predictions else None,
    }


def _share(outcomes: list[bool]) -> float | None:
    return round(sum(outcomes) / len(outcomes), 3) if outcomes else None


def read_series(pages: str) -> list[list[tuple[int, float]]]:
    """The published series of some pages: pairs of GPUs and samples/s, by GPUs."""
    with SERIES[pages].open(newline="") as file:
        rows = list(csv.DictReader(file))
    groups = groupby(rows, key=lambda row: (row.get("repository"), row["file"], row["line"], row["column"]))
    return [sorted((int(row["gpus"]), float(row["samples_per_s"])) for row in group) for _, group in groups]


def predict_published(pages: str, least_points: int, *, later: bool = False) -> list[dict[str, Any]]:
    """Predict the last point of every published series of so many points from the others, by each law.

    ``later`` predicts every point behind the third, each from all before it.
    """
    series = [points for points in read_series(pages) if len(points) >= least_points]
    asked = [
        (points[:count], points[count])
        for points in series
        for count in range(_FEWEST_FITTED if later else len(points) - 1, len(points))
    ]
    results = []
    for law in LAWS:
        predictions: list[tuple[bool, float]] = []
        for points, (predicted, speed) in asked:
            configurations = [Configuration(gpus, (value,), max(1, gpus // GPUS_PER_NODE)) for gpus, value in points]
            predictions += list(_hold(fit_law(law, configurations, (predicted,)), speed))
        kind = {"pages": pages, "least_points": least_points, "later": later, "law": law, "series": len(asked)}
        results.append(kind | _summarize(predictions, len(asked)))
    return results
