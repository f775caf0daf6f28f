"""Ranks are compared over the same steps: what else ran in a window is told apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import breakdown
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import Event, call, distributed, kernel, step, write

US = 1000
STEP_US = 1000


def in_steps(first: int, numbers: Sequence[int], kernels: int = 4) -> list[Event]:
    """Steps of 1000 us whose kernels run for 100 us each, from a moment on."""
    events: list[Event] = []
    for index, number in enumerate(numbers):
        start = first + index * STEP_US
        events.append(step(number, start * US, (start + STEP_US) * US))
        for position in range(kernels):
            launch = 100 * number + position
            begin = start + 100 + 200 * position
            events.append(
                call("cudaLaunchKernel", (start + 10 + position) * US, (start + 11 + position) * US, launch=launch)
            )
            events.append(kernel("gemm", begin * US, (begin + 100) * US, launch=launch))
    return events


def leftover(until: int, steps: int) -> list[Event]:
    """Kernels of steps that were launched before the window, four a step."""
    begins = [until - 150 * (index + 1) for index in range(4 * steps)]
    return [kernel("gemm", begin * US, (begin + 100) * US, launch=9000 + index) for index, begin in enumerate(begins)]


def analyzed(tmp_path: Path, *ranks: list[Event]) -> breakdown.Breakdown:
    paths = [
        write(tmp_path / f"rank{rank}.json", events, **distributed(rank, len(ranks)))
        for rank, events in enumerate(ranks)
    ]
    return breakdown.analyze([breakdown.measure(read_trace(path)) for path in paths])


def test_a_rank_whose_window_holds_more_steps_is_compared_over_the_marked_ones(tmp_path: Path) -> None:
    """Rank 0 still runs two earlier steps when the window opens; in the marked steps both ranks do the same."""
    steps = in_steps(2000, [5, 6])
    result = analyzed(tmp_path, [*leftover(2000, 2), *steps], steps)
    data: Any = result.data()
    first, second = data["ranks"]
    assert first["marked"] == second["marked"]
    assert first["window_us"] > second["window_us"] == 1700
    assert first["compute_us"] == 1600
    assert first["marked"]["window_us"] == 1400
    assert first["outside"] == {
        "before_us": first["window_us"] - 1700,
        "after_us": 0,
        "between_us": 300,
        "busy_us": 800,
        "device_events": 8,
        "steps": 2.0,
    }
    assert second["outside"]["busy_us"] == 0
    table = result.sections()[0]
    assert [row[1:] for row in table.rows[:2]] == [table.rows[0][1:]] * 2
    assert any("8 device events of about 2.0 steps outside marked steps" in note for note in table.notes)


@pytest.mark.parametrize(
    ("second", "expected"), [([6, 7], "compared over steps 6, which all marked"), ([8, 9], "not compared")]
)
def test_ranks_that_marked_different_steps_are_named(tmp_path: Path, second: list[int], expected: str) -> None:
    notes = analyzed(tmp_path, in_steps(0, [5, 6]), in_steps(0, second)).notes
    assert any("marked different steps" in note and expected in note for note in notes)


def test_how_many_steps_ran_outside_is_absent_where_no_two_steps_are_alike(tmp_path: Path) -> None:
    events = [*leftover(2000, 1), *in_steps(2000, [5]), *in_steps(3000, [6], kernels=3)]
    outside = analyzed(tmp_path, events).ranks[0].outside
    assert outside is not None
    assert (outside.device_events, outside.steps) == (4, None)
