"""Scaling laws: what share of the work does not scale, and where adding GPUs stops paying.

With N GPUs and throughput X(N), lambda the throughput of one GPU:

- Amdahl (1967), for a fixed amount of work: ``lambda N / (1 + sigma (N - 1))``; sigma is the serial share.
- Gustafson (1988), for work that grows with N: ``lambda (N - alpha (N - 1))``; alpha is the serial share.
- Universal scalability law (Gunther 1993): ``lambda N / (1 + sigma (N - 1) + kappa N (N - 1))``; sigma is contention,
  kappa the cost of keeping everyone coherent; the peak is at ``sqrt((1 - sigma) / kappa)``.

Fitted to every run by least squares on relative errors. Intervals are Student's at 95 % from the covariance; there is
none where there are no more observations than parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.stats import t as student

from perfscope.report import Json

CONFIDENCE = 0.95

_Floats = npt.NDArray[np.float64]
_Law = Callable[..., _Floats]
_STEP = 1e-6
_NO_COHERENCY = 1e-9


@dataclass(frozen=True, slots=True)
class Prediction:
    """Throughput on a number of GPUs that was not measured, or was.

    Attributes:
        gpus: How many.
        samples_per_s: Predicted throughput.
        interval: Of the mean, 95 %; absent where there is none.
        efficiency: Predicted throughput a GPU over one GPU's.
    """

    gpus: int
    samples_per_s: float
    interval: tuple[float, float] | None
    efficiency: float


@dataclass(frozen=True, slots=True)
class Fit:
    """One law.

    Attributes:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        parameters: By name.
        intervals: 95 % interval of each; absent where there is none.
        error: Root mean square of the relative errors.
        observations: Runs that it was fitted to.
        peak_gpus: Where throughput is largest; absent where the fit cannot tell.
        predictions: For the GPUs asked for.
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
                    "gpus": one.gpus,
                    "samples_per_s": one.samples_per_s,
                    "interval": list(one.interval) if one.interval else None,
                    "efficiency": one.efficiency,
                }
                for one in self.predictions
            ],
            "reason": self.reason,
        }

    def at(self, gpus: _Floats) -> _Floats:
        """The law's throughput on numbers of GPUs."""
        return _LAWS[self.law][0](gpus, *self.parameters.values())


def amdahl(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Amdahl's law."""
    return np.asarray(speed * gpus / (1 + serial * (gpus - 1)), np.float64)


def gustafson(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Gustafson's law."""
    return np.asarray(speed * (gpus - serial * (gpus - 1)), np.float64)


def usl(gpus: _Floats, speed: float, contention: float, coherency: float) -> _Floats:
    """Throughput by the universal scalability law."""
    return np.asarray(speed * gpus / (1 + contention * (gpus - 1) + coherency * gpus * (gpus - 1)), np.float64)


_LAWS: dict[str, tuple[_Law, tuple[str, ...], tuple[float, ...]]] = {
    "amdahl": (amdahl, ("lambda", "sigma"), (np.inf, 1.0)),
    "gustafson": (gustafson, ("lambda", "alpha"), (np.inf, 1.0)),
    "usl": (usl, ("lambda", "sigma", "kappa"), (np.inf, 1.0, np.inf)),
}


def fit_all(observations: Sequence[tuple[int, float]], predict: Sequence[int] = ()) -> tuple[Fit, ...]:
    """Fit every law to pairs of GPUs and throughput; predict twice the most GPUs where nothing is asked for."""
    gpus = np.asarray([pair[0] for pair in observations], np.float64)
    speeds = np.asarray([pair[1] for pair in observations], np.float64)
    asked = tuple(predict) or (2 * int(gpus.max()),)
    return tuple(_fit(law, gpus, speeds, asked) for law in _LAWS)


def _fit(law: str, gpus: _Floats, speeds: _Floats, asked: Sequence[int]) -> Fit:
    function, names, highest = _LAWS[law]
    distinct = len(np.unique(gpus))
    if distinct < len(names):
        reason = f"{len(names)} parameters need as many numbers of GPUs; there are {distinct}"
        return Fit(law, {}, {}, None, len(gpus), None, (), reason)
    start = (float((speeds / gpus).max()), *(0.01 / 100**index for index in range(len(names) - 1)))
    try:
        values, covariance = _least_squares(function, gpus, speeds, start, highest)
    except RuntimeError as error:
        return Fit(law, {}, {}, None, len(gpus), None, (), f"it does not converge: {error}")
    free = len(gpus) - len(names)
    factor = float(student.ppf((1 + CONFIDENCE) / 2, free)) if free > 0 else None
    parameters = dict(zip(names, values.tolist(), strict=True))
    intervals = _intervals(parameters, covariance, factor, highest)
    return Fit(
        law=law,
        parameters=parameters,
        intervals=intervals,
        error=float(np.sqrt(np.mean((function(gpus, *values) / speeds - 1) ** 2))),
        observations=len(gpus),
        peak_gpus=_peak(parameters, intervals),
        predictions=tuple(_predict(function, values, covariance, factor, count) for count in asked),
    )


def _least_squares(
    function: _Law, gpus: _Floats, speeds: _Floats, start: Sequence[float], highest: Sequence[float]
) -> tuple[_Floats, _Floats]:
    import warnings

    with warnings.catch_warnings():
        # As many observations as parameters leave no covariance, which is said as an absent interval.
        warnings.simplefilter("ignore", OptimizeWarning)
        bounds = (np.zeros(len(start)), np.asarray(highest))
        values, covariance = curve_fit(function, gpus, speeds, p0=start, sigma=speeds, bounds=bounds, x_scale=start)
    return values, covariance


def _intervals(
    parameters: Mapping[str, float], covariance: _Floats, factor: float | None, highest: Sequence[float]
) -> dict[str, tuple[float, float] | None]:
    spread = np.sqrt(np.diag(covariance))
    intervals: dict[str, tuple[float, float] | None] = {}
    for (name, value), error, most in zip(parameters.items(), spread.tolist(), highest, strict=True):
        known = factor is not None and np.isfinite(error)
        half = (factor or 0.0) * error
        intervals[name] = (max(value - half, 0.0), min(value + half, most)) if known else None
    return intervals


def _predict(function: _Law, values: _Floats, covariance: _Floats, factor: float | None, count: int) -> Prediction:
    """The law's value, and its interval by the delta method."""
    place = np.asarray([float(count)])
    speed = float(function(place, *values)[0])
    interval = None
    if factor is not None and np.isfinite(covariance).all():
        steps = np.diag(np.maximum(np.abs(values) * _STEP, 1e-12))
        slope = np.asarray(
            [
                (function(place, *(values + step))[0] - function(place, *(values - step))[0]) / (2 * step.sum())
                for step in steps
            ]
        )
        half = factor * float(np.sqrt(max(slope @ covariance @ slope, 0.0)))
        interval = (max(speed - half, 0.0), speed + half)
    return Prediction(count, speed, interval, speed / count / float(function(np.ones(1), *values)[0]))


def _peak(parameters: Mapping[str, float], intervals: Mapping[str, tuple[float, float] | None]) -> float | None:
    """Where the derivative of the universal law is zero; none where kappa cannot be told from zero."""
    kappa, interval = parameters.get("kappa", 0.0), intervals.get("kappa")
    if kappa <= _NO_COHERENCY or (interval is not None and interval[0] <= 0):
        return None
    return float(np.sqrt((1 - parameters["sigma"]) / kappa))
