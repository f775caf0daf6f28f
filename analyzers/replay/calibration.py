"""The host as fast as in the steps that nobody profiled.

A profiler costs the host some time for each operator and each call that it records, so that the steps of a window are
those of a slower host. Where the time of a step without the profiler is known, the same time is taken off between any
two calls until the replay gives that step. What the host does for long, such as waiting for data, stays so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from perfscope.analyzers.replay.replay import JobTimes

#: Between two calls the host keeps at least this share of its time.
_LEAST_KEPT = 0.1
_MOST_ROUNDS = 20
#: A replay this near the step that nobody profiled is as good as any.
_NEAR = 0.001


def calibrate(times: JobTimes, undisturbed_ns: float, step_of: Callable[[JobTimes], float]) -> tuple[JobTimes, float]:
    """Durations that give the step that nobody profiled, and what was taken off between two calls.

    Args:
        times: As measured, in a window.
        undisturbed_ns: The step without the profiler.
        step_of: The step that a replay gives.

    Returns:
        ``times`` and 0 where the window's steps were not slower; where the host alone cannot explain the difference,
        what comes nearest.
    """
    if step_of(times) <= undisturbed_ns * (1 + _NEAR):
        return times, 0.0
    least, most = 0.0, float(max((rank.gap_ns.max(initial=0) for rank in times.ranks), default=0))
    nearest = times, 0.0
    for _ in range(_MOST_ROUNDS):
        middle = (least + most) / 2
        changed = _take_off(times, middle)
        step_ns = step_of(changed)
        if step_ns >= undisturbed_ns:
            nearest = changed, middle
        if abs(step_ns / undisturbed_ns - 1) <= _NEAR:
            return changed, middle
        least, most = (middle, most) if step_ns > undisturbed_ns else (least, middle)
    return nearest


def _take_off(times: JobTimes, overhead_ns: float) -> JobTimes:
    ranks = []
    for rank in times.ranks:
        gap_ns = np.maximum(rank.gap_ns - overhead_ns, _LEAST_KEPT * rank.gap_ns)
        ranks.append(replace(rank, gap_ns=np.where(rank.gap_ns > 0, np.rint(gap_ns), rank.gap_ns).astype(np.int64)))
    return times.with_ranks(ranks)
