"""How long a collective takes for its bytes and its ranks: a latency, and bytes at a bandwidth, as measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.replay.joined_operations import Operation
from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Float64, Int64

#: What a small collective takes on NVLink; used where all measured ones have the same size.
_USUAL_LATENCY_NS = 20 * NS_PER_US
#: Sizes that differ by less do not tell latency from bandwidth.
_FEWEST_TIMES_LARGER = 2


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """A line through measured transfers.

    Attributes:
        latency_ns: What a transfer takes besides its bytes.
        bytes_per_ns: Its bandwidth: the same number in GB/s.
        is_fitted: Whether sizes differed enough to tell the two apart; the latency is a usual one otherwise.
    """

    latency_ns: float
    bytes_per_ns: float
    is_fitted: bool

    def time_of(self, size_bytes: float) -> float:
        """Nanoseconds for a size."""
        return self.latency_ns + size_bytes / self.bytes_per_ns


def fit_transfer_times(operations: Sequence[Operation], transfer_ns: Int64) -> TransferTimes:
    """Fit operations of one kind, by the median time of each size."""
    sizes = np.array([operation.kind.bytes for operation in operations], np.float64)
    distinct = np.unique(sizes)
    medians: Float64 = np.array([np.median(transfer_ns[sizes == size]) for size in distinct])
    if distinct[-1] >= _FEWEST_TIMES_LARGER * distinct[0]:
        # Relative distances count, so that large transfers do not drown the latency of small ones.
        slope, latency = np.polyfit(distinct, medians, 1, w=1 / np.maximum(medians, 1))
        if slope > 0 and latency >= 0:
            return TransferTimes(float(latency), float(1 / slope), is_fitted=True)
    largest = medians[-1]
    latency_ns = float(min(_USUAL_LATENCY_NS, largest / 2))
    return TransferTimes(latency_ns, float(distinct[-1] / (largest - latency_ns)), is_fitted=False)
