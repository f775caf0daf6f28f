"""Step numbers over all epochs, for frameworks that begin at 0 or 1 in every epoch."""

from __future__ import annotations

import numpy as np

from perfscope.tables.columns import Int64

_FEW = 10


class EpochCounter:
    """Turns the number of a step in its epoch into its number over all epochs.

    Args:
        first_epoch: The number of the first epoch, where a log that begins with a later one had others of the same
            length before it; None where that is not known.
    """

    def __init__(self, first_epoch: int | None = None) -> None:
        self._first_epoch = first_epoch
        self._epochs: dict[int, tuple[int, int]] = {}

    def add(self, epoch: int, step: int, length: int = 0) -> int:
        """Record a step of an epoch and return its number over all epochs.

        Args:
            epoch: The number of the epoch.
            step: The number of the step in the epoch.
            length: Steps of the epoch; 0 where unknown.
        """
        first, largest = self._epochs.get(epoch, (None, 0))
        if first is None:
            first = sum(self._epochs.get(epoch - 1, (0, 0)))
            if not self._epochs and self._first_epoch is not None:
                first = max(epoch - self._first_epoch, 0) * length
        self._epochs[epoch] = (first, max(largest, step, length))
        return first + step

    def add_many(self, epochs: Int64, steps: Int64, lengths: Int64) -> Int64:
        """Record many steps, as ``add`` does; those of an epoch follow each other, with the same length."""
        if len(steps) < _FEW:
            rows = zip(epochs.tolist(), steps.tolist(), lengths.tolist(), strict=True)
            return np.asarray([self.add(*row) for row in rows], np.int64)
        changes = np.flatnonzero((np.diff(epochs) != 0) | (np.diff(lengths) != 0)) + 1
        starts = np.concatenate((np.zeros(1, np.int64), changes))
        largest = np.maximum.reduceat(steps, starts).tolist()
        runs = zip(epochs[starts].tolist(), largest, lengths[starts].tolist(), strict=True)
        offsets = np.asarray([self.add(epoch, step, length) - step for epoch, step, length in runs])
        counts = np.diff(starts, append=len(steps))
        numbers: Int64 = steps + np.repeat(offsets, counts)
        return numbers
