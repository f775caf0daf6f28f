"""The change of a figure from one side to the other, and an interval that says which variation it covers.

One run against one run
    Steps of a process tell how steps vary, not how processes vary: another start of the same code has other addresses,
    clocks and neighbours. The interval of the steps is wider by an
    allowance for runs of the same code, because two processes cannot show how much processes differ. The allowance is a
    standard deviation of ``BETWEEN_RUNS``, and another as large as the spread of steps. On H200 the medians of 16
    processes of a device-bound training spread 0.7 %, and its steps 0.3 %. Those of a host-bound training spread 8.4 %,
    and its steps 8.8 %.
Several runs of a side
    The run is the unit, as in benchstat and pyperf: the interval is Welch's for the runs' medians (B. Welch, Biometrika
    34, 1947); steps within a run count for its median alone. Where one side has a single run, the other side's spread
    between runs stands for both.

All of it is on logarithms, so that A against B is the reverse of B against A. With several comparisons each interval is
wider (C. Bonferroni), so that all of them hold together with the stated confidence.

Steps are no independent draws: a slow one is followed by slow ones. So the unit is a stretch of consecutive steps, an
eighth of the run. The interval is Welch's for the medians of the stretches (batch means, A. Law, "Simulation Modeling
and Analysis"). A run that drifts has stretches that differ, and a wider interval.

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
from math import exp, expm1, hypot, log, sqrt
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

from perfscope.measures.statistics import CONFIDENCE
from perfscope.report import Json
from perfscope.tables.columns import Float64

#: Standard deviation of a median between runs of the same code whose steps do not vary, as a share.
BETWEEN_RUNS = 0.004
#: The smallest change that matters.
SMALLEST_CHANGE = 0.02
#: Stretches of a run; fewer than two steps a stretch are taken for independent.
_STRETCHES = 8
_MAD_TO_DEVIATION = 1.4826


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
    estimates it from how much steps spread.
    """
    middle, variation = log(b.centre / a.centre), Variation.RUNS
    if max(len(a.runs), len(b.runs)) > 1:
        half = _welch_half_width(a.centres, b.centres, confidence)
    elif min(a.count, b.count) <= 1:
        return Delta(a.centre, b.centre, None, Variation.NONE, _too_few(a.count, b.count))
    else:
        variation = Variation.STEPS
        allowance = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 * _variance_between_runs(a, b, between_runs)
        half = sqrt(_welch_half_width(_stretches(a), _stretches(b), confidence) ** 2 + allowance)
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


def _welch_half_width(first: Sequence[float], second: Sequence[float], confidence: float) -> float:
    """Half of Welch's interval of the difference of two means, of which one has several values at least."""
    sides = [np.asarray(values, np.float64) for values in (first, second)]
    several = [values for values in sides if len(values) > 1]
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
    return f"{counts}: an interval needs at least 2 of each"


def _variance_between_runs(a: Samples, b: Samples, between_runs: float | None) -> float:
    if between_runs is not None:
        return 2 * between_runs**2
    return sum(BETWEEN_RUNS**2 + _spread(np.log(side.runs[0])) ** 2 for side in (a, b))


def _stretches(side: Samples) -> list[float]:
    """The centre of each stretch of a run, which has two steps at least; of fewer than eight steps each step."""
    values = side.runs[0] + side.added[0]
    if len(values) < _STRETCHES:
        return [float(value) for value in np.log(values)]
    stretches = np.array_split(values, min(_STRETCHES, len(values) // 2))
    return [float(log(np.mean(part)) if side.is_mean else np.median(np.log(part))) for part in stretches]


def _spread(values: Float64) -> float:
    return _MAD_TO_DEVIATION * float(np.median(np.abs(values - np.median(values))))
