"""The columns of typed tables.

A column of an optional value is a masked array: absent is neither 0 nor NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Int64: TypeAlias = npt.NDArray[np.int64]
Float64: TypeAlias = npt.NDArray[np.float64]
Bool: TypeAlias = npt.NDArray[np.bool_]
#: Numbers of which some are absent; as text, because np.ma takes long to import.
MaskedInt64: TypeAlias = "np.ma.MaskedArray[tuple[int], np.dtype[np.int64]]"
MaskedFloat64: TypeAlias = "np.ma.MaskedArray[tuple[int], np.dtype[np.float64]]"


def nothing() -> Int64:
    """A column without rows."""
    return np.zeros(0, np.int64)


def masked(values: Sequence[int | None]) -> MaskedInt64:
    """A column in which None is absent."""
    absent = np.asarray([value is None for value in values], np.bool_)
    return np.ma.MaskedArray(np.asarray([value or 0 for value in values], np.int64), mask=absent)


def join(columns: Sequence[MaskedInt64]) -> MaskedInt64:
    """Columns one after the other."""
    absent = np.concatenate([np.ma.getmaskarray(column) for column in columns])
    values = np.concatenate([np.ma.getdata(column) for column in columns])
    return np.ma.MaskedArray(values, mask=absent if absent.any() else np.ma.nomask)


def present(column: MaskedInt64) -> Bool:
    """Where a column has a value."""
    return ~np.ma.getmaskarray(column)


def to_frame(columns: Mapping[str, object]) -> pd.DataFrame:
    """Columns as a pandas DataFrame, with <NA> for what is absent."""
    import pandas as pd  # takes longer to import than most traces and logs take to read

    frame = pd.DataFrame()
    for name, column in columns.items():
        if isinstance(column, np.ma.MaskedArray):
            values = pd.array(column.data, dtype="Int64" if column.dtype.kind == "i" else "Float64")
            values[np.ma.getmaskarray(column)] = pd.NA
            frame[name] = values
        else:
            frame[name] = column
    return frame
