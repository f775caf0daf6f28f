"""What the host did outside of operators: against a slow oracle, and on traces of loops with a known fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import host
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ALL_EVENTS, Events
from tests.conftest import ROOT
from tests.sources.traces.making import AUTOGRAD, Event, span, step, write

EVENTS = ALL_EVENTS | Events.FRAMES
TRACES = ROOT / "fixtures" / "traces"


def analyzed(tmp_path: Path, *events: Event) -> dict[str, Any]:
    partial = host.measure(read_trace(write(tmp_path / "rank0.json", list(events)), EVENTS))
    assert partial is not None
    result: Any = host.analyze([partial]).data()
    data: dict[str, Any] = result
    return data


def read(name: str) -> tuple[host.HostTime, host.HostRank]:
    partial = host.measure(read_trace(TRACES / name, EVENTS))
    assert partial
    return host.analyze([partial]), partial[0]


def test_the_parts_add_up_to_other_and_operators_have_none(tmp_path: Path) -> None:
    found = analyzed(
        tmp_path,
        step(1, 0, 1000),
        span("cpu_op", "aten::mm", 300, 400),
        span("python_function", "train.py(3): loop", 0, 900),
        span("python_function", "<built-in function sleep>", 350, 500),
        span("python_function", "other.py(1): thread", 0, 1000, tid=AUTOGRAD),
    )
    (rank,) = found["ranks"]
    assert {(part["function"], part["call"]): round(1000 * part["us"]) for part in rank["outside_operators"]} == {
        ("train.py(3): loop", None): 300 + 400,
        ("train.py(3): loop", "sleep"): 100,
        (None, None): 100,
    }
    assert sum(part["us"] for part in rank["outside_operators"]) == pytest.approx(rank["other_us"])


@pytest.mark.parametrize(
    ("loop", "function", "call"),
    [
        ("sleeping", "loops.py(23): sleeping", "sleep"),
        ("computing", "loops.py(28): tokenize", None),
        ("reading", "loops.py(40): load", "read"),
    ],
)
def test_the_function_that_took_the_time_is_named(loop: str, function: str, call: str | None) -> None:
    result, rank = read(f"loops/{loop}.pt.trace.json.gz")
    worst = rank.outside_operators[0]
    assert (worst.function, worst.call) == (function, call)
    assert worst.duration_ns > 0.8 * rank.total.window
    assert sum(part.duration_ns for part in rank.outside_operators) == rank.total.other
    (section,) = [section for section in result.sections() if section.title == "Host time outside of operators"]
    assert section.rows[0][1:3] == (function, call or "its own code")


def test_a_clean_loop_has_no_such_function() -> None:
    _, rank = read("loops/clean.pt.trace.json.gz")
    assert max(part.duration_ns for part in rank.outside_operators) < 0.2 * rank.total.window
    assert sum(part.duration_ns for part in rank.outside_operators) == rank.total.other
