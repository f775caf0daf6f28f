"""Pipelines."""

from typing import NotRequired, TypedDict

from perfscope.api.schema.windowed import Windowed


class StageStepData(TypedDict):
    """One stage in one step: ``useful + schedule + imbalance + transfer + host`` is the section exactly.

    Attributes:
        stage: Its number.
        useful_us: Time of its passes; None without its trace.
        schedule_us: Idle time of the schedule alone, for equal stages.
        imbalance_us: Idle time because stages and micro-batches are unequal; negative on a slow stage.
        transfer_us: Idle time for transfers themselves.
        host_us: The rest, in which the host did not keep the device busy.
        idle_us: The sum of these four.
    """

    stage: int
    useful_us: float | None
    schedule_us: float | None
    imbalance_us: float | None
    transfer_us: float | None
    host_us: float | None
    idle_us: float | None


class StageData(StageStepData):
    """One stage in a mean step.

    Attributes:
        rank: Its rank.
        forward_us: Time of its forward passes.
        backward_us: Time of its backward passes.
        ranks: Its ranks, where several pipelines ran side by side.
    """

    rank: int | None
    forward_us: float | None
    backward_us: float | None
    ranks: NotRequired[list[int]]


class BubbleStepData(TypedDict):
    """One measured step.

    Attributes:
        step: The profiler's name of the step.
        section_us: T: from the first forward pass of stage 0 to the end of the last backward pass.
        fraction_of_total: Idle time over p x T.
        theory_fraction_of_total: The same for equal stages, without transfers and host gaps.
        stages: Each stage.
    """

    step: str
    section_us: float | None
    fraction_of_total: float | None
    theory_fraction_of_total: float | None
    stages: list[StageStepData]


class BubbleData(Windowed):
    """``results.pipeline_bubble``: the bubble of a pipeline, from traces.

    Attributes:
        fraction_of_total: Idle time over p x T.
        theory_fraction_of_total: The same for equal stages, without transfers and host gaps.
        schedule_fraction_of_total: The part of the schedule.
        imbalance_fraction_of_total: The part of unequal stages.
        transfer_fraction_of_total: The part of transfers, with what they took longer than their shorter kernels say.
        host_fraction_of_total: The part of gaps in which a device ran nothing.
        stages: Each stage in a mean step.
        section_us: T, the mean over steps.
        microbatches: Micro-batches in a step.
        schedule: Its name; None where it was not recognised.
        virtual_stages: Virtual stages of a rank.
        p: Stages.
        steps: Each step.
        notes: What a reader must know.
    """

    fraction_of_total: float | None
    theory_fraction_of_total: float | None
    schedule_fraction_of_total: float | None
    imbalance_fraction_of_total: float | None
    transfer_fraction_of_total: float | None
    host_fraction_of_total: float | None
    stages: list[StageData]
    section_us: float | None
    microbatches: int
    schedule: str | None
    virtual_stages: int | None
    p: int
    steps: list[BubbleStepData]
    notes: list[str]


class TimedStageData(TypedDict):
    """One stage in a mean step, by the passes that hooks timed.

    Attributes:
        stage: Its number.
        rank: Its rank.
        useful_us: Time of its passes.
        idle_us: The rest of the section.
        schedule_us: Idle time of the schedule alone.
        imbalance_us: Idle time because stages are unequal.
        transfer_and_host_us: Transfers and host gaps between passes.
        ranks: Its ranks, where several pipelines ran side by side.
    """

    stage: int
    rank: int
    useful_us: float
    idle_us: float
    schedule_us: float | None
    imbalance_us: float | None
    transfer_and_host_us: float | None
    ranks: NotRequired[list[int]]


class TimedStepData(TypedDict):
    """One step.

    Attributes:
        step: Its number.
        fraction_of_total: Its bubble.
    """

    step: int
    fraction_of_total: float


class PipelineStepsData(TypedDict):
    """``results.pipeline_steps``: the bubble of every training step, without a trace.

    Attributes:
        fraction_of_total: Idle time over p x T.
        theory_fraction_of_total: The same for equal stages.
        schedule_fraction_of_total: The part of the schedule.
        imbalance_fraction_of_total: The part of unequal stages.
        transfer_and_host_fraction_of_total: The part of transfers and host gaps.
        stages: Each stage.
        section_us: T, the mean of the undisturbed steps.
        profiled_section_us: T of the steps inside windows; None without a window.
        microbatches: Micro-batches in a step.
        schedule: Its name; None where it was not recognised.
        p: Stages.
        steps: Each undisturbed step.
        notes: What a reader must know.
    """

    fraction_of_total: float
    theory_fraction_of_total: float | None
    schedule_fraction_of_total: float | None
    imbalance_fraction_of_total: float | None
    transfer_and_host_fraction_of_total: float | None
    stages: list[TimedStageData]
    section_us: float
    profiled_section_us: float | None
    microbatches: int
    schedule: str | None
    p: int
    steps: list[TimedStepData]
    notes: list[str]
