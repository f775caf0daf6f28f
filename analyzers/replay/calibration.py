"""The host as fast as in the steps that nobody profiled.

A profiler costs the host some time for each operator and each call that it records, so that the steps of a window are
those of a slower host. Where the time of a step without the profiler is known, the same time is taken off between any
two calls until the replay gives that step. What the host does for long, such as waiting for data, stays so. Where the
host is not what these steps wait for, they do not tell how fast it is without the profiler, and a usual share is taken
off.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.replay.replay import JobTimes
from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Float64, Int64

#: Between two calls the host keeps at least this share of its time, and loses no more than so much.
_LEAST_KEPT = 0.4
_MOST_OVERHEAD_NS = 100.0 * NS_PER_US
#: What it loses where the steps do not tell: less than in any training where they do.
_USUAL_SHARE = 0.3
_MOST_ROUNDS = 16
#: A replay this near the step that nobody profiled is as good as any.
_NEAR = 0.001
#: A host that makes less of a difference is not what the steps wait for.
_BINDING = 0.02


class Calibrated(Struct, frozen=True):
    """Durations without what the profiler costs the host.

    Attributes:
        times: The durations.
        overhead_ns: What was taken off between two calls at most; 0 where nothing was.
        is_known: Whether the steps told how much: the host is what they wait for.
    """

    times: JobTimes
    overhead_ns: float
    is_known: bool


def calibrate(times: JobTimes, undisturbed_ns: float, step_of: Callable[[JobTimes], float]) -> Calibrated:
    """Durations that give the step that nobody profiled.

    Args:
        times: As measured, in a window.
        undisturbed_ns: The step without the profiler.
        step_of: The step that a replay gives.
    """
    profiled_ns, fastest_ns = step_of(times), step_of(_take_off(times, _MOST_OVERHEAD_NS))
    is_bound = min(profiled_ns, undisturbed_ns) - fastest_ns > _BINDING * profiled_ns
    usual = _take_share_off(times, _USUAL_SHARE)
    if not is_bound and step_of(usual) <= undisturbed_ns * (1 + _BINDING):
        overhead_ns = max((float(np.median(rank.gap_ns)) for rank in times.ranks if len(rank.gap_ns)), default=0.0)
        return Calibrated(usual, _USUAL_SHARE * overhead_ns, is_known=False)
    if profiled_ns <= undisturbed_ns * (1 + _NEAR):
        return Calibrated(times, 0.0, is_known=True)
    target_ns = max(undisturbed_ns, fastest_ns * (1 + _NEAR))
    least, most = 0.0, _MOST_OVERHEAD_NS
    for _ in range(_MOST_ROUNDS):
        middle = (least + most) / 2
        step_ns = step_of(_take_off(times, middle))
        least, most = (middle, most) if step_ns > target_ns else (least, middle)
        if abs(step_ns / target_ns - 1) <= _NEAR:
            break
    return Calibrated(_take_off(times, middle), middle, is_known=True)


def _take_off(times: JobTimes, overhead_ns: float) -> JobTimes:
    return _with_gaps(times, lambda gap_ns: np.maximum(gap_ns - overhead_ns, _LEAST_KEPT * gap_ns))


def _take_share_off(times: JobTimes, share: float) -> JobTimes:
    return _with_gaps(times, lambda gap_ns: gap_ns - np.minimum(share * gap_ns, _MOST_OVERHEAD_NS))


def _with_gaps(times: JobTimes, change: Callable[[Int64], Float64]) -> JobTimes:
    ranks = []
    for rank in times.ranks:
        gap_ns = np.where(rank.gap_ns > 0, np.rint(change(rank.gap_ns)), rank.gap_ns)
        ranks.append(replace(rank, gap_ns=gap_ns.astype(np.int64)))
    return times.with_ranks(ranks)
