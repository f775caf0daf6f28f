"""The steps of a window are those of its own profiler, whatever a profiler of the script marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS
from tests.sources.traces.making import LAYOUTS, MAIN, Event, span, step, write
from tests.sources.traces.two_windows import BASE_NS

OWN = [step(4, 0, 1_000_000), step(5, 1_000_000, 2_000_000), step(6, 2_000_000, 3_000_000)]
EDGES = [0, 1_000_000, 2_000_000, 3_000_000]
Layout: TypeAlias = Callable[[Mapping[str, Any]], str]


def steps_of(
    path: Path, layout: Layout, marks: Sequence[Event], activities: str | None = "operators"
) -> list[tuple[str, int, int]]:
    """The steps of a trace, with their times."""
    edges = [BASE_NS + edge for edge in EDGES] if activities == "light" else []
    metadata = {"first_step": 4, "pid": MAIN, "activities": activities, "edges_ns": edges}
    head = {"perfscope": metadata} if activities else {}
    operators = [span("cpu_op", "aten::mm", start, start + 50_000) for start in range(0, 3_000_000, 100_000)]
    trace = read_trace(write(path, [*operators, *marks], layout, baseTimeNanoseconds=BASE_NS, **head), BASIC_EVENTS)
    times = zip(trace.steps.name.tolist(), trace.steps.start_ns.tolist(), trace.steps.end_ns.tolist(), strict=True)
    return [(trace.name_of(name).removeprefix("ProfilerStep#"), start, end) for name, start, end in times]


EXPECTED = [("4", 0, 1_000_000), ("5", 1_000_000, 2_000_000), ("6", 2_000_000, 3_000_000)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activities", ["operators", "light"])
@pytest.mark.parametrize(
    "others",
    [
        [step(3, 200_000, 1_200_000), step(4, 1_200_000, 2_200_000), step(5, 2_200_000, 2_999_000)],
        [step(4, 200_000, 1_200_000), step(5, 1_200_000, 2_200_000), step(6, 2_200_000, 2_999_000)],
        [step(5, 200_000, 1_200_000), step(6, 1_200_000, 2_200_000), step(7, 2_200_000, 2_999_000)],
        [step(number, 100_000 * number, 100_000 * (number + 1)) for number in range(2, 29)],
        [],
    ],
    ids=["a step behind", "the same numbers", "a step ahead", "for each micro-batch", "none"],
)
def test_other_marks_do_not_count(others: list[Event], activities: str, layout: Layout, tmp_path: Path) -> None:
    marks = [*others, *(OWN if activities == "operators" else [])]
    assert steps_of(tmp_path / "rank0.json", layout, marks, activities) == EXPECTED


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_marks_of_a_trace_that_is_not_ours_stay(layout: Layout, tmp_path: Path) -> None:
    marks = [step(1, 0, 1_500_000), step(2, 1_500_000, 2_900_000)]
    expected = [("1", 0, 1_500_000), ("2", 1_500_000, 2_900_000)]
    assert steps_of(tmp_path / "rank0.json", layout, marks, None) == expected
    assert steps_of(tmp_path / "rank1.json", layout, marks, "operators") == expected
