"""The measured bubble of a pipeline: means over complete steps, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low

from perfscope.analyzers.pipelines.decomposition import StepParts
from perfscope.schedules.catalog import Schedule
from perfscope.schedules.drawing import GanttChart
from perfscope.schedules.prediction import PassTimes, Setup


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One complete step of one pipeline.

    Attributes:
        label: The profiler's name of the step.
        schedule: The schedule it followed; CUSTOM or CUSTOM_ZERO_BUBBLE for a marked order that is not in the catalog;
            absent where it was not recognised.
        chunks: Virtual stages on a device; absent likewise.
        microbatches: Micro-batches in the step; forward passes of a stage where the schedule was not recognised.
        parts: The decomposition of the section.
        measured, ideal: Charts of the step and of its schedule with equal stages.
    """

    label: str
    schedule: str | None
    chunks: int | None
    microbatches: int
    parts: StepParts
    measured: GanttChart
    ideal: GanttChart | None

    @property
    def shape(self) -> tuple[str | None, int | None, int]:
        """What steps must have in common to be averaged."""
        return self.schedule, self.chunks, self.microbatches


@dataclass(frozen=True, slots=True)
class MeasuredBubble:
    """The bubble of a pipeline.

    Attributes:
        ranks: The ranks of each stage, one for each pipeline that ran side by side.
        steps: Complete steps of the same shape, of all pipelines.
        notes: What a reader must know.
    """

    ranks: tuple[tuple[int, ...], ...]
    steps: tuple[MeasuredStep, ...]
    notes: tuple[str, ...]

    @property
    def stages(self) -> int:
        """Stages of the pipeline, p."""
        return len(self.ranks)

    @property
    def section_ns(self) -> Fraction | None:
        """Mean section of the complete steps."""
        return _mean([step.parts.section_ns for step in self.steps])

    @property
    def fraction_of_total(self) -> Fraction | None:
        """Total idle time over p x T; over the stages that have a trace where some have none."""
        idle, total = 0, 0
        for step in self.steps:
            if step.parts.section_ns is None:
                return None
            for stage in step.parts.stages:
                if stage is not None and stage.idle is not None:
                    idle += stage.idle
                    total += step.parts.section_ns
        return Fraction(idle, total) if total else None

    @property
    def theory(self) -> Fraction | None:
        """The bubble of the schedule alone; absent where it was not recognised."""
        shares = [step.parts.theory for step in self.steps if step.parts.theory is not None]
        return sum(shares, Fraction(0)) / len(shares) if shares else None

    @property
    def typical_step(self) -> MeasuredStep:
        """The step with the median section."""
        median = median_low([step.parts.section_ns or 0 for step in self.steps])
        return next(step for step in self.steps if (step.parts.section_ns or 0) == median)

    @property
    def charts(self) -> tuple[GanttChart, ...]:
        """The measured schedule of a typical step, and the ideal one where the schedule was recognised."""
        step = self.typical_step
        return (step.measured,) if step.ideal is None else (step.measured, step.ideal)

    def mean_part(self, stage: int, part: str) -> Fraction | None:
        """Mean of one of the StageParts of a stage, in nanoseconds; absent where it is absent in any step."""
        stage_parts = [step.parts.stages[stage] for step in self.steps]
        return _mean([None if parts is None else getattr(parts, part) for parts in stage_parts])

    def forward_ns(self, stage: int) -> Fraction | None:
        """Mean device time of the forward pass of a micro-batch on a stage."""
        forward = self.mean_part(stage, "forward")
        return None if forward is None else forward / self.steps[0].microbatches

    def backward_ns(self, stage: int) -> Fraction | None:
        """Mean device time of the backward pass of a micro-batch on a stage, the weight gradient included."""
        forward, useful = self.mean_part(stage, "forward"), self.mean_part(stage, "useful")
        return None if forward is None or useful is None else (useful - forward) / self.steps[0].microbatches

    def weight_ns(self, stage: int) -> Fraction | None:
        """Mean device time of the separate weight-gradient pass of a micro-batch; 0 where there is none."""
        weight = self.mean_part(stage, "weight")
        return None if weight is None else weight / self.steps[0].microbatches

    def share(self, part: str) -> float | None:
        """One part of all stages over p x T."""
        section = self.section_ns
        total = sum_parts([self.mean_part(stage, part) for stage in range(self.stages)])
        return None if section is None or total is None else float(total / (self.stages * section))


def sum_parts(times: Sequence[Fraction | None]) -> Fraction | None:
    """The sum of times; absent where any of them is."""
    present = [time for time in times if time is not None]
    return sum(present, Fraction(0)) if len(present) == len(times) else None


def _mean(times: Sequence[int | None]) -> Fraction | None:
    present = [time for time in times if time is not None]
    return Fraction(sum(present), len(present)) if present and len(present) == len(times) else None


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
