"""Step numbers over all epochs, where a framework counts anew in each."""

from __future__ import annotations


class EpochCounter:
    """Adds the lengths of the epochs before to a step's number in its epoch."""

    def __init__(self) -> None:
        self._epochs: dict[int, tuple[int, int]] = {}

    def add(self, epoch: int, step: int, length: int = 0) -> int:
        """Take note of a step of an epoch and return its number over all epochs; ``length`` is the epoch's, or 0."""
        first, largest = self._epochs.get(epoch, (None, 0))
        if first is None:
            first = sum(self._epochs.get(epoch - 1, (0, 0)))
        self._epochs[epoch] = (first, max(largest, step, length))
        return first + step
