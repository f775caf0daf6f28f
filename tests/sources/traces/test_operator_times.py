"""The moments of operators are the same whether they are read alone or with the operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events
from tests.conftest import ROOT
from tests.sources.traces.making import LAYOUTS, Event, kernel, span, write

NAMES = ["aten::mm", "autograd::engine::evaluate_function: {lambda}", 'odd "ts": 5, {"args": {', "x"]
TRACES = ROOT / "fixtures" / "traces"


@st.composite
def operators(draw: st.DrawFn) -> Event:
    start = draw(st.sampled_from([0, 7, 10**9, 4_363_044_294_431_264, 8_000_000_000_000_001])) + draw(
        st.integers(0, 10**6)
    )
    event = span("cpu_op", draw(st.sampled_from(NAMES)), start, start + draw(st.integers(0, 10**10)))
    event["tid"] = draw(st.sampled_from([1, 2593, 12345678, 4_294_967_297]))
    if draw(st.booleans()):
        event["args"] = {"External id": draw(st.integers(1, 9)), "Input Dims": [[2, 3]]}
    return event


def moments(path: Path, events: Events) -> list[tuple[int, int, int]]:
    spans = read_trace(path, events).in_operators
    assert spans is not None
    return list(zip(spans.thread.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True))


def by_hand(events: list[Event]) -> list[tuple[int, int, int]]:
    """What the operators of each thread cover, one interval after the other."""
    covered: dict[int, list[list[int]]] = {}
    for event in sorted(events, key=lambda event: int(event["ts"].strip("@"))):
        start = int(event["ts"].strip("@"))
        end = start + int(event["dur"].strip("@"))
        spans = covered.setdefault(event["tid"], [])
        if start == end:
            continue
        if spans and start <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([start, end])
    return [(thread, start, end) for thread in sorted(covered) for start, end in covered[thread]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(operators(), max_size=30), layout=st.sampled_from(LAYOUTS))
def test_every_layout_and_every_length_of_a_time_gives_the_same_moments(
    tmp_path: Path, made: list[Event], layout: Any
) -> None:
    path = write(tmp_path / "rank0.json", [kernel("gemm", 0, 10), *made], layout)
    expected = by_hand(made)
    assert moments(path, BASIC_EVENTS | Events.OPERATOR_TIMES) == expected
    assert moments(path, BASIC_EVENTS | Events.OPERATORS) == expected


@pytest.mark.parametrize("run", ["ddp_gpu_bound", "host_bound"])
def test_operators_that_may_wait_are_the_same_with_and_without_all_operators(run: str) -> None:
    path = sorted((ROOT / "fixtures" / "light" / run / "traces").glob("*.gz"))[0]
    quick, whole = (
        read_trace(path, BASIC_EVENTS | Events.CALLERS | more) for more in (Events.OPERATOR_TIMES, Events.OPERATORS)
    )
    rows = [
        sorted(zip((of.names[name] for name in of.callers.name), of.callers.start_ns.tolist(), strict=True))
        for of in (quick, whole)
    ]
    assert rows[0] == rows[1] != []
