r"""Progress bars of tqdm without a name, and the step times that follow from their elapsed clocks.

      4%|#         | 1/25 [00:03<01:12,  3.01s/it]

The rate is a moving average over earlier updates, not the time of a step; the elapsed clock is exact to its second.
Step times are therefore differences of that clock. Steps are joined until the clock has moved 20 seconds, or a fifth of
what a short log shows. The median of single steps of 2.4 s would be 2 s. Bars with a name
(``Loading checkpoint shards:  50%|``) are no training.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from perfscope.constants import NS_PER_S
from perfscope.sources.joblog.records import DISTURBANCES, Record, RecordSeries
from perfscope.sources.joblog.resolve import SKEW
from perfscope.sources.joblog.step_times import PRECISE, USABLE
from perfscope.sources.joblog.text import CLOCK, LABEL
from perfscope.tables.joblog import Disturbance

#: What srun -l, docker compose, kubectl and ts write before a line; a name of a bar ends with a colon.
_FRONT = (
    rb"(?:[ \t]{1,8}\d{1,6}: |[\w.-]{1,60}-\d{1,6} {1,8}\| |\[pod/[\w./-]{1,200}\] "
    rb"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,10}Z?\]? (?:std(?:out|err) [FP] )?)?"
)
BAR = re.compile(
    rb"(?:^|(?<=\}))(?:[ \t]*+|(?!Epoch )"  # most bars have nothing in front
    + _FRONT
    + LABEL.replace(rb"(?:>\s+)*(", rb"(?:>[ \t]+)*(?:", 1)
    + rb"?[ \t]*+)\d{1,3}+%\|[^|\n]{0,400}+\|[ ]*+"
    rb"(?P<step>\d{1,12}+)/(?P<total>\d{1,12}+) \[" + CLOCK + rb"<",
    re.MULTILINE,
)
_LOSSES_OF_ANOTHER = 2
_TIMES_FASTER = 10
_DRAWN_PER_S = 10


@dataclass(slots=True)
class _Points:
    step: array[int] = field(default_factory=lambda: array("q"))
    clock_s: array[int] = field(default_factory=lambda: array("q"))
    disturbed: array[int] = field(default_factory=lambda: array("b"))
    starts: list[int] = field(default_factory=lambda: [0])


class ProgressBars:
    """The bars of one log, by their number of steps."""

    def __init__(self) -> None:
        self._bars: dict[int, _Points] = {}
        self._current: int | None = None
        self._votes: Counter[int] = Counter()
        self._late_votes: Counter[int] = Counter()
        self._disturbance = 0

    def add(self, total: int, step: int, clock_s: int) -> None:
        """Add a state of the bar of a length, if it is no copy of another node's."""
        self._current = total
        points = self._bars.setdefault(total, _Points())
        if points.step and step <= points.step[-1]:
            if not _begins_again(step, clock_s, points):
                return
            points.starts.append(len(points.step))
        points.step.append(step)
        points.clock_s.append(clock_s)
        points.disturbed.append(self._disturbance)
        self._disturbance = 0

    def on_losses(self) -> None:
        """The trainer prints its losses: the bar shown last is the bar of the training."""
        total = self._current
        if total is not None:
            (self._late_votes if self.is_complete(total) else self._votes)[total] += 1

    def on_disturbance(self, kind: Disturbance) -> None:
        """Training is interrupted; the clock of its bar runs on."""
        self._disturbance = DISTURBANCES.index(kind)

    def training_total(self, steps: int | None) -> int | None:
        """The length of the training's bar; ``steps`` is the number of steps where the log states it."""
        if steps is not None:
            return steps if steps in self._bars else None
        if self._votes:
            return max(self._votes, key=lambda total: (self._votes[total], total))
        # After a training's last step come its last losses; other bars are over before the first ones.
        possible = [total for total in self._bars if self._late_votes[total] < _LOSSES_OF_ANOTHER]
        with_losses = [total for total in possible if self._late_votes[total]]
        if with_losses:
            return max(with_losses, key=lambda total: (self._late_votes[total], total))
        return possible[0] if len(self._bars) == 1 and possible else None

    def is_complete(self, total: int) -> bool:
        """Whether the bar of a length was drawn to its end."""
        return total in self._bars and self._bars[total].step[-1] == total

    def last_start(self, total: int) -> tuple[int | None, int]:
        """Where the bar of a length began when it was drawn anew last, None where that is unknown, and ended."""
        points = self._bars[total]
        first, reached = points.starts[-1], points.step[-1]
        steps, clocks = points.step, points.clock_s
        if _skips_steps(points, first, len(steps)):
            moved_s = clocks[-1] - clocks[first + 1]
            # A bar is drawn at most every tenth of a second: faster steps before the first drawing are not counted.
            is_exact = moved_s * _DRAWN_PER_S > (reached - steps[first + 1])
            return (steps[first + 1] - 1 if is_exact else None), reached
        if steps[first] * _TIMES_FASTER <= reached:
            return 0, reached
        return (steps[first] if clocks[first] == 0 else None), reached

    def add_records(self, total: int, series: RecordSeries) -> None:
        """Append the step times of the bar of a length."""
        points = self._bars[total]
        series.clock_runs_on = series.covers_gaps = True
        edges = [*points.starts, len(points.step)]
        for first, end in pairwise(edges):
            if first:
                series.on_restart()
            for record, disturbance in _measure(points, first, end):
                if disturbance:
                    series.on_disturbance(Disturbance(DISTURBANCES[disturbance]))
                series.add(record)


def _begins_again(step: int, clock_s: int, points: _Points) -> bool:
    is_far = step < points.step[-1] - SKEW or (step == 0 and points.step[-1] > 1)
    return is_far and clock_s < points.clock_s[-1]


def _skips_steps(points: _Points, first: int, end: int) -> bool:
    """Whether a bar jumps from 0 to the step of a checkpoint, in no time for so many steps: it begins there."""
    steps, clocks = points.step, points.clock_s
    if end - first <= 1 or steps[first] > 0:
        return False
    jump, rest = steps[first + 1] - steps[first], steps[end - 1] - steps[first + 1]
    jump_s, rest_s = clocks[first + 1] - clocks[first], clocks[end - 1] - clocks[first + 1]
    return rest > 0 and (jump_s + 1) * rest * _TIMES_FASTER < rest_s * jump


def _measure(points: _Points, first: int, end: int) -> Iterator[tuple[Record, int]]:
    """Yield a record for each interval of one bar, and what disturbed it; no times where the clock hardly moved."""
    steps, clocks = points.step, points.clock_s
    first += _skips_steps(points, first, end)
    begin = first
    if clocks[end - 1] - (0 if steps[first] == 1 else clocks[first]) < USABLE:
        numbers = dict.fromkeys((steps[first], steps[end - 1]))
        yield from ((Record(number), 0) for number in numbers if number > 0)
        return
    if steps[first] == 1:
        yield Record(1, clocks[first] * NS_PER_S, wall_resolution_ns=NS_PER_S), 0
    elif steps[first] > 1:
        yield Record(steps[first]), 0
    last = end - 1
    moved_s = sum(clocks[row] - clocks[row - 1] for row in range(first + 1, end) if not points.disturbed[row])
    least_s = max(min(PRECISE, moved_s // USABLE), 1)
    for row in range(first + 1, end):
        if row < last and min(clocks[row] - clocks[begin], clocks[last] - clocks[row]) < least_s:
            continue
        count = steps[row] - steps[begin]
        wall_ns = max(clocks[row] - clocks[begin], 0) * NS_PER_S // count
        disturbance = max(points.disturbed[begin + 1 : row + 1])
        yield Record(steps[row], wall_ns, wall_resolution_ns=NS_PER_S // count), disturbance
        begin = row
