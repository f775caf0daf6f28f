"""Who is late is the same where the host's counters were read in few steps, as the hooks do on GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.stragglers.records import analyze
from perfscope.hooks.step import StepAccumulator
from perfscope.hooks.timers.host_counters import EACH_READ_MASK
from perfscope.sources.runs.step_columns import StepColumns, to_host_times
from perfscope.tables.columns import masked, present
from perfscope.tables.steps import Steps
from tests.analyzers.stragglers.test_lateness import make_run, make_steps

WORK = ("cpu_ns", "delay_ns", "system_ns", "faults", "preempted")
#: The ends of the first steps are special, and read each time.
FIRST_STEPS = 4


def thin_out(table: Steps) -> Steps:
    """The steps as they were if the hooks had read no counters where they need not."""
    assert table.host is not None
    quiet = StepAccumulator()
    is_slow = (table.window != "") | present(table.save_ns) | present(table.no_grad_ns) | (table.step <= FIRST_STEPS)
    knows_launcher = present(table.host.launcher_delay_ns).any()
    columns = [np.ma.filled(getattr(table.host, name), 0).tolist() for name in (*WORK, "launcher_delay_ns")]
    is_counted, walls = present(table.host.cpu_ns).tolist(), np.ma.filled(table.wall_ns, 0).tolist()
    kept: list[list[int] | None] = []
    sums = [0] * (len(WORK) + 2)
    for row, step in enumerate(table.step.tolist()):
        is_read = is_slow[row] or walls[row] > quiet.long_ns or not step & EACH_READ_MASK
        if not is_slow[row]:
            quiet.learn_length(walls[row])
        work = [column[row] for column in columns]
        sums = [total + value for total, value in zip(sums, [*work, 1], strict=True)]
        kept.append(sums if is_read and is_counted[row] else None)
        if is_read:
            sums = [0] * len(sums)
    numbers: dict[str, Any] = {"step": masked(table.step.tolist())}
    numbers["end_ns"] = masked(table.end_ns.tolist())
    for index in range(len(WORK) + 2):
        numbers[f"host.{index}"] = masked([None if each is None else each[index] for each in kept])
    launcher_ns, steps = (numbers.pop(f"host.{len(WORK) + index}") for index in range(2))
    numbers[f"host.{len(WORK)}"] = steps
    if knows_launcher:
        numbers["launcher_delay_ns"] = launcher_ns
    host = to_host_times(StepColumns(len(table), numbers, {}, {}))
    assert host is not None
    return dataclasses.replace(table, host=host)


@pytest.mark.parametrize(
    "parts",
    [
        {0: {"sleep": 30}},
        {step: {"sleep": 30} for step in (9, 21, 22, 33)},
        {step: {"delay": 30} for step in (9, 21, 32, 33)},
        {step: {"system": 30, "faults": 5000} for step in (9, 22, 33)},
        {step: {"data": 30} for step in (5, 21, 33)},
        {},
    ],
)
def test_late_steps_keep_their_cause(parts: dict[int, dict[str, Any]]) -> None:
    tables = make_steps([{}, parts], waits=False)
    thinned = [thin_out(table) for table in tables]
    answers = [
        [(late.rank, late.cause, () if late.persistent else late.examples) for late in found.late]
        for found in (analyze(make_run(tables)), analyze(make_run(thinned)))
    ]
    assert answers[0] == answers[1]
    assert bool(answers[0]) == bool(parts)
