"""Claims about the drawings of a schedule."""

from __future__ import annotations

from perfscope.schedules.catalog import Schedule, make_plan
from perfscope.schedules.drawing import GanttChart, draw_timeline, to_text
from perfscope.schedules.simulator import UniformTiming, simulate


def _chart(devices: int, microbatches: int) -> GanttChart:
    stages = (1,) * devices
    timing = UniformTiming(stages, (2,) * devices, (0,) * devices, (0,) * devices)
    return draw_timeline("a pipeline", simulate(make_plan(Schedule.ONE_F_ONE_B, devices, microbatches), timing))


def test_a_small_schedule_is_drawn_exactly() -> None:
    assert to_text(_chart(2, 3), 40).splitlines() == [
        "stage 0 |01..aa2bb.cc|",
        "stage 1 |.0aa1bb2cc..|",
        "0-9 forward of that micro-batch (last digit), a-j its backward, . idle",
    ]


def test_a_schedule_that_is_too_large_shows_what_most_of_each_column_went_to() -> None:
    drawn = to_text(_chart(4, 100), 40).splitlines()
    assert all(len(line) == len("stage 0 |") + 40 + 1 for line in drawn[:4])
    assert set(drawn[0][9:-1]) <= set("FB.")
