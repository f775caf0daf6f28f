"""What a measured pipeline would gain from more micro-batches, chunks or another schedule.

The simulator is given each stage's own mean forward and backward times, without transfers and host gaps, which nobody
knows for another schedule; so the measured schedule is simulated with them too, and is the row to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from perfscope.analyzers.pipelines.result import MeasuredBubble
from perfscope.schedules.orders import Schedule
from perfscope.schedules.prediction import Alternative, Setup, Times, alternatives

ASSUMPTION = (
    "Simulated with each stage's measured forward and backward times, without transfers and host gaps: the first row "
    "is what the others compare with, not what was measured."
)


def outlook(bubble: MeasuredBubble) -> tuple[Alternative, ...]:
    """The alternatives of a measured pipeline; empty where its schedule has no name or a stage is missing."""
    setup = _setup(bubble)
    return () if setup is None else alternatives(setup)


def _setup(bubble: MeasuredBubble) -> Setup | None:
    step = bubble.steps[0]
    if step.schedule not in set(Schedule) or step.chunks is None:
        return None
    stages = range(bubble.stages)
    forward = _whole([bubble.forward_ns(stage) for stage in stages])
    backward = _whole([bubble.backward_ns(stage) for stage in stages])
    weight = _whole([bubble.weight_ns(stage) for stage in stages])
    if forward is None or backward is None or weight is None:
        return None
    apart = tuple(own or whole // 2 for own, whole in zip(weight, backward, strict=True))
    schedule = Schedule(step.schedule)
    chunks = step.chunks if schedule is Schedule.INTERLEAVED else 1
    times = Times(forward, backward, apart, (0,) * bubble.stages)
    return Setup(schedule, bubble.stages, step.microbatches, chunks, times)


def _whole(times: Sequence[Fraction | None]) -> tuple[int, ...] | None:
    known = [round(time) for time in times if time is not None]
    return tuple(known) if len(known) == len(times) else None
