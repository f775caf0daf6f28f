"""Scaling laws: the share of the work that does not scale, and the number of GPUs beyond which throughput drops.

With N GPUs and throughput X(N), lambda the throughput of one GPU:

- Amdahl (1967), for a fixed amount of work: ``lambda N / (1 + sigma (N - 1))``; sigma is the serial share.
- Universal scalability law (Gunther 1993): ``lambda N / (1 + sigma (N - 1) + kappa N (N - 1))``. Sigma is contention,
  kappa the cost of coherency. The peak is at ``sqrt((1 - sigma) / kappa)``.

Fitted by least squares on relative errors to the medians of the configurations. Repeats on one configuration share its
error: the nodes that a job got, the network between them. So a configuration is one observation. Intervals are
Student's, of the law in its linear form, in N / X. Of few
configurations that happen to agree, the error would be underestimated; it is taken to be at least 2 %. A prediction
includes the error of the predicted configuration.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.stats import t as student

from perfscope.measures.statistics import CONFIDENCE
from perfscope.result import Doc, Figures

#: What configurations are taken to differ by at least, as a share of the throughput.
LEAST_ERROR = 0.02
#: With fewer configurations, the few studies whose configurations happen to agree would get too narrow an interval.
_LEAST_CONFIGURATIONS = {"amdahl": 4, "usl": 7}
_WEIGHTINGS = 10
#: A kappa that is not distinguished from 0.
_NO_COHERENCY = 1e-9
_ROUNDING = 1e-6

Interval: TypeAlias = tuple[float, float]
_Floats = npt.NDArray[np.float64]
_Function = Callable[..., _Floats]


class Configuration(NamedTuple):
    """The runs on one cluster: its GPUs, the throughput of each run in samples/s, its nodes."""

    gpus: int
    speeds: tuple[float, ...]
    nodes: int = 1


class Prediction(Figures, frozen=True):
    """Predicted throughput on a number of GPUs."""

    gpus: Annotated[int, Doc("Number of GPUs.")]
    samples_per_s: Annotated[float, Doc("Throughput by the law.")]
    interval: Annotated[
        Interval | None, Doc("95 % interval of what runs on these GPUs measure; null where the runs cannot tell.")
    ]
    efficiency: Annotated[float, Doc("Throughput per GPU by the law over the law's throughput of one GPU.")]
    reason: Annotated[str | None, Doc("Why the runs cannot tell.")]


class Fit(Figures, frozen=True, kw_only=True):
    """One fitted scaling law: ``amdahl`` or ``usl``."""

    law: str
    parameters: Annotated[Mapping[str, float] | None, Doc("By name; null without a fit.")] = None
    intervals: Annotated[
        Mapping[str, Interval | None] | None,
        Doc("95 % interval of each; null of as few configurations as parameters, or if these contradict the law."),
    ] = None
    relative_error: Annotated[float | None, Doc("Root mean square of the relative errors of the configurations.")] = (
        None
    )
    observations: Annotated[int, Doc("Number of runs.")]
    configurations: Annotated[int, Doc("Number of configurations.")]
    peak_gpus: Annotated[float | None, Doc("GPUs with the highest throughput; null if the fit has no peak.")] = None
    predictions: Annotated[tuple[Prediction, ...], Doc("For the requested numbers of GPUs.")] = ()
    reason: Annotated[str | None, Doc("Why there is no fit.")] = None

    def throughput(self, gpus: _Floats) -> _Floats:
        """Throughput by the law on numbers of GPUs."""
        return LAWS[self.law].function(gpus, *(self.parameters or {}).values())


def amdahl(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Amdahl's law."""
    return np.asarray(speed * gpus / (1 + serial * (gpus - 1)), np.float64)


def usl(gpus: _Floats, speed: float, contention: float, coherency: float) -> _Floats:
    """Throughput by the universal scalability law."""
    return np.asarray(speed * gpus / (1 + contention * (gpus - 1) + coherency * gpus * (gpus - 1)), np.float64)


class Law(NamedTuple):
    """A law's function, the names of its parameters, and their upper bounds; the lower bounds are 0."""

    function: _Function
    parameters: tuple[str, ...]
    upper_bounds: tuple[float, ...]


#: The laws by name.
LAWS = {
    "amdahl": Law(amdahl, ("lambda", "sigma"), (np.inf, 1.0)),
    "usl": Law(usl, ("lambda", "sigma", "kappa"), (np.inf, 1.0, np.inf)),
}


def fit_laws(configurations: Sequence[Configuration], predict: Sequence[int] = ()) -> tuple[Fit, ...]:
    """Fit every law to configurations; by default predict twice the largest number of GPUs."""
    predicted_gpus = tuple(predict) or (2 * max(configuration.gpus for configuration in configurations),)
    return tuple(fit_law(law, configurations, predicted_gpus) for law in LAWS)


def fit_law(law: str, configurations: Sequence[Configuration], predicted_gpus: Sequence[int]) -> Fit:
    """Fit one law to configurations, and predict numbers of GPUs."""
    function, names, upper_bounds = LAWS[law]
    gpus = np.asarray([configuration.gpus for configuration in configurations], np.float64)
    speeds = np.asarray([median(configuration.speeds) for configuration in configurations], np.float64)
    runs = sum(len(configuration.speeds) for configuration in configurations)
    distinct = len(np.unique(gpus))
    if distinct < len(names):
        reason = f"{len(names)} parameters need {len(names)} different numbers of GPUs, not {distinct}"
        return Fit(law=law, observations=runs, configurations=len(gpus), reason=reason)
    start = (float((speeds / gpus).max()), *(0.01 / 100**index for index in range(len(names) - 1)))
    try:
        with warnings.catch_warnings():
            # As many observations as parameters leave no covariance, which is not used.
            warnings.simplefilter("ignore", OptimizeWarning)
            bounds = (np.zeros(len(start)), np.asarray(upper_bounds))
            values, _ = curve_fit(function, gpus, speeds, p0=start, sigma=speeds, bounds=bounds, x_scale=start)
    except RuntimeError as error:
        reason = f"the fit does not converge: {error}"
        return Fit(law=law, observations=runs, configurations=len(gpus), reason=reason)
    parameters = dict(zip(names, values.tolist(), strict=True))
    linear = _fit_linear(law, gpus, speeds)
    intervals = _clip(parameters, linear, upper_bounds)
    predictions = []
    for count in predicted_gpus:
        speed = float(function(np.asarray([float(count)]), *values)[0])
        if all(one.nodes == 1 for one in configurations) and count > gpus.max():
            answer: Interval | str = "all runs are on one node: what a network between nodes costs was not measured"
        else:
            answer = linear if isinstance(linear, str) else linear.predict(count, speed)
        efficiency = speed / count / float(function(np.ones(1), *values)[0])
        why = answer if isinstance(answer, str) else None
        predictions.append(Prediction(count, speed, None if isinstance(answer, str) else answer, efficiency, why))
    return Fit(
        law=law,
        parameters=parameters,
        intervals=intervals,
        relative_error=float(np.sqrt(np.mean((function(gpus, *values) / speeds - 1) ** 2))),
        observations=runs,
        configurations=len(gpus),
        peak_gpus=_peak(parameters, intervals),
        predictions=tuple(predictions),
    )


@dataclass(frozen=True, slots=True)
class LinearFit:
    """A law in its linear form, the relative error of a configuration, and Student's factor of the intervals."""

    law: str
    configurations: int
    coefficients: _Floats
    covariance: _Floats
    error: float
    factor: float

    def predict(self, gpus: int, speed: float) -> Interval | str:
        """The interval that runs on these GPUs measure, or why they cannot tell; ``speed`` is the law's prediction."""
        least = _LEAST_CONFIGURATIONS[self.law]
        if self.configurations < least:
            return f"{self.configurations} configurations are too few, {least} are needed"
        terms = _list_terms(self.law, np.asarray([float(gpus)]))[0]
        value = float(terms @ self.coefficients)
        half = self.factor * (float(terms @ self.covariance @ terms) + (self.error * value) ** 2) ** 0.5
        low, high = value - half, value + half
        low, high = (gpus / high if high > 0 else 0.0), (gpus / low if low > 0 else float("inf"))
        if not low <= speed <= high:
            return f"the law allows no such throughput: it says {speed:.4g}, the runs {low:.4g} to {high:.4g}"
        if high - low > speed:
            bounds = f"at least {low:.4g}" if np.isinf(high) else f"{low:.4g} to {high:.4g}"
            return f"the interval is wider than the prediction itself ({bounds})"
        return low, high

    def parameters(self) -> list[Interval]:
        """Lambda, and the ratios of the further coefficients to the first one by the delta method."""
        first = float(self.coefficients[0])
        half = self.factor * float(self.covariance[0, 0]) ** 0.5
        low, high = first - half, first + half
        intervals = [(1 / high, 1 / low if low > 0 else float("inf"))]
        for index in range(1, len(self.coefficients)):
            ratio = float(self.coefficients[index]) / first
            gradient = np.zeros(len(self.coefficients))
            gradient[0], gradient[index] = -ratio / first, 1 / first
            half = self.factor * max(float(gradient @ self.covariance @ gradient), 0.0) ** 0.5
            intervals.append((ratio - half, ratio + half))
        return intervals


def _fit_linear(law: str, gpus: _Floats, speeds: _Floats) -> LinearFit | str:
    """A law in its linear form; why its configurations are too few."""
    terms = _list_terms(law, gpus)
    degrees_of_freedom = len(gpus) - terms.shape[1]
    if degrees_of_freedom <= 0:
        return f"{len(gpus)} configurations leave no error to judge {terms.shape[1]} parameters by"
    values = gpus / speeds
    expected = values
    for _ in range(_WEIGHTINGS):  # errors are relative to the law's values, which the fit gives
        weighted = terms / expected[:, None]
        coefficients = np.asarray(np.linalg.lstsq(weighted, values / expected, rcond=None)[0], np.float64)
        expected = np.maximum(terms @ coefficients, values / 2)
    residuals = values / expected - weighted @ coefficients
    error = max((float(residuals @ residuals) / degrees_of_freedom) ** 0.5, LEAST_ERROR)
    covariance = np.linalg.inv(weighted.T @ weighted) * error**2
    factor = float(student.ppf((1 + CONFIDENCE) / 2, degrees_of_freedom))
    return LinearFit(law, len(values), coefficients, covariance, error, factor)


def _list_terms(law: str, gpus: _Floats) -> _Floats:
    columns = [np.ones_like(gpus), gpus - 1]  # N / X = 1 / lambda + sigma / lambda (N - 1)
    if law == "usl":
        columns.append(gpus * (gpus - 1))
    return np.column_stack(columns)


def _clip(
    parameters: Mapping[str, float], linear: LinearFit | str, upper_bounds: Sequence[float]
) -> dict[str, Interval | None]:
    """The part of each interval in which the law has a meaning; all are absent where one has none."""
    if isinstance(linear, str):
        return dict.fromkeys(parameters)
    clipped: dict[str, Interval | None] = {}
    for (name, value), (low, high), upper in zip(parameters.items(), linear.parameters(), upper_bounds, strict=True):
        interval = max(low, 0.0), min(high, upper)
        holds = interval[0] * (1 - _ROUNDING) <= value <= interval[1] * (1 + _ROUNDING)
        clipped[name] = interval if holds and np.isfinite(interval[1]) else None
    return clipped if None not in clipped.values() else dict.fromkeys(clipped)


def _peak(parameters: Mapping[str, float], intervals: Mapping[str, Interval | None]) -> float | None:
    """Where the derivative of the universal law is zero; none where kappa is not distinguished from zero."""
    kappa, interval = parameters.get("kappa", 0.0), intervals.get("kappa")
    if kappa <= _NO_COHERENCY or (interval is not None and interval[0] <= 0):
        return None
    return float(np.sqrt((1 - parameters["sigma"]) / kappa))
