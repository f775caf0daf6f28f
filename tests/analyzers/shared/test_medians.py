"""The median is that of NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.shared.medians import median_of


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1) | st.lists(st.floats(-1e300, 1e300), min_size=1))
def test_the_median_is_what_numpy_gives(values: list[int] | list[float]) -> None:
    assert median_of(np.array(values)) == float(np.median(np.array(values)))
