"""Scaling laws: the share of the work that does not scale, and the number of GPUs beyond which throughput drops.

With N GPUs and throughput X(N), lambda the throughput of one GPU:

- Amdahl (1967), for a fixed amount of work: ``lambda N / (1 + sigma (N - 1))``; sigma is the serial share.
- Gustafson (1988), for work that grows with N: ``lambda (N - alpha (N - 1))``; alpha is the serial share.
- Universal scalability law (Gunther 1993): ``lambda N / (1 + sigma (N - 1) + kappa N (N - 1))``; sigma is contention,
  kappa the cost of coherency; the peak is at ``sqrt((1 - sigma) / kappa)``.

Fitted to all runs by least squares on relative errors. Intervals are Student's at 95 % from the covariance; they are
absent unless there are more observations than parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.stats import t as student

from perfscope.report import Json

CONFIDENCE = 0.95

_Floats = npt.NDArray[np.float64]
_Function = Callable[..., _Floats]
#: Step of numerical derivatives, relative to the parameter, and the least step.
_DERIVATIVE_STEP, _LEAST_STEP = 1e-6, 1e-12
#: A kappa that is not distinguished from 0.
_NO_COHERENCY = 1e-9


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted throughput on a number of GPUs.

    Attributes:
        gpus: Number of GPUs.
        samples_per_s: Predicted throughput.
        interval: 95 % interval of the mean; absent without a covariance.
        efficiency: Predicted throughput per GPU over that of one GPU.
    """

    gpus: int
    samples_per_s: float
    interval: tuple[float, float] | None
    efficiency: float


@dataclass(frozen=True, slots=True)
class Fit:
    """One fitted scaling law.

    Attributes:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        parameters: By name.
        intervals: 95 % interval of each; absent without a covariance.
        error: Root mean square of the relative errors.
        observations: Number of runs.
        peak_gpus: GPUs with the highest throughput; absent where the fit does not determine them.
        predictions: For the requested numbers of GPUs.
        reason: Why there is no fit; absent where there is one.
    """

    law: str
    parameters: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float] | None]
    error: float | None
    observations: int
    peak_gpus: float | None
    predictions: tuple[Prediction, ...]
    reason: str | None = None

    def data(self) -> dict[str, Json]:
        """The fit for JSON."""
        return {
            "parameters": dict(self.parameters) or None,
            "intervals": {name: list(interval) if interval else None for name, interval in self.intervals.items()}
            or None,
            "relative_error": self.error,
            "observations": self.observations,
            "peak_gpus": self.peak_gpus,
            "predictions": [
                {
                    "gpus": prediction.gpus,
                    "samples_per_s": prediction.samples_per_s,
                    "interval": list(prediction.interval) if prediction.interval else None,
                    "efficiency": prediction.efficiency,
                }
                for prediction in self.predictions
            ],
            "reason": self.reason,
        }

    def throughput(self, gpus: _Floats) -> _Floats:
        """Throughput by the law on numbers of GPUs."""
        return _LAWS[self.law].function(gpus, *self.parameters.values())


def amdahl(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Amdahl's law."""
    return np.asarray(speed * gpus / (1 + serial * (gpus - 1)), np.float64)


def gustafson(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Gustafson's law."""
    return np.asarray(speed * (gpus - serial * (gpus - 1)), np.float64)


def usl(gpus: _Floats, speed: float, contention: float, coherency: float) -> _Floats:
    """Throughput by the universal scalability law."""
    return np.asarray(speed * gpus / (1 + contention * (gpus - 1) + coherency * gpus * (gpus - 1)), np.float64)


class _Law(NamedTuple):
    """A law's function, the names of its parameters, and their upper bounds; the lower bounds are 0."""

    function: _Function
    parameters: tuple[str, ...]
    upper_bounds: tuple[float, ...]


_LAWS = {
    "amdahl": _Law(amdahl, ("lambda", "sigma"), (np.inf, 1.0)),
    "gustafson": _Law(gustafson, ("lambda", "alpha"), (np.inf, 1.0)),
    "usl": _Law(usl, ("lambda", "sigma", "kappa"), (np.inf, 1.0, np.inf)),
}


def fit_laws(observations: Sequence[tuple[int, float]], predict: Sequence[int] = ()) -> tuple[Fit, ...]:
    """Fit every law to pairs of GPUs and throughput; by default predict twice the largest number of GPUs."""
    gpus = np.asarray([pair[0] for pair in observations], np.float64)
    speeds = np.asarray([pair[1] for pair in observations], np.float64)
    predicted_gpus = tuple(predict) or (2 * int(gpus.max()),)
    return tuple(_fit(law, gpus, speeds, predicted_gpus) for law in _LAWS)


def _fit(law: str, gpus: _Floats, speeds: _Floats, predicted_gpus: Sequence[int]) -> Fit:
    function, names, upper_bounds = _LAWS[law]
    distinct = len(np.unique(gpus))
    if distinct < len(names):
        reason = f"{len(names)} parameters need {len(names)} different numbers of GPUs, not {distinct}"
        return Fit(law, {}, {}, None, len(gpus), None, (), reason)
    start = (float((speeds / gpus).max()), *(0.01 / 100**index for index in range(len(names) - 1)))
    try:
        values, covariance = _least_squares(function, gpus, speeds, start, upper_bounds)
    except RuntimeError as error:
        return Fit(law, {}, {}, None, len(gpus), None, (), f"the fit does not converge: {error}")
    degrees_of_freedom = len(gpus) - len(names)
    factor = float(student.ppf((1 + CONFIDENCE) / 2, degrees_of_freedom)) if degrees_of_freedom > 0 else None
    parameters = dict(zip(names, values.tolist(), strict=True))
    intervals = _intervals(parameters, covariance, factor, upper_bounds)
    return Fit(
        law=law,
        parameters=parameters,
        intervals=intervals,
        error=float(np.sqrt(np.mean((function(gpus, *values) / speeds - 1) ** 2))),
        observations=len(gpus),
        peak_gpus=_peak(parameters, intervals),
        predictions=tuple(_predict(function, values, covariance, factor, count) for count in predicted_gpus),
    )


def _least_squares(
    function: _Function, gpus: _Floats, speeds: _Floats, start: Sequence[float], upper_bounds: Sequence[float]
) -> tuple[_Floats, _Floats]:
    with warnings.catch_warnings():
        # As many observations as parameters leave no covariance, which an absent interval reports.
        warnings.simplefilter("ignore", OptimizeWarning)
        bounds = (np.zeros(len(start)), np.asarray(upper_bounds))
        values, covariance = curve_fit(function, gpus, speeds, p0=start, sigma=speeds, bounds=bounds, x_scale=start)
    return values, covariance


def _intervals(
    parameters: Mapping[str, float], covariance: _Floats, factor: float | None, upper_bounds: Sequence[float]
) -> dict[str, tuple[float, float] | None]:
    standard_errors = np.sqrt(np.diag(covariance))
    intervals: dict[str, tuple[float, float] | None] = {}
    for (name, value), error, upper in zip(parameters.items(), standard_errors.tolist(), upper_bounds, strict=True):
        if factor is None or not np.isfinite(error):
            intervals[name] = None
        else:
            intervals[name] = (max(value - factor * error, 0.0), min(value + factor * error, upper))
    return intervals


def _predict(function: _Function, values: _Floats, covariance: _Floats, factor: float | None, count: int) -> Prediction:
    """The law's value, and its interval by the delta method."""
    gpus = np.asarray([float(count)])
    speed = float(function(gpus, *values)[0])
    interval = None
    if factor is not None and np.isfinite(covariance).all():
        steps = np.diag(np.maximum(np.abs(values) * _DERIVATIVE_STEP, _LEAST_STEP))
        gradient = np.asarray(
            [
                (function(gpus, *(values + step))[0] - function(gpus, *(values - step))[0]) / (2 * step.sum())
                for step in steps
            ]
        )
        half_width = factor * float(np.sqrt(max(gradient @ covariance @ gradient, 0.0)))
        interval = (max(speed - half_width, 0.0), speed + half_width)
    return Prediction(count, speed, interval, speed / count / float(function(np.ones(1), *values)[0]))


def _peak(parameters: Mapping[str, float], intervals: Mapping[str, tuple[float, float] | None]) -> float | None:
    """Where the derivative of the universal law is zero; none where kappa is not distinguished from zero."""
    kappa, interval = parameters.get("kappa", 0.0), intervals.get("kappa")
    if kappa <= _NO_COHERENCY or (interval is not None and interval[0] <= 0):
        return None
    return float(np.sqrt((1 - parameters["sigma"]) / kappa))
