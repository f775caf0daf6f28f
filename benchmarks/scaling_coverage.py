"""How often the intervals of scaling laws hold the truth, in simulated studies and in published series.

    python -m benchmarks.scaling_coverage --studies 400 --write fixtures/benchmarks/scaling-coverage.json
    python -m benchmarks.scaling_coverage --report

A simulated study draws one error for each configuration, which all its runs share, and one for each run. The prediction
is for twice the largest number of GPUs, and it is held against a run there, with errors of its own. A published series,
of DLPerf's pages, is fitted without its last point, and the prediction is held against that.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.scaling.fits import LAWS, Configuration, Fit, fit_law

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "fixtures" / "benchmarks" / "scaling-coverage.json"
REPORT = ROOT / "reports" / "scaling-coverage.md"
SERIES = {
    "DLPerf": ROOT / "fixtures" / "published" / "dlperf_series.csv",
    "others": ROOT / "fixtures" / "published" / "other_series.csv",
}
TRUTH = {"amdahl": (100.0, 0.02), "gustafson": (100.0, 0.1), "usl": (100.0, 0.01, 0.0002)}
CONFIGURATIONS = (4, 6, 8)
REPEATS = (1, 5)
ERRORS = (0.0, 0.01, 0.03, 0.05)
RUN_ERROR = 0.01
GPUS_PER_NODE = 8
_LEAST_POINTS = (4, 5)
_FEWEST_FITTED = 3
_SEED = 21
_GPUS = (1, 2, 4, 8, 16, 32, 64, 128)


def simulate(law: str, count: int, repeats: int, error: float, studies: int) -> dict[str, Any]:
    """The share of studies whose intervals hold the truth, with one kind of study."""
    draw = np.random.default_rng((_SEED, list(TRUTH).index(law), count, repeats, round(1000 * error)))
    # Four configurations skip 2 GPUs, as studies do that go to a second node.
    gpus = (1, 4, 8, 16) if count == CONFIGURATIONS[0] else _GPUS[:count]
    truth = LAWS[law].function(np.asarray([*gpus, 2 * gpus[-1]], np.float64), *TRUTH[law])
    parameters: list[bool] = []
    predictions: list[tuple[bool, float]] = []
    for _ in range(studies):
        shared = draw.normal(1, error, len(truth)) if error else np.ones(len(truth))
        runs = truth[:, None] * shared[:, None] * draw.normal(1, RUN_ERROR, (len(truth), repeats))
        fit = fit_law(law, _configure(gpus, runs), (2 * gpus[-1],))
        intervals = [fit.intervals[name] for name in fit.parameters]
        parameters += [
            interval[0] <= value <= interval[1]
            for interval, value in zip(intervals, TRUTH[law], strict=True)
            if interval is not None
        ]
        predictions += list(_hold(fit, float(runs[-1, 0])))
    return {
        "law": law,
        "configurations": count,
        "repeats": repeats,
        "configuration_error": error,
        "studies": studies,
        "parameters": _share(parameters),
        **_summarize(predictions, studies),
    }


def _configure(gpus: tuple[int, ...], runs: npt.NDArray[np.float64]) -> list[Configuration]:
    return [
        Configuration(count, tuple(map(float, speeds)), max(1, count // GPUS_PER_NODE))
        for count, speeds in zip(gpus, runs[:-1], strict=True)
    ]


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


def predict_all_published() -> list[dict[str, Any]]:
    """The rows of the report on published series."""
    rows = [row for pages in SERIES for least in _LEAST_POINTS for row in predict_published(pages, least)]
    return rows + predict_published("others", _LEAST_POINTS[0], later=True)


def measure(studies: int) -> dict[str, Any]:
    """All figures of the report."""
    kinds = product(TRUTH, CONFIGURATIONS, REPEATS, ERRORS)
    simulated = [simulate(law, count, repeats, error, studies) for law, count, repeats, error in kinds]
    return {"simulated": simulated, "published": predict_all_published()}


def describe(figures: dict[str, Any]) -> str:
    """The report."""
    lines = [
        "# Coverage of the intervals of scaling laws",
        "",
        "How often a 95 % interval of `perfscope scaling` holds the truth. *Cannot tell* is the share of studies",
        "without an interval: it would be wider than the prediction, or the configurations are too few. Coverage and",
        "median width (of the interval, relative to the prediction) are those of the other studies.",
        "",
        "## Published series",
        "",
        "Series of DLPerf's pages, fitted without their last point, with twice as many GPUs as the one before it; and",
        "of others that the laws were not made with: OneFlow-Benchmark's and InternEvo's, up to 1,024 GPUs.",
        "*Every later point* is each one behind the third, predicted from those before it. A straight line's interval",
        "includes that of the curve that saturates: without it, Gustafson's held 8 of 11 of the others' last points.",
        "",
        "| Pages | Points | Predicted | Law | Predictions | Cannot tell (%) | Coverage (%) | Median width (%) |",
        "|:---|:---|:---|:---|---:|---:|---:|---:|",
    ]
    for row in figures["published"]:
        kind = f"{row['pages']} | {row['least_points']} or more | {'every later point' if row['later'] else 'the last'}"
        lines.append(f"| {kind} | {row['law']} | {row['series']} | {_cells(row)} |")
    lines += [
        "",
        "## Simulated studies",
        "",
        f"Each kind of study {figures['simulated'][0]['studies']} times: a configuration has an error that its runs",
        f"share, and each run one of {_percent(RUN_ERROR)} %. *Parameters* is the coverage of the law's parameters.",
        "",
        "| Law | Configurations | Runs each | Error of a configuration (%) | Parameters (%) | Cannot tell (%) |"
        " Coverage (%) | Median width (%) |",
        "|:---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in figures["simulated"]:
        kind = f"{row['law']} | {row['configurations']} | {row['repeats']} | {_percent(row['configuration_error'])}"
        lines.append(f"| {kind} | {_percent(row['parameters'])} | {_cells(row)} |")
    lines += [
        "",
        "The figures are in `fixtures/benchmarks/scaling-coverage.json`, from `python -m benchmarks.scaling_coverage`.",
        "",
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> str:
    return " | ".join(_percent(row[name]) for name in ("cannot_tell", "prediction", "width"))


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.0f}"


def main() -> None:
    """Measure, or write the report of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        arguments.write.write_text(json.dumps(measure(arguments.studies), indent=1) + "\n")
    if arguments.report:
        REPORT.write_text(describe(json.loads(FIGURES.read_text())))


if __name__ == "__main__":
    main()
