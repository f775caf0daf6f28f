"""Columns of values that may be absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def masked(values: Sequence[int | None]) -> np.ma.MaskedArray[Any, Any]:
    """A column of int64 in which None is masked."""
    return np.ma.MaskedArray(
        np.asarray([0 if value is None else value for value in values], np.int64),
        mask=[value is None for value in values],
    )
