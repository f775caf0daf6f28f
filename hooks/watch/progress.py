"""Whether the steps of this process go on, and as fast as before: looked at every two seconds, from beside training.

Nothing here runs in a step. A look sees how many steps are completed and when the last one ended; the mean time of the
steps between two looks is one measurement.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

#: Measurements that the median is of: two minutes of short steps.
_MOST_MEASUREMENTS = 60
_FEWEST_TO_COMPARE = 12
#: A slowdown counts where so many measurements in a row show it: one slow step is a save, a validation, a collection.
_SLOW_IN_A_ROW = 3
#: Before the second step, compilation and the first batches may take so many times the shortest stall.
_START_FACTOR = 10
_ANOMALY = re.compile(r"\s*step\s*>\s*(\d+(?:\.\d*)?)\s*x\s*")


@dataclass(frozen=True)
class Stall:
    """No step was completed for longer than a limit."""

    idle_ns: int
    limit_ns: int


class Progress:
    """The steps of one process.

    Attributes:
        is_stalled: Whether they do not go on.
    """

    def __init__(self, factor: float, shortest_ns: int, now_ns: int) -> None:
        self.is_stalled = False
        self._factor = factor
        self._shortest_ns = shortest_ns
        self._steps = 0
        self._moved_ns = now_ns
        self._measured_ns: deque[float] = deque(maxlen=_MOST_MEASUREMENTS)
        #: The measurements by size, and their median: a look asks for it several times.
        self._ordered_ns: list[float] = []
        self._median_ns: float | None = None
        self._slow = 0
        self._last_ratio = 1.0
        self._is_new = False

    @property
    def limit_ns(self) -> int:
        """After how long without a completed step training is stalled."""
        if self._median_ns is None:
            return _START_FACTOR * self._shortest_ns
        return max(self._shortest_ns, int(self._factor * self._median_ns))

    @property
    def step_ns(self) -> float | None:
        """The median step; None before the second one."""
        return self._median_ns

    def idle_ns(self, now_ns: int) -> int:
        """Since when no step was completed."""
        return now_ns - self._moved_ns

    def find_stall(self, steps: int, now_ns: int) -> Stall | None:
        """Look at the steps; a stall is returned once, when it is noticed."""
        idle_ns = now_ns - self._moved_ns
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
            self._add((ended_ns - self._moved_ns) / new)
        self._steps, self._moved_ns = steps, ended_ns
        return was_stalled

    def _add(self, step_ns: float) -> None:
        usual_ns, ordered = self._median_ns, self._ordered_ns
        self._last_ratio = step_ns / usual_ns if usual_ns else 1.0
        if len(ordered) == _MOST_MEASUREMENTS:
            ordered.remove(self._measured_ns[0])
        self._measured_ns.append(step_ns)
        ordered.append(step_ns)
        ordered.sort()  # all but the last are in order, which the sort notices
        self._median_ns = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        self._is_new = True

    def find_slowdown(self, ratio: float) -> float | None:
        """By how much steps have become slower than the median, where several measurements in a row say so."""
        if not self._is_new:
            return None
        self._is_new = False
        is_slow = self._last_ratio > ratio and len(self._measured_ns) >= _FEWEST_TO_COMPARE
        self._slow = self._slow + 1 if is_slow else 0
        if self._slow < _SLOW_IN_A_ROW:
            return None
        self._slow = 0
        return self._last_ratio


def parse_anomaly(text: str) -> float:
    """Read after what slowdown a window opens by itself.

    >>> parse_anomaly("step>1.2x")
    1.2

    Raises:
        ValueError: It is not of that form, or not above 1.
    """
    match = _ANOMALY.fullmatch(text)
    if match is None or float(match[1]) <= 1:
        raise ValueError(f"{text!r} is no slowdown: write step>1.2x for steps that take 1.2 times the usual time")
    return float(match[1])
