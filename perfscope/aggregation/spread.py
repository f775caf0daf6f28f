"""Quantiles of many values, and which of many rows stand out.

A quantile is a value that is there: the smallest one that is at least as large as that share of the values (the nearest
rank). A row stands out where one of its values is farther from the median than a normal distribution explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, nan
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

#: What is told of many values.
QUANTILES = (
    ("smallest", 0.0), ("1 %", 0.01), ("10 %", 0.1), ("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("largest", 1.0),
)  # fmt: skip
#: An outlier is that many standard deviations from the median, and at least that share of the median.
FAR = 8
_LEAST_SHARE = 0.01
#: How many outliers are shown.
MOST_OUTLIERS = 16
#: The standard deviation of a normal distribution over its median deviation, and over its mean one.
_OVER_MEDIAN, _OVER_MEAN = 1.4826, 1.2533

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]


def to_numbers(cells: Sequence[object]) -> Floats | None:
    """The numbers of a column, NaN where there is none; None where a cell is a text, or none is a number."""
    if any(isinstance(cell, str) for cell in cells) or all(cell is None for cell in cells):
        return None
    return np.array([cell if isinstance(cell, int | float) else nan for cell in cells], np.float64)


def places_of_quantiles(values: Floats) -> list[int | None]:
    """Where the value of each of ``QUANTILES`` stands; None where there is no value."""
    order, present = np.argsort(values, kind="stable"), int((~np.isnan(values)).sum())
    return [int(order[nearest_rank(present, share)]) if present else None for _, share in QUANTILES]


class Chosen(Struct, frozen=True):
    """The rows that are shown as they are.

    Attributes:
        rows: Their positions, the one that stands out most first.
        outliers: How many rows are outliers.
        shown_outliers: How many of these are shown.
    """

    rows: tuple[int, ...]
    outliers: int
    shown_outliers: int


def nearest_rank(count: int, share: float) -> int:
    """The position of a quantile among so many values in order.

    >>> [nearest_rank(4, share) for share in (0, 0.25, 0.5, 0.51, 1)]
    [0, 0, 1, 2, 3]
    """
    return max(ceil(share * count) - 1, 0)


def choose_rows(columns: Iterable[Floats]) -> Chosen:
    """The rows with the smallest and the largest value of each column, and those that are farthest from the medians.

    Args:
        columns: The values of each column, NaN where there is none; a column of equal values tells nothing.
    """
    extremes: set[int] = set()
    score = np.zeros(0)
    for values in columns:
        score = score if len(score) else np.zeros(len(values))
        present = values[~np.isnan(values)]
        if not len(present) or present.min() == present.max():
            continue
        extremes |= {int(np.nanargmin(values)), int(np.nanargmax(values))}
        score = np.maximum(score, np.nan_to_num(deviations(values)))
    outliers = np.flatnonzero(score > FAR)
    farthest = outliers[np.argsort(-score[outliers], kind="stable")][:MOST_OUTLIERS].tolist()
    rows = sorted({*extremes, *farthest}, key=lambda row: (-score[row], row))
    shown = int((score[rows] > FAR).sum()) if rows else 0
    return Chosen(tuple(rows), len(outliers), shown)


def deviations(values: Floats) -> Floats:
    """How many standard deviations each value is from the median, by the median deviation; NaN where there is none."""
    median = np.nanmedian(values)
    distance = np.abs(values - median)
    spread = _OVER_MEDIAN * np.nanmedian(distance) or _OVER_MEAN * np.nanmean(distance)
    least = _LEAST_SHARE * abs(median) / FAR
    scale = max(float(spread), float(least))
    with np.errstate(over="ignore"):  # of numbers that are next to nothing
        return np.asarray(distance / scale if scale else np.zeros(len(values)), np.float64)
