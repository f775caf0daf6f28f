"""The effect of more micro-batches, virtual stages or another schedule on a measured pipeline.

The simulator uses each stage's mean forward and backward times, without transfers and host gaps, which are unknown for
a different schedule. The measured schedule is simulated in the same way, as the row to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from perfscope.analyzers.pipelines.bubble import MeasuredBubble
from perfscope.schedules.catalog import Schedule
from perfscope.schedules.prediction import Alternative, PassTimes, Setup, list_alternatives

ASSUMPTION = (
    "Simulated with each stage's measured forward and backward times, without transfers and host gaps: compare the "
    "rows with the first row, not with the measured bubble."
)


def list_measured_alternatives(bubble: MeasuredBubble) -> tuple[Alternative, ...]:
    """The alternatives of a measured pipeline; empty where its schedule has no name or a stage is missing."""
    setup = make_setup(bubble)
    return () if setup is None else list_alternatives(setup)


def make_setup(bubble: MeasuredBubble) -> Setup | None:
    """The schedule and the times of a measured pipeline; None where it has no name or a stage is missing."""
    step = bubble.steps[0]
    if step.schedule not in set(Schedule) or step.chunks is None:
        return None
    stages = range(bubble.stages)
    forward = _round_times([bubble.forward_ns(stage) for stage in stages])
    backward = _round_times([bubble.backward_ns(stage) for stage in stages])
    separate_weight = _round_times([bubble.weight_ns(stage) for stage in stages])
    if forward is None or backward is None or separate_weight is None:
        return None
    weight = tuple(
        weight_time or backward_time // 2 for weight_time, backward_time in zip(separate_weight, backward, strict=True)
    )
    schedule = Schedule(step.schedule)
    chunks = step.chunks if schedule is Schedule.INTERLEAVED else 1
    times = PassTimes(forward, backward, weight, (0,) * bubble.stages)
    return Setup(schedule, bubble.stages, step.microbatches, chunks, times)


def _round_times(times: Sequence[Fraction | None]) -> tuple[int, ...] | None:
    rounded = [round(time) for time in times if time is not None]
    return tuple(rounded) if len(rounded) == len(times) else None
