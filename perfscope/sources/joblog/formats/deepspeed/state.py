"""The state of the DeepSpeed format between the lines of one log."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfscope.sources.joblog.log_format import FormatState
from perfscope.sources.joblog.step_times.step_clock import StepClock

#: The source of step times that come from the dates of the step lines.
STEPS = "dates of DeepSpeed's step lines"


@dataclass(slots=True)
class DeepSpeedState(FormatState):
    """What is collected over several of DeepSpeed's lines.

    Attributes:
        last_mean: Step and samples a second of the last line that prints a running mean.
        step_clock: The dates of the step lines.
        largest_rank, largest_stage: Of the ranks that print their pipeline stage.
    """

    last_mean: tuple[int, float] | None = None
    step_clock: StepClock = field(default_factory=lambda: StepClock(STEPS))
    largest_rank: int = 0
    largest_stage: int = 0
