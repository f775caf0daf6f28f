"""The change of a figure from one side to the other, and an interval that says which variation it covers.

One run against one run
    Steps of a process tell how steps vary, not how processes vary: another start of the same code has other addresses,
    clocks and neighbours. ``steps_interval`` covers the steps of these two processes alone. It is the interval of the
    difference of the medians by a stationary bootstrap. It is widened for few steps (Student's t). It is also widened
    by drift: eighths of a run that differ by more than their own error. ``interval`` is wider by an allowance for runs
    of the same code, because two processes cannot show how much processes differ. The allowance is a standard deviation
    of ``BETWEEN_RUNS``, and another as large as the spread of steps. On H200 the medians of 16 processes of a
    device-bound training spread 0.7 %, and its steps 0.3 %. Those of a host-bound training spread 8.4 %, and its steps
    8.8 %.
Several runs of a side
    The run is the unit, as in benchstat and pyperf: the interval is Welch's for the runs' medians (B. Welch, Biometrika
    34, 1947); steps within a run count for its median alone. Where one side has a single run, the other side's spread
    between runs stands for both.

All of it is on logarithms, so that A against B is the reverse of B against A. With several comparisons each interval is
wider (C. Bonferroni), so that all of them hold together with the stated confidence.

The stationary bootstrap of a median or a mean: resamples of steps that keep how steps depend on each other.

Steps are no independent draws: a slow one is followed by slow ones. An interval that takes them for independent is too
narrow. Resamples are made of blocks of consecutive steps of random lengths (D. Politis and J. Romano, "The stationary
bootstrap", Journal of the American Statistical Association 89, 1994). Their mean length is chosen from the steps'
autocorrelation (D. Politis and H. White, "Automatic block-length selection for the dependent bootstrap", Econometric
Reviews 23, 2004, with the correction of A. Patton, D. Politis and H. White, 28, 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, expm1, log, log10, sqrt
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

from perfscope.report import Json
from perfscope.tables.columns import Float64, Int64

RESAMPLES = 1000
#: A longer series is thinned before it is resampled, which makes its interval wider, never narrower.
_MOST_RESAMPLED = 4096
#: Values further from the median than so many deviations are drawn in, so that one stall is no dependence.
_FARTHEST = 4.0

_FEWEST_LAGS = 5
#: Two standard errors of an autocorrelation are at this many times sqrt(log10(n) / n), as the authors advise.
_NEGLIGIBLE = 2.0


def block_length(values: Float64) -> float:
    """The mean length of blocks that is best for a series, at least 1."""
    n = len(values)
    residuals = _draw_in(values - np.median(values))
    residuals = residuals - residuals.mean()
    variance = float(residuals @ residuals) / n
    if not variance or n <= _FEWEST_LAGS:
        return 1.0
    most_lags = min(ceil(sqrt(n)) + max(_FEWEST_LAGS, ceil(sqrt(log10(n)))), n - 1)
    covariances = np.array([float(residuals[lag:] @ residuals[: n - lag]) / n for lag in range(most_lags + 1)])
    window = 2 * _significant_lags(covariances / variance, n)
    lags = np.arange(1, min(window, most_lags) + 1)
    weights = np.clip(2 * (1 - lags / window), 0, 1) if window else np.zeros(0)
    weighted = weights * covariances[lags] if window else np.zeros(0)
    long_run = float(covariances[0] + 2 * weighted.sum())
    slope = float(2 * (lags * weighted).sum()) if window else 0.0
    if long_run <= 0 or not slope:
        return 1.0
    length = (slope**2 / long_run**2 * n) ** (1 / 3)
    return float(min(max(length, 1.0), 3 * sqrt(n), n / 3))


def _significant_lags(correlations: Float64, n: int) -> int:
    """The last lag before a run of lags whose correlations are negligible."""
    run = max(_FEWEST_LAGS, ceil(sqrt(log10(n))))
    is_small = np.abs(correlations[1:]) < _NEGLIGIBLE * sqrt(log10(n) / n)
    for lag in range(len(is_small) - run + 1):
        if is_small[lag : lag + run].all():
            return lag
    return len(is_small)


def resampled_medians(values: Float64, seed: int) -> Float64:
    """The medians of stationary-bootstrap resamples of a series; the same ones for the same seed."""
    return np.asarray(np.median(_resampled(values, seed), axis=1), np.float64)


def resampled_means(values: Float64, seed: int) -> Float64:
    """The means of the same resamples."""
    return np.asarray(_resampled(values, seed).mean(axis=1), np.float64)


def _resampled(values: Float64, seed: int) -> Float64:
    thinned = values[:: ceil(len(values) / _MOST_RESAMPLED)]
    return np.asarray(thinned[_resample(len(thinned), block_length(thinned), seed)])


def _resample(n: int, length: float, seed: int) -> Int64:
    """Rows of blocks of random lengths that begin anywhere, as (resamples, n); a block goes on at the beginning."""
    generator = np.random.default_rng(seed)
    begins = generator.random((RESAMPLES, n)) < 1 / length
    begins[:, 0] = True
    places = np.where(begins, generator.integers(0, n, (RESAMPLES, n)), 0)
    positions = np.arange(n)
    begun = np.maximum.accumulate(np.where(begins, positions, 0), axis=1)
    first = np.take_along_axis(places, begun, axis=1)
    return np.asarray((first + positions - begun) % n, np.int64)


def _draw_in(values: Float64) -> Float64:
    reach = _FARTHEST * _MAD_TO_DEVIATION * np.median(np.abs(values))
    return np.asarray(np.clip(values, -reach, reach) if reach else values, np.float64)


CONFIDENCE = 0.95
#: Standard deviation of a median between runs of the same code whose steps do not vary, as a share.
BETWEEN_RUNS = 0.004
#: What is added to it, as a share of the standard deviation of steps.
_BETWEEN_RUNS_OF_SPREAD = 1.0
#: Fewer steps cannot tell.
FEWEST_VALUES = 2
#: Fewer are not resampled: the interval is Welch's, and mind that its steps are taken for independent.
_FEWEST_RESAMPLED = 8
_EIGHTHS = 8
_FEWEST_FOR_DRIFT = 4 * _EIGHTHS
_MAD_TO_DEVIATION = 1.4826
_SEVERAL = 2


class Variation(StrEnum):
    """What an interval covers."""

    STEPS = "steps"
    RUNS = "runs"
    NONE = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """A figure on one side.

    Attributes:
        runs: One series a run: the value of each step, all positive, in the order of time. One value alone is a figure
            that the run has once.
        is_mean: Whether a run's value is the mean of its steps, because several are measured at once; else the median.
    """

    runs: tuple[Float64, ...]
    is_mean: bool = False

    @property
    def count(self) -> int:
        """All values."""
        return sum(map(len, self.runs))

    @property
    def centres(self) -> list[float]:
        """The logarithm of each run's value."""
        return [log(float(np.mean(run) if self.is_mean else np.median(run))) for run in self.runs]

    @property
    def centre(self) -> float:
        """The value of a run, or the geometric mean of the runs' values."""
        return exp(float(np.mean(self.centres)))

    def scaled(self, factor: float) -> Samples:
        """Every value times a factor."""
        return Samples(tuple(run * factor for run in self.runs), self.is_mean)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure on both sides.

    Attributes:
        a, b: Its values.
        interval: Of the change, as shares of ``a``; absent where it cannot be told.
        variation: What the interval covers.
        reason: Why there is no interval; empty where there is one.
        steps_interval: What the steps of one run of each side show by themselves; absent of several runs.
    """

    a: float
    b: float
    interval: tuple[float, float] | None
    variation: Variation
    reason: str = ""
    steps_interval: tuple[float, float] | None = None

    @property
    def change(self) -> float:
        """By which share of A it is higher on B."""
        return self.b / self.a - 1

    def reversed_rate(self, work_a: float, work_b: float) -> Change:
        """The change of work over this figure, where this one is a time; the work of a step is a fixed number."""
        factor = work_b / work_a
        interval, steps_interval = (
            None if bounds is None else (factor / (1 + bounds[1]) - 1, factor / (1 + bounds[0]) - 1)
            for bounds in (self.interval, self.steps_interval)
        )
        return Change(work_a / self.a, work_b / self.b, interval, self.variation, self.reason, steps_interval)

    def data(self, unit: str) -> dict[str, Json]:
        """The change in JSON."""
        return {
            f"a_{unit}": self.a,
            f"b_{unit}": self.b,
            "change": self.change,
            "interval": None if self.interval is None else list(self.interval),
            "steps_interval": None if self.steps_interval is None else list(self.steps_interval),
            "covers": str(self.variation),
            "reason": self.reason or None,
        }


def compare_samples(
    a: Samples, b: Samples, confidence: float = CONFIDENCE, between_runs: float | None = None
) -> Change:
    """Compare a figure of two sides.

    Args:
        a: One side.
        b: The other one.
        confidence: Of the interval.
        between_runs: Standard deviation between runs of the same code, as a share, for one run of each side; None
            estimates it from how much steps spread.
    """
    middle = log(b.centre / a.centre)
    if max(len(a.runs), len(b.runs)) >= _SEVERAL:
        half = _between_runs(a, b, confidence)
        return Change(a.centre, b.centre, (expm1(middle - half), expm1(middle + half)), Variation.RUNS)
    fewest = min(a.count, b.count)
    if fewest < FEWEST_VALUES:
        return Change(a.centre, b.centre, None, Variation.NONE, _too_few(a.count, b.count))
    low, high = _between_steps(a, b, middle, confidence)
    allowance = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 * _variance_between_runs(a, b, between_runs)
    widths = [sqrt(width**2 + allowance) for width in (middle - low, high - middle)]
    return Change(
        a.centre,
        b.centre,
        interval=(expm1(middle - widths[0]), expm1(middle + widths[1])),
        variation=Variation.STEPS,
        steps_interval=(expm1(low), expm1(high)),
    )


def exact_change(a: float, b: float) -> Change:
    """The change of a count, such as bytes: it does not vary between steps."""
    return Change(a, b, (b / a - 1, b / a - 1), Variation.NONE)


def welch_half_width(first: Sequence[float], second: Sequence[float], confidence: float) -> float | None:
    """Half of Welch's interval of the difference of two means; None where it cannot be told."""
    sides = [np.asarray(values, np.float64) for values in (first, second)]
    several = [values for values in sides if len(values) >= _SEVERAL]
    if not several:
        return None
    variances = [float(values.var(ddof=1)) for values in several]
    if len(several) < len(sides):
        freedom = len(several[0]) - 1.0
        error = sqrt(variances[0] * sum(1 / len(values) for values in sides))
    else:
        shares = [variance / len(values) for variance, values in zip(variances, sides, strict=True)]
        error = sqrt(sum(shares))
        parts = [share**2 / (len(values) - 1) for share, values in zip(shares, sides, strict=True)]
        freedom = sum(shares) ** 2 / sum(parts) if sum(parts) else float(min(map(len, sides)) - 1)
    return float(stdtrit(freedom, (1 + confidence) / 2)) * error


def _too_few(a: int, b: int) -> str:
    counts = f"{a:,} against {b:,} steps" if a != b else f"{a:,} step{'s' if a != 1 else ''} of each side"
    return f"{counts}: an interval needs at least {FEWEST_VALUES} of each"


def _between_runs(a: Samples, b: Samples, confidence: float) -> float:
    """Half of the interval by the runs' values."""
    half = welch_half_width(a.centres, b.centres, confidence)
    assert half is not None  # one side has several runs
    return half


def _variance_between_runs(a: Samples, b: Samples, between_runs: float | None) -> float:
    """The variance of the difference of two runs of the same code."""
    if between_runs is not None:
        return 2 * between_runs**2
    spreads = [_BETWEEN_RUNS_OF_SPREAD * _spread(np.log(side.runs[0])) for side in (a, b)]
    return sum(BETWEEN_RUNS**2 + spread**2 for spread in spreads)


def _between_steps(a: Samples, b: Samples, middle: float, confidence: float) -> tuple[float, float]:
    """The interval of the difference of one run each, by their steps alone."""
    tail = (1 - confidence) / 2
    logs = [np.log(side.runs[0]) for side in (a, b)]
    if min(map(len, logs)) < _FEWEST_RESAMPLED:
        half = welch_half_width(logs[0].tolist(), logs[1].tolist(), confidence)
        assert half is not None  # each has several steps
        return middle - half, middle + half
    resample = resampled_means if a.is_mean else resampled_medians
    centres = [resample(values, seed) for seed, values in enumerate(logs)]
    low, high = (float(value) for value in np.quantile(centres[1] - centres[0], (tail, 1 - tail)))
    factor = float(stdtrit(min(map(len, logs)) - 1, 1 - tail)) / NormalDist().inv_cdf(1 - tail)
    drift = sum(_drift_variance(values, resampled) for values, resampled in zip(logs, centres, strict=True))
    wider = float(stdtrit(_EIGHTHS - 1, 1 - tail)) ** 2 * drift
    return (
        middle - sqrt((factor * max(middle - low, 0.0)) ** 2 + wider),
        middle + sqrt((factor * max(high - middle, 0.0)) ** 2 + wider),
    )


def _drift_variance(values: Float64, resampled: Float64) -> float:
    """The variance of slow drift: that of the medians of eighths of a run beyond their own error."""
    if len(values) < _FEWEST_FOR_DRIFT:
        return 0.0
    eighths = np.array([np.median(part) for part in np.array_split(values, _EIGHTHS)])
    # Without regard to outliers, as the median of all steps is: the host fills the queue in the first steps.
    return max(_spread(eighths) ** 2 - _EIGHTHS * float(resampled.var()), 0.0)


def _spread(values: Float64) -> float:
    """The standard deviation of steps, without regard to outliers."""
    return _MAD_TO_DEVIATION * float(np.median(np.abs(values - np.median(values))))
