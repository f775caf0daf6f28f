"""Columns of numbers that are spread over several files, decoded into one array when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perfscope.tables.columns import Bool, Int64, MaskedInt64


class Numbers(Protocol):
    """Numbers of which some may be absent."""

    def write(self, values: Int64, absent: Bool) -> None:
        """Write them into two arrays that are as long; ``absent`` holds no true value yet."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadNumbers:
    """Numbers that were read already."""

    column: MaskedInt64

    def write(self, values: Int64, absent: Bool) -> None:
        """Copy them."""
        values[:] = np.ma.getdata(self.column)
        absent[:] = np.ma.getmaskarray(self.column)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedNumbers:
    """Numbers of several files, one after the other: the rows of each, and its numbers, or None where it has none."""

    parts: Sequence[tuple[int, Numbers | None]]

    def write(self, values: Int64, absent: Bool) -> None:
        """Write those of every file."""
        first = 0
        for rows, numbers in self.parts:
            if numbers is None:
                values[first : first + rows] = 0
                absent[first : first + rows] = True
            else:
                numbers.write(values[first : first + rows], absent[first : first + rows])
            first += rows


def to_column(numbers: Numbers | None, rows: int) -> MaskedInt64:
    """Numbers as a column of so many rows; all are masked where there are none."""
    if numbers is None:
        return np.ma.MaskedArray(np.zeros(rows, np.int64), mask=np.ones(rows, np.bool_))
    values, absent = np.empty(rows, np.int64), np.zeros(rows, np.bool_)
    numbers.write(values, absent)
    return np.ma.MaskedArray(values, mask=absent if absent.any() else np.ma.nomask)
