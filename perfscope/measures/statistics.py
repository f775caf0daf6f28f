"""Statistics of values that may be missing or counted, and the confidence interval of a median.

The interval is the percentile bootstrap's, without drawing (B. Efron, "Bootstrap methods: another look at the
jackknife", Annals of Statistics 7, 1979, section 3). A resample's median is at most the k-th smallest of n values if at
least half of n draws fall at or below it. This probability is binomial. The interval needs no seed, and a log of a
million records costs no more than one of ten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, log, log1p, sqrt
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfscope.tables.columns import Float64, Int64, MaskedFloat64, MaskedInt64

CONFIDENCE = 0.95

#: Plain numbers, or a column of which some are absent.
Values: TypeAlias = "Int64 | Float64 | MaskedInt64 | MaskedFloat64"

#: The median of fewer may be one that was disturbed.
FEWEST_FOR_MEDIAN = 3
#: What a step takes beyond so many medians is a stall.
STALL = 3
#: Up to here the binomial is summed; beyond, the normal distribution gives the same ranks.
_LARGEST_EXACT = 10_000


def median(values: Values) -> float | None:
    """The median of the values that are present; None of none."""
    present = np.ma.compressed(values)
    return float(np.median(present)) if len(present) else None


def percentile(values: Values, percent: float) -> float | None:
    """A percentile of the values that are present; None of none."""
    present = np.ma.compressed(values)
    return float(np.percentile(present, percent)) if len(present) else None


def mean(values: Values) -> float | None:
    """The mean of the values that are present; None of none."""
    present = np.ma.compressed(values)
    return float(present.mean()) if len(present) else None


def maximum(column: MaskedInt64) -> int | None:
    """The largest integer that is present; None of none."""
    present = np.ma.compressed(column)
    return int(present.max()) if len(present) else None


@dataclass(frozen=True, slots=True, eq=False)
class ValueCounts:
    """Distinct values, ascending, with the number of times that each occurs."""

    value: Float64
    count: Int64

    @property
    def n(self) -> int:
        """How many values there are."""
        return int(self.count.sum())

    def at(self, index: int) -> float:
        """The value at an index of the sorted values, from 0."""
        return float(self.value[np.searchsorted(np.cumsum(self.count), index, "right")])

    def quantile(self, fraction: float) -> float | None:
        """A quantile with linear interpolation, as NumPy's; None of no values."""
        if not len(self.value):
            return None
        position = fraction * (self.n - 1)
        low = int(position)
        below, above = self.at(low), self.at(min(low + 1, self.n - 1))
        return below + (above - below) * (position - low)

    def median(self) -> float | None:
        """The median; None of no values."""
        return self.quantile(0.5)

    def mean(self) -> float | None:
        """The mean; None of no values."""
        return fsum((self.value * self.count).tolist()) / self.n if len(self.value) else None

    def median_interval(self) -> tuple[float, float] | None:
        """The bootstrap interval of the median; None of fewer than three values.

        Of an even number the lower end is the lower median's, the upper end the upper one's.
        """
        n = self.n
        if n < FEWEST_FOR_MEDIAN:
            return None
        tail = (1 - CONFIDENCE) / 2
        ranks = range(1, n + 1)
        # The k-th smallest value bounds a resample's median with probability P(X >= n / 2), X binomial of n and k / n.
        low = bisect_right(ranks, tail, key=lambda rank: _binomial_tail((n + 1) // 2, n, rank / n))
        high = bisect_left(ranks, 1 - tail, key=lambda rank: _binomial_tail(n // 2 + 1, n, rank / n))
        return self.at(low), self.at(high)


def _binomial_tail(successes: int, n: int, p: float) -> float:
    """The probability of at least so many successes in n draws; SciPy's takes longer to import than a log to read."""
    if p >= 1:
        return 1.0
    if n > _LARGEST_EXACT:
        return 1 - NormalDist(n * p, sqrt(n * p * (1 - p))).cdf(successes - 0.5)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1)))))
    counts = np.arange(successes, n + 1)
    log_choices = log_factorials[n] - log_factorials[counts] - log_factorials[n - counts]
    return float(np.exp(log_choices + counts * log(p) + (n - counts) * log1p(-p)).sum())


def count_values(values: Sequence[float] | npt.NDArray[np.generic]) -> ValueCounts:
    """Count how often each value occurs."""
    value, count = np.unique(np.asarray(values, np.float64), return_counts=True)
    return ValueCounts(value, count.astype(np.int64))
