"""Whether the steps of this process go on: looked at every two seconds, beside training. Nothing here runs in a step.

A look sees how many steps are completed and when the last one ended. The mean time of the steps between two looks is
one measurement.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Measurements that the median is of: two minutes of short steps.
_MOST_MEASUREMENTS = 60
#: Before the second step, compilation and the first batches may take so many times the shortest stall.
_START_FACTOR = 10


class Stall(NamedTuple):
    """No step was completed for longer than a limit."""

    idle_ns: int
    limit_ns: int


class Progress:
    """The steps of one process.

    Attributes:
        is_stalled: Whether they do not go on.
        limit_ns: After how long without a completed step training is stalled.
    """

    def __init__(self, factor: float, shortest_ns: int, now_ns: int) -> None:
        self.is_stalled = False
        self.limit_ns = _START_FACTOR * shortest_ns
        self._factor = factor
        self._shortest_ns = shortest_ns
        self._steps = 0
        self._moved_ns = now_ns
        self._measured_ns: deque[float] = deque(maxlen=_MOST_MEASUREMENTS)

    def idle_ns(self, now_ns: int) -> int:
        """Since when no step was completed."""
        return now_ns - self._moved_ns

    def find_stall(self, steps: int, now_ns: int) -> Stall | None:
        """Look at the steps; a stall is returned once, when it is noticed."""
        idle_ns = self.idle_ns(now_ns)
        if self.is_stalled or idle_ns < self.limit_ns or steps != self._steps:
            return None
        self.is_stalled = True
        return Stall(idle_ns, self.limit_ns)

    def advance(self, steps: int, ended_ns: int | None, now_ns: int, *, is_disturbed: bool = False) -> bool:
        """Steps may have been completed since the last look; says whether that ends a stall.

        Args:
            steps: Completed steps.
            ended_ns: When the last one ended; None where that is not known.
            now_ns: The time of the look.
            is_disturbed: A profiler window is open: these steps are not like others.
        """
        new = steps - self._steps
        if new <= 0:
            return False
        was_stalled, self.is_stalled = self.is_stalled, False
        ended_ns = now_ns if ended_ns is None else min(ended_ns, now_ns)
        if self._steps and not (is_disturbed or was_stalled):
            self._measured_ns.append((ended_ns - self._moved_ns) / new)
            median_ns = sorted(self._measured_ns)[len(self._measured_ns) // 2]
            self.limit_ns = max(self._shortest_ns, int(self._factor * median_ns))
        self._steps, self._moved_ns = steps, ended_ns
        return was_stalled
