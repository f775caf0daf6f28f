"""Infers the passes of micro-batches in one step of one rank where no marks name them.

In the order of launch, device work falls into runs: forward or backward by the thread that launched it, separated by
transfers. A backward run is a backward pass. A forward run can be a forward pass, but also the optimizer, gradient
accumulation after a backward pass, or zero_grad before the first forward pass. Runs before the first backward pass show
what a forward pass looks like, because only forward passes follow a transfer there. A later run contains a forward pass
if it contains, kernel by kernel, at least half of that device time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from perfscope.analyzers.pipelines.launches import LaunchedEvents
from perfscope.schedules.operations import PassKind
from perfscope.tables.columns import Int64

_FORWARD, _BACKWARD, _TRANSFER = range(3)
_NO_ROWS = np.zeros(0, np.int64)
#: Consecutive kernels that must match before a run is cut where the forward pass begins.
_LEAST_MATCHING = 3


@dataclass(frozen=True, slots=True, eq=False)
class PassEvents:
    """One pass: its kind and the rows of its events in launch order."""

    kind: PassKind
    rows: Int64


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Consecutive events of one role."""

    role: int
    rows: Int64


class _ForwardPattern:
    """What the forward pass of a stage looks like: its kernels in order, and their time by name."""

    def __init__(self, events: LaunchedEvents, rows: Int64) -> None:
        rows = rows[~events.is_communication[rows]]
        self.names = events.name[rows].tolist()
        time: Counter[int] = Counter()
        for name, kernel_ns in zip(self.names, (events.end_ns[rows] - events.start_ns[rows]).tolist(), strict=True):
            time[name] += kernel_ns
        self.counts = Counter(self.names)
        self.mean_ns = {name: time[name] / count for name, count in self.counts.items()}
        self.total_ns = sum(time.values())

    def is_in(self, names: Sequence[int]) -> bool:
        """Whether kernels with half of the pattern's time are present."""
        common = Counter(names) & self.counts
        return 2 * sum(count * self.mean_ns[name] for name, count in common.items()) >= self.total_ns > 0

    def find_begin(self, names: Sequence[int]) -> int:
        """The position from which most kernels match the pattern; 0 where too few do."""
        matches = [(self._count_matching(names, position), -position) for position in range(len(names))]
        longest, negative_position = max(matches, default=(0, 0))
        return -negative_position if longest >= min(_LEAST_MATCHING, len(self.names)) else 0

    def find_end(self, names: Sequence[int], begin: int) -> int:
        """The position behind the pattern where it matches kernel for kernel; else the end of the run."""
        end = begin + len(self.names)
        return end if list(names[begin:end]) == self.names else len(names)

    def _count_matching(self, names: Sequence[int], position: int) -> int:
        length = 0
        for name, expected in zip(names[position:], self.names, strict=False):
            if name != expected:
                break
            length += 1
        return length


def infer_passes(events: LaunchedEvents, rows: Int64) -> list[PassEvents]:
    """The forward and backward passes of one step, in the order of their launch; empty where there is no backward.

    What the autograd engine launches behind a transfer and only communicates is gradient synchronisation, and no pass.
    """
    runs = [run for run in _split_runs(events, rows) if not _is_gradient_synchronisation(events, run)]
    backward_runs = [index for index, run in enumerate(runs) if run.role == _BACKWARD]
    if not backward_runs:
        return []
    pattern = _find_pattern(events, runs[: backward_runs[0]])
    passes: list[PassEvents] = []
    carried = _NO_ROWS  # work in front of a backward pass that is part of it
    for index, run in enumerate(runs):
        follows_backward = index > 0 and runs[index - 1].role == _BACKWARD
        if run.role == _BACKWARD:
            passes.append(PassEvents(PassKind.BACKWARD, np.concatenate([carried, run.rows])))
            carried = _NO_ROWS
        elif run.role == _FORWARD:
            before, forward, after = _cut(events, run.rows, pattern, starts_clean=index > 0 and not follows_backward)
            ends_the_step = index == len(runs) - 1 and index > backward_runs[-1]
            if follows_backward and not ends_the_step:
                passes[-1] = PassEvents(PassKind.BACKWARD, np.concatenate([passes[-1].rows, before]))
            if len(forward):
                passes.append(PassEvents(PassKind.FORWARD, forward))
            precedes_backward = index + 1 < len(runs) and runs[index + 1].role == _BACKWARD
            carried = after if len(forward) else (before if not follows_backward else carried)
            carried = carried if precedes_backward else _NO_ROWS
    return passes


def _split_runs(events: LaunchedEvents, rows: Int64) -> list[_Run]:
    role = np.where(events.is_transfer[rows], _TRANSFER, np.where(events.is_backward[rows], _BACKWARD, _FORWARD))
    runs = []
    start = 0
    for run_role, members in groupby(role.tolist()):
        end = start + sum(1 for _ in members)
        runs.append(_Run(run_role, rows[start:end]))
        start = end
    return runs


def _is_gradient_synchronisation(events: LaunchedEvents, run: _Run) -> bool:
    return run.role == _BACKWARD and bool(events.is_communication[run.rows].all())


def _find_pattern(events: LaunchedEvents, runs: Sequence[_Run]) -> _ForwardPattern | None:
    """The longest of the forward runs before any backward pass, of those behind a transfer where there are any."""
    patterns = [_ForwardPattern(events, run.rows) for run in runs if run.role == _FORWARD]
    behind_transfer = patterns[1:] if runs and runs[0].role == _FORWARD and len(patterns) > 1 else patterns
    return max(behind_transfer, key=lambda pattern: pattern.total_ns, default=None)


def _cut(
    events: LaunchedEvents, rows: Int64, pattern: _ForwardPattern | None, *, starts_clean: bool
) -> tuple[Int64, Int64, Int64]:
    """Split a run into what precedes its forward pass, the pass, and what follows; all precedes where there is none.

    A run behind a transfer starts clean: only the pass's own preparation can precede it.
    """
    computing = rows[~events.is_communication[rows]]
    names = events.name[computing].tolist()
    if pattern is None or not pattern.is_in(names):
        return rows, _NO_ROWS, _NO_ROWS
    begin = 0 if starts_clean else pattern.find_begin(names)
    end = pattern.find_end(names, begin)
    first = int(np.searchsorted(rows, computing[begin])) if begin else 0
    stop = int(np.searchsorted(rows, computing[end])) if end < len(computing) else len(rows)
    return rows[:first], rows[first:stop], rows[stop:]
