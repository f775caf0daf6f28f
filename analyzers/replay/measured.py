"""A profiled job, ready to be replayed with changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from perfscope.analyzers.replay.calibration import calibrate
from perfscope.analyzers.replay.contention import Contention, measure_contention
from perfscope.analyzers.replay.job_graph import JobGraph, join_ranks
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import JobTimes, Replay, Replayed, measured_times
from perfscope.analyzers.replay.steps import StepSpan, measured_ends, span_of_steps
from perfscope.errors import MissingInput


class Measured(Struct, frozen=True):
    """What a scenario starts from.

    Attributes:
        job: The graph.
        times: Its durations as measured.
        contention: How much communication slows what runs beside it.
        replay: Runs the graph again.
        base: The replay with these durations.
        steps: The marked steps as measured.
        exact: The marked steps of a replay with exactly the measured durations.
        replayed: The marked steps of ``base``: of the host without the profiler, where such steps are known.
        overhead_ns: What the profiler was found to cost the host between two calls.
        undisturbed_ns: The time of a step that nobody profiled; absent where not known.
        is_overhead_known: Whether these steps told that cost; a usual one is taken otherwise.
    """

    job: JobGraph
    times: JobTimes
    contention: tuple[Contention, ...]
    replay: Replay
    base: Replayed
    steps: StepSpan
    exact: StepSpan
    replayed: StepSpan
    overhead_ns: float = 0.0
    undisturbed_ns: float | None = None
    is_overhead_known: bool = True

    @property
    def error(self) -> float:
        """How far the replay of the measured durations is from the measured step, as a share of it."""
        return self.exact.step_ns / self.steps.step_ns - 1

    @property
    def usual_ns(self) -> float:
        """A step as it was measured: one that nobody profiled where its time is known."""
        return self.steps.step_ns if self.undisturbed_ns is None else self.undisturbed_ns

    @property
    def relief_ns(self) -> float:
        """What a profiled step took longer than one that nobody profiled; 0 where none is known, or it took less."""
        return max(self.steps.step_ns - self.usual_ns, 0.0)

    @property
    def uncertain_ns(self) -> float:
        """How far the replayed step may be off: the error of the replay, and the standard error of a measured step."""
        return math.hypot(self.replayed.step_ns - self.usual_ns, self.steps.standard_error_ns)


def prepare(graphs: Sequence[RankGraph], undisturbed_ns: float | None = None) -> Measured:
    """Join the graphs of a job's ranks, and replay it as it was measured, or as fast as it is without the profiler.

    Args:
        graphs: The graphs of all ranks.
        undisturbed_ns: The time of a step that nobody profiled, where it is known.

    Raises:
        MissingInput: There is no graph, no step is marked, or the ranks marked different ones.
    """
    if not graphs:
        raise MissingInput("no trace joins events of the device with their launches")
    job = join_ranks(graphs)
    replay, times = Replay(job), measured_times(job)
    steps = span_of_steps(job, measured_ends(job))
    exact = span_of_steps(job, replay.run(times).end_ns)
    overhead_ns, is_known = 0.0, True
    if undisturbed_ns is not None:
        calibrated = calibrate(
            times, undisturbed_ns, lambda changed: span_of_steps(job, replay.run(changed).end_ns).step_ns
        )
        times, overhead_ns, is_known = calibrated.times, calibrated.overhead_ns, calibrated.is_known
    base = replay.run(times)
    return Measured(
        job=job,
        times=times,
        contention=measure_contention(job.ranks),
        replay=replay,
        base=base,
        steps=steps,
        exact=exact,
        replayed=span_of_steps(job, base.end_ns),
        overhead_ns=overhead_ns,
        is_overhead_known=is_known,
        undisturbed_ns=undisturbed_ns,
    )
