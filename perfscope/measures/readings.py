"""The readings of a value that is sampled: counters and power, which are not read in every sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.constants import KILO, NS_PER_S
from perfscope.tables.columns import Bool, Float64, Int64, MaskedInt64, present

_MJ_PER_MW_NS = 1 / NS_PER_S
#: A reading is valid for this long.
LONGEST_GAP_NS = 2_500_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Readings:
    """What was read of a value, in order of time."""

    t_ns: Int64
    value: Int64

    @property
    def span_ns(self) -> int:
        """Time from the first reading to the last; 0 of fewer than two."""
        return int(self.t_ns[-1] - self.t_ns[0]) if len(self.t_ns) else 0

    @property
    def change(self) -> int:
        """By how much the last reading is above the first."""
        return int(self.value[-1] - self.value[0]) if len(self.value) else 0

    @property
    def decreases(self) -> bool:
        """Whether a reading is below the one before it, as where a counter was reset."""
        return bool((np.diff(self.value) < 0).any())

    def during(self, start_ns: int, end_ns: int) -> Readings:
        """The readings of an interval, ends included."""
        inside = (self.t_ns >= start_ns) & (self.t_ns <= end_ns)
        return Readings(self.t_ns[inside], self.value[inside])


def read_column(t_ns: Int64, column: MaskedInt64) -> Readings:
    """The readings of a column of samples."""
    is_read = present(column)
    return Readings(t_ns[is_read], np.asarray(column.data[is_read]))


class PowerCurve:
    """Power over time, integrated by the trapezoidal rule.

    Attributes:
        t_ns: When power was read.
    """

    def __init__(self, power_mw: Readings) -> None:
        self.t_ns = power_mw.t_ns
        spans_ns = np.diff(self.t_ns)
        means_mw = (power_mw.value[1:] + power_mw.value[:-1]) / 2
        self._energy_mj = np.concatenate([[0.0], np.cumsum(means_mw * spans_ns * _MJ_PER_MW_NS)])
        # Samples that are regularly further apart are no gap; a silence among dense samples is one.
        longest_ns = max(LONGEST_GAP_NS, 3 * float(np.median(spans_ns))) if len(spans_ns) else 0
        self._gaps = np.concatenate([[0], np.cumsum(spans_ns > longest_ns)])

    def covers(self, starts_ns: Int64, ends_ns: Int64) -> Bool:
        """Which intervals lie between samples, without a gap."""
        if len(self.t_ns) <= 1:
            return np.zeros(len(starts_ns), bool)
        inside = (starts_ns >= self.t_ns[0]) & (ends_ns <= self.t_ns[-1])
        before = np.clip(np.searchsorted(self.t_ns, starts_ns, "right") - 1, 0, len(self.t_ns) - 1)
        after = np.clip(np.searchsorted(self.t_ns, ends_ns, "left"), 0, len(self.t_ns) - 1)
        return np.asarray(inside & (self._gaps[before] == self._gaps[after]))

    def energy_j(self, starts_ns: Int64, ends_ns: Int64) -> Float64:
        """The energy of intervals that are covered."""
        if not len(starts_ns):
            return np.zeros(0)
        origin = self.t_ns[0]
        t_ns = (self.t_ns - origin).astype(float)
        at_starts, at_ends = (
            np.interp((times_ns - origin).astype(float), t_ns, self._energy_mj) for times_ns in (starts_ns, ends_ns)
        )
        return np.asarray((at_ends - at_starts) / KILO)
