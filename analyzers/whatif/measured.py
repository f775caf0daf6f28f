"""A profiled job, ready to be replayed with changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.whatif.job_graph import JobGraph, join_ranks
from perfscope.analyzers.whatif.rank_graph import RankGraph
from perfscope.analyzers.whatif.replay import (
    JobReplay,
    JobTimes,
    Replayed,
    StepSpan,
    measured_ends,
    measured_times,
    span_of_steps,
)
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput
from perfscope.tables.columns import Float64, Int64

#: A replay that is farther from the measured step misses something that the job waited for.
LARGEST_ERROR = 0.02
#: Between two calls the host keeps at least this share of its time, and loses no more than so much.
_LEAST_KEPT = 0.4
_MOST_OVERHEAD_NS = 100.0 * NS_PER_US
_MOST_ROUNDS = 16
#: A replay this near the step that nobody profiled is as good as any.
_NEAR = 0.001


def calibrate(times: JobTimes, undisturbed_ns: float, step_of: Callable[[JobTimes], float]) -> tuple[JobTimes, float]:
    """Durations that give the step that nobody profiled, and what was taken off between two calls at most, in ns."""

    def take_off(overhead_ns: float) -> JobTimes:
        return _with_gaps(times, lambda gap_ns: np.maximum(gap_ns - overhead_ns, _LEAST_KEPT * gap_ns))

    if step_of(times) <= undisturbed_ns * (1 + _NEAR):
        return times, 0.0
    fastest_ns = step_of(take_off(_MOST_OVERHEAD_NS))
    target_ns = max(undisturbed_ns, fastest_ns * (1 + _NEAR))
    least, most = 0.0, _MOST_OVERHEAD_NS
    for _ in range(_MOST_ROUNDS):
        middle = (least + most) / 2
        step_ns = step_of(take_off(middle))
        least, most = (middle, most) if step_ns > target_ns else (least, middle)
        if abs(step_ns / target_ns - 1) <= _NEAR:
            break
    return take_off(middle), middle


def _with_gaps(times: JobTimes, change: Callable[[Int64], Float64]) -> JobTimes:
    gaps = (np.where(rank.gap_ns > 0, np.rint(change(rank.gap_ns)), rank.gap_ns) for rank in times.ranks)
    return times.with_ranks(
        [replace(rank, gap_ns=gap_ns.astype(np.int64)) for rank, gap_ns in zip(times.ranks, gaps, strict=True)]
    )


class MeasuredJob(Struct, frozen=True):
    """What a scenario starts from.

    ``times`` are as measured, or of a host without the profiler where such steps are known. ``base`` and ``replayed``
    are the replay with these, ``exact`` is the replay with the measured durations. ``overhead_ns`` is what the profiler
    was found to cost the host between two calls.
    """

    job: JobGraph
    times: JobTimes
    replay: JobReplay
    base: Replayed
    steps: StepSpan
    exact: StepSpan
    replayed: StepSpan
    overhead_ns: float
    undisturbed_ns: float | None

    @property
    def error(self) -> float:
        """How far the replay of the measured durations is from the measured step, as a share of it."""
        return self.exact.step_ns / self.steps.step_ns - 1

    @property
    def uncertain_ns(self) -> float:
        """How far the replayed step may be off: the error of the replay, and the standard error of a measured step."""
        usual_ns = self.steps.step_ns if self.undisturbed_ns is None else self.undisturbed_ns
        return math.hypot(self.replayed.step_ns - usual_ns, self.steps.standard_error_ns)

    def span(self, times: JobTimes) -> StepSpan:
        """The marked steps of a replay with other durations."""
        return span_of_steps(self.job, self.replay.run(times).end_ns)


def prepare(graphs: Sequence[RankGraph], undisturbed_ns: float | None = None) -> MeasuredJob:
    """Join the graphs of a job's ranks, and replay it as measured, or as fast as a step that nobody profiled.

    Raises:
        MissingInput: There is no graph, no step is marked, or the ranks marked different ones.
    """
    if not graphs:
        raise MissingInput("no trace joins events of the device with their launches")
    job = join_ranks(graphs)
    replay, times = JobReplay(job), measured_times(job)
    steps = span_of_steps(job, measured_ends(job))
    exact = span_of_steps(job, replay.run(times).end_ns)
    overhead_ns = 0.0
    if undisturbed_ns is not None:
        times, overhead_ns = calibrate(
            times, undisturbed_ns, lambda changed: span_of_steps(job, replay.run(changed).end_ns).step_ns
        )
    base = replay.run(times)
    return MeasuredJob(
        job=job,
        times=times,
        replay=replay,
        base=base,
        steps=steps,
        exact=exact,
        replayed=span_of_steps(job, base.end_ns),
        overhead_ns=overhead_ns,
        undisturbed_ns=undisturbed_ns,
    )
