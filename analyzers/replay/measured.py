"""A profiled job, ready to be replayed with changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.replay.contention import Contention, measure_contention
from perfscope.analyzers.replay.job_graph import JobGraph, join_ranks
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import JobTimes, Replay, Replayed, measured_times
from perfscope.analyzers.replay.steps import StepSpan, measured_ends, span_of_steps
from perfscope.errors import MissingInput


@dataclass(frozen=True, slots=True)
class Measured:
    """What a scenario starts from.

    Attributes:
        job: The graph.
        times: Its durations as measured.
        contention: How much communication slows what runs beside it.
        replay: Runs the graph again.
        base: The replay with the measured durations.
        steps: The marked steps as measured.
        replayed: The marked steps of ``base``.
    """

    job: JobGraph
    times: JobTimes
    contention: tuple[Contention, ...]
    replay: Replay
    base: Replayed
    steps: StepSpan
    replayed: StepSpan

    @property
    def error(self) -> float:
        """How far the replay of the measured durations is from the measured step, as a share of it."""
        return self.replayed.step_ns / self.steps.step_ns - 1

    @property
    def uncertain_ns(self) -> float:
        """How far the replayed step may be off: the error of the replay, and the standard error of a measured step."""
        return math.hypot(self.replayed.step_ns - self.steps.step_ns, self.steps.standard_error_ns)


def prepare(graphs: Sequence[RankGraph]) -> Measured:
    """Join the graphs of a job's ranks, and replay it as it was measured.

    Raises:
        MissingInput: There is no graph, no step is marked, or the ranks marked different ones.
    """
    if not graphs:
        raise MissingInput("no trace joins events of the device with their launches")
    job = join_ranks(graphs)
    replay, times = Replay(job), measured_times(job)
    steps = span_of_steps(job, measured_ends(job))
    base = replay.run(times)
    replayed = span_of_steps(job, base.end_ns)
    return Measured(job, times, measure_contention(job.ranks), replay, base, steps, replayed)
