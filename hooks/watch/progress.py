"""Whether the steps of this process go on, and as fast as before: looked at every two seconds, from beside training.

Nothing here runs in a step. A look sees how many steps are completed and when the last one ended; the mean time of the
steps between two looks is one measurement.
"""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

#: Measurements that the median is of: two minutes of short steps.
_MOST_MEASUREMENTS = 60
_FEWEST_TO_COMPARE = 12
#: A slowdown counts where so many measurements in a row show it: one slow step is a save, a validation, a collection.
_SLOW_IN_A_ROW = 3
#: Before the second step, compilation and the first batches may take so many times the shortest stall.
_START_FACTOR = 10
_ANOMALY = re.compile(r"\s*step\s*>\s*(\d+(?:\.\d*)?)\s*x\s*")


class Stall(NamedTuple):
    """No step was completed for longer than a limit."""

    idle_ns: int
    limit_ns: int


class Progress:
    """The steps of one process.

    Attributes:
        is_stalled: Whether they do not go on.
        step_ns: The median step; None before the second one.
    """

    def __init__(self, factor: float, shortest_ns: int, now_ns: int) -> None:
        self.is_stalled = False
        self.step_ns: float | None = None
        self._factor = factor
        self._shortest_ns = shortest_ns
        self._steps = 0
        self._moved_ns = now_ns
        self._measured_ns: deque[float] = deque(maxlen=_MOST_MEASUREMENTS)
        #: How many times the median the last measurement is; None where it was looked at.
        self._ratio: float | None = None
        self._slow = 0

    @property
    def limit_ns(self) -> int:
        """After how long without a completed step training is stalled."""
        if self.step_ns is None:
            return _START_FACTOR * self._shortest_ns
        return max(self._shortest_ns, int(self._factor * self.step_ns))

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
            measured_ns = (ended_ns - self._moved_ns) / new
            self._ratio = measured_ns / self.step_ns if self.step_ns else 1.0
            self._measured_ns.append(measured_ns)
            ordered = sorted(self._measured_ns)
            self.step_ns = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        self._steps, self._moved_ns = steps, ended_ns
        return was_stalled

    def find_slowdown(self, ratio: float) -> float | None:
        """By how much steps have become slower than the median, where several measurements in a row say so."""
        last, self._ratio = self._ratio, None
        if last is None:
            return None
        self._slow = self._slow + 1 if last > ratio and len(self._measured_ns) >= _FEWEST_TO_COMPARE else 0
        if self._slow < _SLOW_IN_A_ROW:
            return None
        self._slow = 0
        return last


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
