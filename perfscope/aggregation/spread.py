"""Quantiles of many values, and which of many rows stand out.

A quantile is a value that is there: the smallest one that is at least as large as that share of the values (the nearest
rank). A row stands out where one of its values is farther from the median than a normal distribution explains.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import ceil, nan
from types import NoneType
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.packed import Pieces

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
#: So many numbers of a column are in memory; the others, in pieces, are read when they are asked for.
_IN_A_PIECE = 1024

_C = TypeVar("_C")

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]


class CellColumn(Generic[_C]):
    """The cells of some rows in one column: as numbers, and as what they share; as objects they would fill the memory.

    Args:
        absent: How many rows before the first one have no cell.
        pieces: Where the numbers of many rows go, with those of the other columns; a place of its own by default.
    """

    def __init__(self, absent: int = 0, pieces: Pieces | None = None) -> None:
        self._pieces = Pieces() if pieces is None else pieces
        self._own, self._last = array("q"), array("d")
        for _ in range(absent):
            self._add(nan)
        self._kinds: set[type] = {NoneType} if absent else set()
        self._first: _C | None = None
        self._is_shared = True

    def __len__(self) -> int:
        return len(self._own) * _IN_A_PIECE + len(self._last)

    def append(self, cell: _C) -> None:
        """Add the cell of the next row."""
        if not len(self):
            self._first = cell
        self._is_shared = self._is_shared and cell == self._first
        self._kinds.add(type(cell))
        self._add(float(cell) if isinstance(cell, (int, float)) else nan)

    def _add(self, number: float) -> None:
        self._last.append(number)
        if len(self._last) == _IN_A_PIECE:
            self._own.append(len(self._pieces))
            self._pieces.add(self._last.tobytes())
            self._last = array("d")

    @property
    def shared(self) -> _C | str | None:
        """What all rows have; an empty text where they differ."""
        return self._first if self._is_shared else ""

    @property
    def values(self) -> Floats | None:
        """The numbers, NaN where there is none, read each time; None where a row has a text, or none a number."""
        if str in self._kinds or self._kinds == {NoneType}:
            return None
        return np.frombuffer(b"".join([*map(self._pieces.read, self._own), self._last.tobytes()]), np.float64)

    @property
    def has_numbers_alone(self) -> bool:
        """Whether every row that has a cell has a number that is neither true nor false."""
        kinds = self._kinds - {NoneType}
        return bool(kinds) and kinds <= {int, float}

    def number_at(self, row: int) -> float | None:
        """The cell of a row, where the number alone tells it: all are floats, or integers that floats can hold."""
        piece, offset = divmod(row, _IN_A_PIECE)
        numbers = np.frombuffer(self._pieces.read(self._own[piece])) if piece < len(self._own) else self._last
        kinds, number = self._kinds - {NoneType}, float(numbers[offset])
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
