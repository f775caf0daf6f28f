"""Intervals of scaling laws from the errors of whole configurations.

Repeats on one configuration share its error: the nodes that a job got, the network between them, the batch that fits.
Three per cent a configuration is usual, and more repeats do not make it smaller. So a configuration is one observation,
and the intervals are Student's, with as many degrees of freedom as configurations exceed parameters.

In another form the laws are linear with relative errors: Amdahl's and the universal law in N / X, Gustafson's in X. Of
few configurations that happen to agree, the error would be underestimated; it is taken to be at least 2 %. A prediction
includes the error of the predicted configuration. A configuration that strays by 10 to 30 %, on a bad node, may go
unnoticed among few and shift the parameters. Where one is suspected, the intervals also contain the intervals of fits
that leave out each configuration in turn. `tests/analyzers/scaling/coverage.py` has the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

CONFIDENCE = 0.95
#: What configurations are taken to differ by at least, as a share of the throughput.
LEAST_ERROR = 0.02
#: An interval wider than the prediction itself says nothing.
WIDEST = 1.0
#: With fewer configurations, the few studies whose configurations happen to agree would get too narrow an interval.
LEAST_CONFIGURATIONS = {"amdahl": 4, "gustafson": 4, "usl": 7}
#: How often configurations that differ as usual may be taken for one that strays.
STRAY = 0.05
#: How often they may be suspected of it: parameters then hold whichever of them strays.
SUSPECTED = 0.8
_WEIGHTINGS = 10

Interval: TypeAlias = tuple[float, float]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LawIntervals:
    """A law in its linear form, with its covariance.

    Attributes:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        configurations: How many there are.
        coefficients: Of the linear form.
        covariance: Of the coefficients.
        error: Relative error of a configuration.
        factor: Student's factor of the intervals.
        parameters: The interval of each parameter of the law.
    """

    law: str
    configurations: int
    coefficients: _Floats
    covariance: _Floats
    error: float
    factor: float
    parameters: tuple[Interval, ...]

    def predict(self, gpus: int, speed: float) -> Interval | str:
        """The interval of the throughput that runs on a number of GPUs measure, or why they cannot tell.

        Args:
            gpus: The number of GPUs.
            speed: The law's own prediction, with parameters inside of their bounds.
        """
        least = LEAST_CONFIGURATIONS[self.law]
        if self.configurations < least:
            return f"{self.configurations} configurations are too few, {least} are needed"
        terms = _list_terms(self.law, np.asarray([float(gpus)]))[0]
        value = float(terms @ self.coefficients)
        variance = float(terms @ self.covariance @ terms) + (self.error * value) ** 2
        low, high = value - self.factor * variance**0.5, value + self.factor * variance**0.5
        if self.law != "gustafson":
            low, high = (gpus / high if high > 0 else 0.0), (gpus / low if low > 0 else float("inf"))
        low = max(low, 0.0)
        if not low <= speed <= high:
            return f"the law allows no such throughput: it says {speed:.4g}, the runs {low:.4g} to {high:.4g}"
        if high - low > WIDEST * speed:
            bounds = f"at least {low:.4g}" if np.isinf(high) else f"{low:.4g} to {high:.4g}"
            return f"the interval is wider than the prediction itself ({bounds})"
        return low, high


def estimate_intervals(law: str, gpus: _Floats, speeds: _Floats) -> LawIntervals | str:
    """Estimate the intervals of a law, or say why there are none.

    Args:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        gpus: The number of GPUs of each configuration.
        speeds: Its throughput.
    """
    terms = _list_terms(law, gpus)
    if len(gpus) <= terms.shape[1]:
        return f"{len(gpus)} configurations leave no error to judge {terms.shape[1]} parameters by"
    values = speeds if law == "gustafson" else gpus / speeds
    stray = _find_stray(terms, values, STRAY)
    if stray is not None:
        return f"the runs on {gpus[stray]:.0f} GPUs do not fit to the others: repeat them, or leave them out"
    estimate = _estimate(law, terms, values)
    if _find_stray(terms, values, SUSPECTED) is None:
        return estimate
    without = [_estimate(law, np.delete(terms, row, 0), np.delete(values, row)) for row in range(len(gpus))]
    ranges = zip(*(some.parameters for some in (estimate, *without)), strict=True)
    parameters = tuple((min(low for low, _ in group), max(high for _, high in group)) for group in ranges)
    return replace(estimate, parameters=parameters)


def _estimate(law: str, terms: _Floats, values: _Floats) -> LawIntervals:
    """The intervals of a law by all configurations, of which there are more than parameters."""
    degrees_of_freedom = len(values) - terms.shape[1]
    expected = values
    for _ in range(_WEIGHTINGS):  # errors are relative to the law's values, which the fit gives
        weighted = terms / expected[:, None]
        coefficients = np.asarray(np.linalg.lstsq(weighted, values / expected, rcond=None)[0], np.float64)
        expected = np.maximum(terms @ coefficients, values / 2)
    residuals = values / expected - weighted @ coefficients
    error = max((float(residuals @ residuals) / degrees_of_freedom) ** 0.5, LEAST_ERROR)
    covariance = np.linalg.inv(weighted.T @ weighted) * error**2
    factor = float(student.ppf((1 + CONFIDENCE) / 2, degrees_of_freedom))
    parameters = tuple(_parameter_intervals(law, coefficients, covariance, factor))
    return LawIntervals(law, len(values), coefficients, covariance, error, factor, parameters)


def _find_stray(terms: _Floats, values: _Floats, share: float) -> int | None:
    """The configuration that the law of the others misses by more than they differ, but in a share of sound studies.

    That is the externally studentised residual, against its quantile for the largest of so many
    (Cook and Weisberg, Residuals and Influence in Regression, 2.2.2). Of a single run a bad node is no share of an
    error that all configurations have, and intervals that contain it hold neither for it nor for the others.
    """
    scaled = terms / values[:, None]
    count, parameters = scaled.shape
    degrees_of_freedom = count - 1 - parameters
    if degrees_of_freedom < 1:
        return None
    misses = np.empty(count)
    for row in range(count):
        remaining = np.delete(scaled, row, axis=0)
        coefficients, *_ = np.linalg.lstsq(remaining, np.ones(count - 1), rcond=None)
        error = max(float(np.linalg.norm(1 - remaining @ coefficients)) / degrees_of_freedom**0.5, LEAST_ERROR)
        leverage = float(scaled[row] @ np.linalg.pinv(remaining.T @ remaining) @ scaled[row])
        misses[row] = abs(1 - float(scaled[row] @ coefficients)) / (error * (1 + leverage) ** 0.5)
    worst = int(np.argmax(misses))
    return worst if misses[worst] > student.ppf(1 - share / (2 * count), degrees_of_freedom) else None


def _list_terms(law: str, gpus: _Floats) -> _Floats:
    """The terms of a law's linear form, a row a configuration."""
    if law == "gustafson":  # X = lambda N - lambda alpha (N - 1)
        return np.column_stack([gpus, 1 - gpus])
    columns = [np.ones_like(gpus), gpus - 1]  # N / X = 1 / lambda + sigma / lambda (N - 1)
    if law == "usl":
        columns.append(gpus * (gpus - 1))
    return np.column_stack(columns)


def _parameter_intervals(law: str, coefficients: _Floats, covariance: _Floats, factor: float) -> Sequence[Interval]:
    """Lambda, and the ratios of the further coefficients to the first one by the delta method."""
    first = float(coefficients[0])
    half_width = factor * float(covariance[0, 0]) ** 0.5
    low, high = first - half_width, first + half_width
    if law != "gustafson":
        low, high = 1 / high, 1 / low if low > 0 else float("inf")
    intervals = [(low, high)]
    for index in range(1, len(coefficients)):
        ratio = float(coefficients[index]) / first
        gradient = np.zeros(len(coefficients))
        gradient[0], gradient[index] = -ratio / first, 1 / first
        half_width = factor * max(float(gradient @ covariance @ gradient), 0.0) ** 0.5
        intervals.append((ratio - half_width, ratio + half_width))
    return intervals
