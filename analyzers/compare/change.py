"""The change of a figure from one side to the other, and an interval that says which variation it covers.

One run against one run
    Steps of a process tell how steps vary, not how processes vary: another start of the same code has other addresses,
    clocks and neighbours. Two processes cannot show how much processes differ. So the interval of the steps is wider by
    an allowance, a standard deviation of ``BETWEEN_RUNS``. It holds for jobs that have their machines to themselves. In
    517 groups of repeated runs (MLPerf Training 4.0 to 5.1) the medians of runs spread 0.1 %. They spread at most 0.6 %
    in nine of ten. Host-bound trainings on shared processors spread up to 8 %, which no pair of runs shows.
Several runs of a side
    The run is the unit, as in benchstat and pyperf: the interval is Welch's for the runs' medians (B. Welch, Biometrika
    34, 1947); steps within a run count for its median alone. Where one side has a single run, the other side's spread
    between runs stands for both.

All of it is on logarithms, so that A against B is the reverse of B against A. With several comparisons each interval is
wider (C. Bonferroni), so that all of them hold together with the stated confidence.

Steps are no independent draws: a slow one is followed by slow ones. So the unit is a stretch of consecutive steps, an
eighth of the run (batch means, A. Law, "Simulation Modeling and Analysis"). A mean has the error of the means of
stretches. A median has the error of the share of steps above it, over the density of steps there: single slow steps do
not widen it. Where shares differ between stretches by more than chance, the run drifts, and their error counts.

The loop
    Some of its time has a known cause: validation in each tenth step, a pause in each fifth one, waits for data. How
    often it comes is no chance. So it is spread evenly over the steps. Where the rest of two loops differs no more than
    runs of the same code do, the known causes made the change. The interval then ends at what they changed, less an
    allowance for how it varies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, expm1, hypot, log, pi, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from perfscope.measures.statistics import CONFIDENCE
from perfscope.report import SMALLEST_CHANGE, Json
from perfscope.tables.columns import Float64
from perfscope.units import format_count

#: Standard deviation of a median between runs of the same code, as a share, where no side has several.
BETWEEN_RUNS = 0.004
#: Stretches of a run; fewer than two steps a stretch are taken for independent.
_STRETCHES = 8


class Variation(StrEnum):
    """What an interval covers."""

    STEPS = "steps"
    RUNS = "runs"
    NONE = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """A figure on one side: a series of positive values in the order of time for each run, or one value a run.

    A run's value is the mean of its steps where several are measured at once (``is_mean``), else their median.
    ``named`` and ``beside`` are added to every value of a run: what has a known cause, and what start-up and windows
    change.
    """

    runs: tuple[Float64, ...]
    is_mean: bool = False
    named: tuple[float, ...] = ()
    beside: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """All values."""
        return sum(map(len, self.runs))

    @property
    def centres(self) -> list[float]:
        """The logarithm of each run's value."""
        means = (float(np.mean(run) if self.is_mean else np.median(run)) for run in self.runs)
        return [log(mean + added) for mean, added in zip(means, self.added, strict=True)]

    @property
    def added(self) -> list[float]:
        """What is added to every value of each run."""
        none = (0.0,) * len(self.runs)
        return [sum(parts) for parts in zip(self.named or none, self.beside or none, strict=True)]

    @property
    def centre(self) -> float:
        """The value of a run, or the geometric mean of the runs' values."""
        return exp(float(np.mean(self.centres)))

    def scaled(self, factor: float) -> Samples:
        """Every value times a factor."""
        named, beside = (tuple(part * factor for part in parts) for parts in (self.named, self.beside))
        return Samples(tuple(run * factor for run in self.runs), self.is_mean, named, beside)


@dataclass(frozen=True, slots=True)
class Delta:
    """A figure on both sides; ``interval`` is of the change, as shares of ``a``, or None with a ``reason``."""

    a: float
    b: float
    interval: tuple[float, float] | None
    variation: Variation
    reason: str = ""

    @property
    def change(self) -> float:
        """By which share of A it is higher on B."""
        return self.b / self.a - 1

    def reversed_rate(self, work_a: float, work_b: float) -> Delta:
        """The change of work over this figure, where this one is a time; the work of a step is a fixed number."""
        factor = work_b / work_a
        interval = self.interval and (factor / (1 + self.interval[1]) - 1, factor / (1 + self.interval[0]) - 1)
        return Delta(work_a / self.a, work_b / self.b, interval, self.variation, self.reason)

    def data(self, unit: str) -> dict[str, Json]:
        """The change in JSON."""
        return {
            f"a_{unit}": self.a,
            f"b_{unit}": self.b,
            "change": self.change,
            "interval": None if self.interval is None else list(self.interval),
            "covers": str(self.variation),
            "reason": self.reason or None,
        }


def compare_samples(a: Samples, b: Samples, confidence: float = CONFIDENCE, between_runs: float | None = None) -> Delta:
    """Compare a figure of two sides.

    ``between_runs`` is the standard deviation between runs of the same code, as a share, for one run of each side; None
    takes ``BETWEEN_RUNS``.
    """
    middle, variation = log(b.centre / a.centre), Variation.RUNS
    if max(len(a.runs), len(b.runs)) > 1:
        half = _half_width_of_runs(a.centres, b.centres, confidence)
    elif min(a.count, b.count) <= 1:
        steps = f"{a.count:,} against {b.count:,} steps"
        steps = f"{format_count(a.count, 'step')} of each side" if a.count == b.count else steps
        return Delta(a.centre, b.centre, None, Variation.NONE, f"{steps}: an interval needs at least 2 of each")
    else:
        variation = Variation.STEPS
        between = BETWEEN_RUNS if between_runs is None else between_runs
        allowance = NormalDist().inv_cdf((1 + confidence) / 2) * sqrt(2) * between
        half = hypot(_welch_half_width(_error_of_steps(a), _error_of_steps(b), confidence), allowance)
    return Delta(a.centre, b.centre, (expm1(middle - half), expm1(middle + half)), variation)


def compare_loops(a: Samples, b: Samples, confidence: float = CONFIDENCE, between_runs: float | None = None) -> Delta:
    """Compare the mean step of two loops, of which one may have more that has a known cause."""
    whole, rest = (
        compare_samples(first, second, confidence, between_runs)
        for first, second in ((a, b), (Samples(a.runs, is_mean=True), Samples(b.runs, is_mean=True)))
    )
    if whole.variation is not Variation.STEPS or whole.interval is None or rest.interval is None:
        return whole
    beside = abs(b.beside[0] - a.beside[0]) / whole.a  # perhaps chance
    whole = replace(whole, interval=(whole.interval[0] - beside, whole.interval[1] + beside))
    named, change = b.named[0] - a.named[0], whole.b - whole.a
    spreads = [max(_spread(np.log(side.runs[0])), BETWEEN_RUNS) for side in (a, b)]
    noise = hypot(*(spread * side.named[0] for spread, side in zip(spreads, (a, b), strict=True)))
    sure = min(abs(named) - NormalDist().inv_cdf((1 + confidence) / 2) * noise, abs(change))
    assert whole.interval is not None
    is_rest_alike = rest.interval[0] <= 0 <= rest.interval[1]
    is_its_cause = bool(named) and 2 * change / named >= 1
    if not (is_rest_alike and is_its_cause) or sure < SMALLEST_CHANGE * max(whole.a, whole.b):
        return whole
    low, high = whole.interval
    interval = (low, min(high, -sure / whole.a)) if named < 0 else (max(low, sure / whole.a), high)
    return replace(whole, interval=interval)


def exact_change(a: float, b: float) -> Delta:
    """The change of a count, such as bytes: it does not vary between steps."""
    return Delta(a, b, (b / a - 1, b / a - 1), Variation.NONE)


class _Error(NamedTuple):
    """The variance of a centre, and its degrees of freedom."""

    variance: float
    freedom: int


def _error_of_mean(values: Sequence[float]) -> _Error:
    return _Error(float(np.var(values, ddof=1)) / len(values), len(values) - 1)


def _error_of_steps(side: Samples) -> _Error:
    """The error of one run's centre; a stretch has two steps at least, and fewer than eight steps are none."""
    values = side.runs[0] + side.added[0]
    count = min(_STRETCHES, len(values) // 2) if len(values) >= _STRETCHES else len(values)
    stretches = np.array_split(values, count)
    if side.is_mean:
        return _error_of_mean([log(np.mean(part)) for part in stretches])
    middle = np.median(values)
    share, freedom = _error_of_mean([float(np.mean(part > middle)) for part in stretches])
    share = max(share, 1 / 4 / len(values))  # half of the steps lie above it
    return _Error(2 * pi * _spread(np.log(values)) ** 2 * share, freedom)


def _welch_half_width(first: _Error, second: _Error, confidence: float) -> float:
    variance = first.variance + second.variance
    parts = first.variance**2 / first.freedom + second.variance**2 / second.freedom
    freedom = variance**2 / parts if parts else min(first.freedom, second.freedom)
    return float(stdtrit(freedom, (1 + confidence) / 2)) * sqrt(variance)


def _half_width_of_runs(a: Sequence[float], b: Sequence[float], confidence: float) -> float:
    """Where one side has a single run, the spread of the other's stands for both."""
    if min(len(a), len(b)) > 1:
        return _welch_half_width(_error_of_mean(a), _error_of_mean(b), confidence)
    several = max(a, b, key=len)
    variance, freedom = _error_of_mean(several)
    return _welch_half_width(_Error(variance * (len(several) + 1), freedom), _Error(0.0, 1), confidence)


def _spread(values: Float64) -> float:
    return float(np.median(np.abs(values - np.median(values)))) / NormalDist().inv_cdf(0.75)
