"""Scaling laws: what each doubling of the GPUs costs, and the share of the work that does not scale.

With N GPUs and throughput X(N), lambda the throughput of one GPU by the law:

- Weak scaling, by the loss per doubling: ``lambda N (1 - loss) ** log2 N``. A line over log N, with log X / N.
- Strong scaling, by Amdahl (1967): ``lambda N / (1 + sigma (N - 1))``; sigma is the serial share. A line over N, with
  N / X.

Both are fitted by least squares on relative errors to the medians of the configurations. Repeats on one configuration
share its error: the nodes that a job got, the network between them. So a configuration is one observation. Intervals
are Student's. Few configurations can agree by chance. So two more count, each off by the 1 % that published series
scatter by. A prediction includes the error of the predicted configuration.

The last point of 133 published series of weak scaling was left out, and predicted from the earlier ones. They are of
dgxc-benchmarking 25.02, llm-foundry and DLPerf. The loss per doubling missed it by 1.7 % (median), Amdahl's law by
8.2 %, Gustafson's by 5.6 %, the universal scalability law by 14 %. Strong scaling breaks off without a sign, where the
work of a GPU gets small. In 29 series of nanotron Amdahl's law missed the last point by 23 %, so it has no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log2
from statistics import median
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from scipy.special import stdtrit

from perfscope.measures.statistics import CONFIDENCE
from perfscope.result import Doc, Figures

#: How far configurations of published series are from their law, as a share of the throughput.
USUAL_ERROR = 0.01
#: As how many further configurations this counts.
_USUAL_CONFIGURATIONS = 2

Interval: TypeAlias = tuple[float, float]
_Floats = npt.NDArray[np.float64]


class Configuration(NamedTuple):
    """The runs on one cluster: its GPUs, the throughput of each run in samples/s, its nodes where they are known."""

    gpus: int
    speeds: tuple[float, ...]
    nodes: int | None = 1


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
    """One fitted scaling law: ``doubling`` of weak, ``amdahl`` of strong scaling."""

    law: str
    parameters: Annotated[Mapping[str, float] | None, Doc("By name; null without a fit.")] = None
    intervals: Annotated[Mapping[str, Interval] | None, Doc("95 % interval of each; null of Amdahl's law.")] = None
    relative_error: Annotated[float | None, Doc("Root mean square of the relative errors of the configurations.")] = (
        None
    )
    observations: Annotated[int, Doc("Number of runs.")]
    configurations: Annotated[int, Doc("Number of configurations.")]
    predictions: Annotated[tuple[Prediction, ...], Doc("For the requested numbers of GPUs.")] = ()
    reason: Annotated[str | None, Doc("Why there is no fit.")] = None

    def throughput(self, gpus: _Floats) -> _Floats:
        """Throughput by the law on numbers of GPUs."""
        return LAWS[self.law](gpus, *(self.parameters or {}).values())


def doubling(gpus: _Floats, speed: float, loss: float) -> _Floats:
    """Throughput where each doubling of the GPUs loses the same share of the efficiency."""
    return np.asarray(speed * gpus * (1 - loss) ** np.log2(gpus), np.float64)


def amdahl(gpus: _Floats, speed: float, serial: float) -> _Floats:
    """Throughput by Amdahl's law."""
    return np.asarray(speed * gpus / (1 + serial * (gpus - 1)), np.float64)


#: The laws by name.
LAWS = {"doubling": doubling, "amdahl": amdahl}


def fit_law(law: str, configurations: Sequence[Configuration], predict: Sequence[int] = ()) -> Fit:
    """Fit a law to configurations, and predict numbers of GPUs; by default twice the largest one."""
    gpus = np.asarray([configuration.gpus for configuration in configurations], np.float64)
    speeds = np.asarray([median(configuration.speeds) for configuration in configurations], np.float64)
    runs = sum(len(configuration.speeds) for configuration in configurations)
    if gpus.min() == gpus.max():
        reason = "a law needs two different numbers of GPUs"
        return Fit(law=law, observations=runs, configurations=len(gpus), reason=reason)
    line = _fit_doubling(gpus, speeds) if law == "doubling" else None
    parameters = _fit_amdahl(gpus, speeds) if line is None else line.parameters
    fit = Fit(
        law=law,
        parameters=parameters,
        intervals=None if line is None else line.intervals(),
        relative_error=float(np.sqrt(np.mean((LAWS[law](gpus, *parameters.values()) / speeds - 1) ** 2))),
        observations=runs,
        configurations=len(gpus),
    )
    largest = int(gpus.max())
    is_one_node = all(one.nodes == 1 for one in configurations)
    predictions = []
    for count in predict or (2 * largest,):
        one, speed = fit.throughput(np.asarray([1.0, float(count)])).tolist()
        interval = None
        if count > largest and is_one_node:
            why: str | None = "all runs are on one node: what a network between nodes costs was not measured"
        elif line is None:
            why = "with the global batch fixed, GPUs run out of work, and no law says where"
        else:
            interval, why = line.predict(count)
        predictions.append(Prediction(count, speed, interval, speed / count / one, why))
    return replace(fit, predictions=tuple(predictions))


@dataclass(frozen=True, slots=True)
class _Line:
    """The logarithm of the throughput per GPU over log2 of the GPUs.

    ``spread`` is the inverse of the normal equations' matrix, ``error`` Student's factor times the error of a
    configuration.
    """

    level: float
    slope: float
    spread: _Floats
    error: float

    @property
    def parameters(self) -> dict[str, float]:
        return {"lambda": exp(self.level), "loss": 1 - exp(self.slope)}

    def intervals(self) -> dict[str, Interval]:
        level, slope = (self.error * float(self.spread[index, index]) ** 0.5 for index in range(2))
        losses = [max(1 - exp(self.slope + sign * slope), 0.0) for sign in (1, -1)]
        return {"lambda": (exp(self.level - level), exp(self.level + level)), "loss": (losses[0], losses[1])}

    def predict(self, gpus: int) -> tuple[Interval | None, str | None]:
        """The interval that runs on these GPUs measure, or why they cannot tell."""
        terms = np.asarray([1.0, log2(gpus)])
        half = self.error * (1 + float(terms @ self.spread @ terms)) ** 0.5
        middle = self.level + self.slope * log2(gpus)
        low, high = gpus * exp(middle - half), gpus * exp(middle + half)
        if high - low > gpus * exp(middle):
            return None, f"the interval is wider than the prediction itself ({low:.4g} to {high:.4g})"
        return (low, high), None


def _fit_doubling(gpus: _Floats, speeds: _Floats) -> _Line:
    """No loss where the efficiency grows: that it goes on growing is in no run."""
    terms = np.column_stack([np.ones_like(gpus), np.log2(gpus)])
    values = np.log(speeds / gpus)
    level, slope = np.linalg.lstsq(terms, values, rcond=None)[0].tolist()
    if slope > 0:
        level, slope = float(values.mean()), 0.0
    residuals = values - level - slope * terms[:, 1]
    freedom = len(gpus) - 2 + _USUAL_CONFIGURATIONS
    error = ((_USUAL_CONFIGURATIONS * USUAL_ERROR**2 + float(residuals @ residuals)) / freedom) ** 0.5
    factor = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return _Line(level, slope, np.linalg.inv(terms.T @ terms), factor * error)


def _fit_amdahl(gpus: _Floats, speeds: _Floats) -> dict[str, float]:
    """N / X is a line over N; the serial share is 0 to 1."""
    times = gpus / speeds
    terms = np.column_stack([1 / times, (gpus - 1) / times])
    first, further = np.linalg.lstsq(terms, np.ones_like(times), rcond=None)[0]
    serial = min(max(float(further / first), 0.0), 1.0) if first > 0 else 1.0
    shares = (1 + serial * (gpus - 1)) / times
    return {"lambda": float(shares @ shares / shares.sum()), "sigma": serial}
