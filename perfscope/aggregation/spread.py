"""Quantiles of many values, and which of many rows stand out.

A quantile is a value that is there: the smallest one that is at least as large as that share of the values (the nearest
rank). A row stands out where one of its values is farther from the median than a normal distribution explains.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import ceil, nan
from types import NoneType
from typing import Generic, TypeAlias, TypeVar

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

#: A float holds every integer below.
_EXACT = 1 << 53

_C = TypeVar("_C")

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]


class CellColumn(Generic[_C]):
    """The cells of some rows in one column: as numbers, and as what they share; as objects they would fill the memory.

    Args:
        absent: How many rows before the first one have no cell.
    """

    def __init__(self, absent: int = 0) -> None:
        self._numbers = array("d", [nan]) * absent
        self._kinds: set[type] = {NoneType} if absent else set()
        self._first: _C | None = None
        self._is_shared = True

    def __len__(self) -> int:
        return len(self._numbers)

    def append(self, cell: _C) -> None:
        """Add the cell of the next row."""
        if not self._numbers:
            self._first = cell
        self._is_shared = self._is_shared and cell == self._first
        self._kinds.add(type(cell))
        self._numbers.append(float(cell) if isinstance(cell, (int, float)) else nan)

    @property
    def shared(self) -> _C | str | None:
        """What all rows have; an empty text where they differ."""
        return self._first if self._is_shared else ""

    @property
    def values(self) -> Floats | None:
        """The numbers, NaN where there is none; None where a row has a text, or none a number."""
        is_numeric = str not in self._kinds and self._kinds != {NoneType}
        return np.frombuffer(self._numbers, np.float64) if is_numeric else None

    @property
    def has_numbers_alone(self) -> bool:
        """Whether every row that has a cell has a number that is neither true nor false."""
        kinds = self._kinds - {NoneType}
        return bool(kinds) and kinds <= {int, float}

    def number_at(self, row: int) -> float | None:
        """The cell of a row, where the number alone tells it: all are floats, or integers that floats can hold."""
        kinds, number = self._kinds - {NoneType}, self._numbers[row]
        if kinds == {float}:
            return number
        return int(number) if kinds == {int} and abs(number) < _EXACT else None


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


def choose_rows(columns: Sequence[Floats]) -> Chosen:
    """The rows with the smallest and the largest value of each column, and those that are farthest from the medians.

    Args:
        columns: The values of each column, NaN where there is none; a column of equal values tells nothing.
    """
    extremes: set[int] = set()
    score = np.zeros(len(columns[0]) if columns else 0)
    for values in columns:
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
