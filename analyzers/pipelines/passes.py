"""Finds the passes of micro-batches in one step of one rank that nobody marked.

In the order of launch, device work falls into runs: forward or backward by who launched it, separated by transfers. A
backward run is a backward pass. A run that is not backward can be a forward pass, but also the optimizer, gradient
accumulation after a backward pass, or zero_grad before the first forward pass. What a forward pass looks like is known
from before the first backward pass, where there is nothing else behind the first transfer: a run that holds at least
half of that device time, kernel by kernel, holds a forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from perfscope.analyzers.pipelines.launches import Launched
from perfscope.schedules.orders import Kind
from perfscope.tables.columns import Int64

_FORWARD, _BACKWARD, _TRANSFER = range(3)
#: So many kernels in a row must agree before a run is cut where the known forward pass begins.
_AGREEING = 3


@dataclass(frozen=True, slots=True, eq=False)
class FoundPass:
    """One pass: its kind and the rows of its events in launch order."""

    kind: Kind
    rows: Int64


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    what: int
    rows: Int64


class _Pattern:
    """What the forward pass of a stage looks like: its kernels in order, and their time by name."""

    def __init__(self, events: Launched, rows: Int64) -> None:
        rows = rows[~events.is_communication[rows]]
        self.names = events.name[rows].tolist()
        time: Counter[int] = Counter()
        for name, spent in zip(self.names, (events.end_ns[rows] - events.start_ns[rows]).tolist(), strict=True):
            time[name] += spent
        self.counts = Counter(self.names)
        self.mean_ns = {name: time[name] / count for name, count in self.counts.items()}
        self.total_ns = sum(time.values())

    def is_in(self, names: Sequence[int]) -> bool:
        """Whether kernels with half of the pattern's time are there."""
        common = Counter(names) & self.counts
        return 2 * sum(count * self.mean_ns[name] for name, count in common.items()) >= self.total_ns > 0

    def begins_at(self, names: Sequence[int]) -> int:
        """The place from where most kernels follow the pattern; 0 where too few do."""
        agreeing = [(self._agreeing(names, place), -place) for place in range(len(names))]
        longest, place = max(agreeing, default=(0, 0))
        return -place if longest >= min(_AGREEING, len(self.names)) else 0

    def ends_before(self, names: Sequence[int], begin: int) -> int:
        """The place behind the pattern where it is there kernel for kernel; else the end."""
        end = begin + len(self.names)
        return end if list(names[begin:end]) == self.names else len(names)

    def _agreeing(self, names: Sequence[int], place: int) -> int:
        length = 0
        for name, expected in zip(names[place:], self.names, strict=False):
            if name != expected:
                break
            length += 1
        return length


def find_passes(events: Launched, rows: Int64) -> list[FoundPass]:
    """The forward and backward passes of one step, in the order of their launch; empty where there is no backward.

    What the autograd engine launches behind a transfer and only communicates is gradient synchronisation, and no pass.
    """
    runs = [run for run in _runs(events, rows) if run.what != _BACKWARD or not events.is_communication[run.rows].all()]
    first = next((place for place, run in enumerate(runs) if run.what == _BACKWARD), None)
    if first is None:
        return []
    pattern = _pattern(events, runs[:first])
    found: list[FoundPass] = []
    last = max(place for place, run in enumerate(runs) if run.what == _BACKWARD)
    carried = np.zeros(0, np.int64)
    for place, run in enumerate(runs):
        follows_backward = place > 0 and runs[place - 1].what == _BACKWARD
        if run.what == _BACKWARD:
            found.append(FoundPass(Kind.BACKWARD, np.concatenate([carried, run.rows])))
            carried = np.zeros(0, np.int64)
        elif run.what == _FORWARD:
            before, forward, after = _cut(events, run.rows, pattern, starts_clean=place > 0 and not follows_backward)
            ends_the_step = place == len(runs) - 1 and place > last
            if follows_backward and not ends_the_step:
                found[-1] = FoundPass(Kind.BACKWARD, np.concatenate([found[-1].rows, before]))
            if len(forward):
                found.append(FoundPass(Kind.FORWARD, forward))
            precedes_backward = place + 1 < len(runs) and runs[place + 1].what == _BACKWARD
            carried = after if len(forward) else (before if not follows_backward else carried)
            carried = carried if precedes_backward else np.zeros(0, np.int64)
    return found


def _runs(events: Launched, rows: Int64) -> list[_Run]:
    what = np.where(events.is_transfer[rows], _TRANSFER, np.where(events.is_backward[rows], _BACKWARD, _FORWARD))
    return [
        _Run(kind, rows[[place for place, _ in group]])
        for kind, group in (
            (kind, list(group)) for kind, group in groupby(enumerate(what.tolist()), lambda one: one[1])
        )
    ]


def _pattern(events: Launched, runs: Sequence[_Run]) -> _Pattern | None:
    """The longest of the forward runs before any backward pass, of those behind a transfer where there are any."""
    patterns = [_Pattern(events, run.rows) for run in runs if run.what == _FORWARD]
    behind = patterns[1:] if runs and runs[0].what == _FORWARD and len(patterns) > 1 else patterns
    return max(behind, key=lambda pattern: pattern.total_ns, default=None)


def _cut(events: Launched, rows: Int64, pattern: _Pattern | None, *, starts_clean: bool) -> tuple[Int64, Int64, Int64]:
    """What lies before the forward pass, the forward pass, and what lies behind it; all before where there is none.

    A run behind a transfer starts clean: nothing but the pass's own preparation can be in front of it.
    """
    none = np.zeros(0, np.int64)
    computing = rows[~events.is_communication[rows]]
    names = events.name[computing].tolist()
    if pattern is None or not pattern.is_in(names):
        return rows, none, none
    begin = 0 if starts_clean else pattern.begins_at(names)
    end = pattern.ends_before(names, begin)
    first = int(np.searchsorted(rows, computing[begin])) if begin else 0
    stop = int(np.searchsorted(rows, computing[end])) if end < len(computing) else len(rows)
    return rows[:first], rows[first:stop], rows[stop:]
