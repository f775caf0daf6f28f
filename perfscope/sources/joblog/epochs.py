"""Step numbers over all epochs, for frameworks that begin at 0 or 1 in every epoch."""

from __future__ import annotations


class EpochCounter:
    """Turns the number of a step in its epoch into its number over all epochs."""

    def __init__(self) -> None:
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
        self._epochs[epoch] = (first, max(largest, step, length))
        return first + step
