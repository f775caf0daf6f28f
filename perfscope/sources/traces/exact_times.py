"""Times of a trace, which are microseconds with up to three decimals, as integer nanoseconds."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Int64

_DECIMALS = 3


def to_ns(times_us: npt.NDArray[np.float64]) -> Int64:
    """Doubles of microseconds to nanoseconds; the fraction is taken off first, so that no product is rounded."""
    microseconds = np.floor(times_us)
    fraction = np.rint((times_us - microseconds) * NS_PER_US)
    return np.asarray(microseconds.astype(np.int64) * NS_PER_US + fraction.astype(np.int64))


def digits_to_ns(raw: msgspec.Raw) -> int | None:
    """Microseconds as they are written to nanoseconds; None where they are no number, or beyond 146 years."""
    text = bytes(raw).strip(b'"')
    microseconds, _, fraction = text.partition(b".")
    if microseconds.isdigit() and (not fraction or fraction.isdigit()) and len(fraction) <= _DECIMALS:
        value = int(microseconds) * NS_PER_US + int(fraction.ljust(_DECIMALS, b"0"))
    else:
        try:
            value = int((Decimal(text.decode("ascii", "replace")) * NS_PER_US).to_integral_value())
        except (InvalidOperation, OverflowError, ValueError):
            return None
    return value if abs(value) < 1 << 62 else None
