"""The stationary bootstrap of a median or a mean: resamples of steps that keep how steps depend on each other.

Steps are no independent draws: a slow one is followed by slow ones, so that an interval that takes them for independent
is too narrow. Resamples are made of blocks of consecutive steps of random lengths (D. Politis and J. Romano, "The
stationary bootstrap", Journal of the American Statistical Association 89, 1994). Their mean length is chosen from the
steps' autocorrelation (D. Politis and H. White, "Automatic block-length selection for the dependent bootstrap",
Econometric Reviews 23, 2004, with the correction of A. Patton, D. Politis and H. White, 28, 2009).
"""

from __future__ import annotations

from math import ceil, log10, sqrt

import numpy as np

from perfscope.tables.columns import Float64, Int64

RESAMPLES = 1000
#: A longer series is thinned before it is resampled, which makes its interval wider, never narrower.
_MOST_RESAMPLED = 4096
#: Values further from the median than so many deviations are drawn in, so that one stall is no dependence.
_FARTHEST = 4.0
_MAD_TO_DEVIATION = 1.4826
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
