"""Scaling laws: the share of the work that does not scale, and the number of GPUs beyond which throughput drops.

With N GPUs and throughput X(N), lambda the throughput of one GPU:

- Amdahl (1967), for a fixed amount of work: ``lambda N / (1 + sigma (N - 1))``; sigma is the serial share.
- Gustafson (1988), for work that grows with N: ``lambda (N - alpha (N - 1))``; alpha is the serial share.
- Universal scalability law (Gunther 1993): ``lambda N / (1 + sigma (N - 1) + kappa N (N - 1))``. Sigma is contention,
  kappa the cost of coherency. The peak is at ``sqrt((1 - sigma) / kappa)``.

Fitted by least squares on relative errors to the medians of the configurations. Intervals are those of
`perfscope.analyzers.scaling.intervals`: a configuration counts once, because its repeats share its error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeWarning, curve_fit

from perfscope.analyzers.scaling.intervals import WIDEST, Interval, LawIntervals, estimate_intervals
from perfscope.report import Json

_Floats = npt.NDArray[np.float64]
_Function = Callable[..., _Floats]
#: A kappa that is not distinguished from 0.
_NO_COHERENCY = 1e-9
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Configuration:
    """The runs on one cluster.

    Attributes:
        gpus: Number of GPUs.
        speeds: Throughput of each run, in samples/s.
        nodes: Number of nodes.
    """

    gpus: int
    speeds: tuple[float, ...]
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted throughput on a number of GPUs.

    Attributes:
        gpus: Number of GPUs.
        samples_per_s: Throughput by the law.
        interval: 95 % interval of what runs on so many GPUs measure; absent where the runs cannot tell.
        efficiency: Throughput per GPU by the law over that of one GPU.
        reason: Why the runs cannot tell; absent where there is an interval.
    """

    gpus: int
    samples_per_s: float
    interval: Interval | None
    efficiency: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class Fit:
    """One fitted scaling law.

    Attributes:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        parameters: By name.
        intervals: 95 % interval of each; absent where configurations are as few as parameters, or contradict the law.
        error: Root mean square of the relative errors of the configurations.
        observations: Number of runs.
        configurations: Number of configurations.
        peak_gpus: GPUs with the highest throughput; absent where the fit does not determine them.
        predictions: For the requested numbers of GPUs.
        reason: Why there is no fit; absent where there is one.
    """

    law: str
    parameters: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float] | None]
    error: float | None
    observations: int
    configurations: int
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
            "configurations": self.configurations,
            "peak_gpus": self.peak_gpus,
            "predictions": [
                {
                    "gpus": prediction.gpus,
                    "samples_per_s": prediction.samples_per_s,
                    "interval": list(prediction.interval) if prediction.interval else None,
                    "efficiency": prediction.efficiency,
                    "reason": prediction.reason,
                }
                for prediction in self.predictions
            ],
            "reason": self.reason,
        }

    def throughput(self, gpus: _Floats) -> _Floats:
        """Throughput by the law on numbers of GPUs."""
        return LAWS[self.law].function(gpus, *self.parameters.values())


def amdahl(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Amdahl's law."""
    return np.asarray(speed * gpus / (1 + serial * (gpus - 1)), np.float64)


def gustafson(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Gustafson's law."""
    return np.asarray(speed * (gpus - serial * (gpus - 1)), np.float64)


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
    "gustafson": Law(gustafson, ("lambda", "alpha"), (np.inf, 1.0)),
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
        return Fit(law, {}, {}, None, runs, len(gpus), None, (), reason)
    start = (float((speeds / gpus).max()), *(0.01 / 100**index for index in range(len(names) - 1)))
    try:
        values = _least_squares(function, gpus, speeds, start, upper_bounds)
    except RuntimeError as error:
        return Fit(law, {}, {}, None, runs, len(gpus), None, (), f"the fit does not converge: {error}")
    parameters = dict(zip(names, values.tolist(), strict=True))
    estimate = estimate_intervals(law, gpus, speeds)
    saturating = fit_law("amdahl", configurations, predicted_gpus) if law == "gustafson" else None
    intervals = _clip(parameters, estimate, upper_bounds)
    return Fit(
        law=law,
        parameters=parameters,
        intervals=intervals,
        error=float(np.sqrt(np.mean((function(gpus, *values) / speeds - 1) ** 2))),
        observations=runs,
        configurations=len(gpus),
        peak_gpus=_peak(parameters, intervals),
        predictions=tuple(
            _predict(function, values, estimate, configurations, predicted, saturating) for predicted in predicted_gpus
        ),
    )


def _least_squares(
    function: _Function, gpus: _Floats, speeds: _Floats, start: Sequence[float], upper_bounds: Sequence[float]
) -> _Floats:
    with warnings.catch_warnings():
        # As many observations as parameters leave no covariance, which is not used.
        warnings.simplefilter("ignore", OptimizeWarning)
        bounds = (np.zeros(len(start)), np.asarray(upper_bounds))
        values, _ = curve_fit(function, gpus, speeds, p0=start, sigma=speeds, bounds=bounds, x_scale=start)
    return np.asarray(values, np.float64)


def _clip(
    parameters: Mapping[str, float], estimate: LawIntervals | str, upper_bounds: Sequence[float]
) -> dict[str, Interval | None]:
    """The part of each interval in which the law has a meaning; all are absent where one has none.

    What a law allows moves every parameter of the fit, so that one of them at its bound leaves the others outside of
    the intervals that configurations alone would give.
    """
    clipped: dict[str, Interval | None] = {}
    for index, (name, upper) in enumerate(zip(parameters, upper_bounds, strict=True)):
        interval = None if isinstance(estimate, str) else estimate.parameters[index]
        low, high = (1.0, 0.0) if interval is None else (max(interval[0], 0.0), min(interval[1], upper))
        has_meaning = np.isfinite(high) and low * (1 - _ROUNDING) <= parameters[name] <= high * (1 + _ROUNDING)
        clipped[name] = (low, high) if has_meaning else None
    return clipped if None not in clipped.values() else dict.fromkeys(clipped)


def _predict(
    function: _Function,
    values: _Floats,
    estimate: LawIntervals | str,
    configurations: Sequence[Configuration],
    gpus: int,
    saturating: Fit | None,
) -> Prediction:
    """The law's value, with the interval of what would be measured, or why there is none.

    ``saturating`` is Amdahl's law fitted to the same configurations, where the law itself is a straight line.
    """
    speed = float(function(np.asarray([float(gpus)]), *values)[0])
    efficiency = speed / gpus / float(function(np.ones(1), *values)[0])
    is_one_node = all(configuration.nodes == 1 for configuration in configurations)
    if is_one_node and gpus > max(configuration.gpus for configuration in configurations):
        reason = "all runs are on one node: what a network between nodes costs was not measured"
        return Prediction(gpus, speed, None, efficiency, reason)
    answer = estimate if isinstance(estimate, str) else estimate.predict(gpus, speed)
    if not isinstance(answer, str) and saturating is not None:
        answer = _or_saturates(answer, saturating, gpus, speed)
    if isinstance(answer, str):
        return Prediction(gpus, speed, None, efficiency, answer)
    return Prediction(gpus, speed, answer, efficiency, None)


def _or_saturates(interval: Interval, saturating: Fit, gpus: int, speed: float) -> Interval | str:
    """The interval of a straight line, widened by that of Amdahl's law where the runs fit both.

    A straight line cannot bend, and few runs do not show that throughput will. In published series of 1 to 512 GPUs
    throughput grew as a line. It fell short of the line by 5 to 40 % at the next doubling.
    """
    other = next((prediction.interval for prediction in saturating.predictions if prediction.gpus == gpus), None)
    if other is None:
        return interval
    low, high = min(interval[0], other[0]), max(interval[1], other[1])
    if high - low > WIDEST * speed:
        return f"the runs do not tell a line from a curve that saturates ({low:.4g} to {high:.4g})"
    return low, high


def _peak(parameters: Mapping[str, float], intervals: Mapping[str, tuple[float, float] | None]) -> float | None:
    """Where the derivative of the universal law is zero; none where kappa is not distinguished from zero."""
    kappa, interval = parameters.get("kappa", 0.0), intervals.get("kappa")
    if kappa <= _NO_COHERENCY or (interval is not None and interval[0] <= 0):
        return None
    return float(np.sqrt((1 - parameters["sigma"]) / kappa))
