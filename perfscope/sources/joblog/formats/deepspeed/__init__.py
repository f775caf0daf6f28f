"""DeepSpeed since 0.3: the lines that its engine prints under any framework."""

from __future__ import annotations

from perfscope.sources.joblog.formats.deepspeed import saves, setup, steps
from perfscope.sources.joblog.formats.deepspeed.state import STEPS, DeepSpeedState
from perfscope.sources.joblog.log_format import Format, Role, StepTimeSource
from perfscope.sources.joblog.step_times import timer_lines

FORMAT = Format(
    framework="deepspeed",
    state=DeepSpeedState,
    rules=(*setup.RULES, *saves.RULES, *timer_lines.DEEPSPEED_RULES, *steps.RULES),
    sources=(
        StepTimeSource(steps.PIPELINE),
        StepTimeSource(steps.THROUGHPUT, is_fallback=True),
        StepTimeSource(timer_lines.SOURCE, is_fallback=True),
        StepTimeSource(STEPS, is_fallback=True),
    ),
    close=steps.conclude,
    role=Role.ENGINE,
    bulk=steps.BULK,
)
