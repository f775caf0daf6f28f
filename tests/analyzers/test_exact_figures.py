"""Every number against an oracle that counts nanoseconds, on timelines that Hypothesis makes up, and on real traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from perfscope.analyzers import breakdown, idle, overlap
from perfscope.measures.idle_gaps import LAUNCH_GAP_NS
from perfscope.measures.parts import CAUSES, Parts
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Trace
from tests.conftest import ROOT
from tests.sources.traces import oracle
from tests.sources.traces.making import LAYOUTS, Event, call, copy, distributed, kernel, span, step, write
from tests.sources.traces.oracle import COMMUNICATION, COMPUTE, COPY, Thing

FIXTURES = ROOT / "fixtures" / "traces"
GROUPS = {"pp": "PIPELINE_MODEL_PARALLEL_GROUP", "tp": "TENSOR_MODEL_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP"}
STEPS = [(0, 150), (150, 260), (300, 400)]
LONGEST = 400
#: Idle times are told apart at 5 us, which the oracle counts in steps of this many nanoseconds.
TICK = 500


@st.composite
def things(draw: st.DrawFn) -> Thing:
    work = draw(st.sampled_from([COMPUTE, COMPUTE, COMMUNICATION, COPY]))
    start = draw(st.integers(0, LONGEST))
    launched = draw(st.none() | st.integers(0, LONGEST))
    return Thing(
        work=work,
        start=start,
        end=start + draw(st.integers(1, 60)),
        launched=launched,
        returned=None if launched is None else launched + draw(st.integers(0, 20)),
        group=draw(st.sampled_from(sorted(GROUPS))) if work == COMMUNICATION else "",
    )


timelines = st.lists(things(), min_size=1, max_size=25)
layouts = st.sampled_from(LAYOUTS)
stretches = st.lists(st.tuples(st.integers(0, LONGEST), st.integers(1, 50)), max_size=4)


def events_of(timeline: list[Thing]) -> list[Event]:
    events: list[Event] = [step(number, *bounds) for number, bounds in enumerate(STEPS, 1)]
    for number, thing in enumerate(timeline):
        if thing.launched is not None and thing.returned is not None:
            events.append(call("cudaLaunchKernel", thing.launched, thing.returned, launch=number))
        launch = -1 if thing.launched is None else number
        if thing.work == COPY:
            events.append(copy("Memcpy HtoD", thing.start, thing.end, launch=launch))
        elif thing.work == COMMUNICATION:
            stated: dict[str, Any] = {"Collective name": "allreduce", "Process Group Name": thing.group}
            events.append(kernel("ncclDevKernel", thing.start, thing.end, launch=launch, stream=number, **stated))
        else:
            events.append(kernel("gemm", thing.start, thing.end, launch=launch, stream=number % 3))
    return events


def stretched(thing: Thing) -> Thing:
    """The same with every time a TICK as long."""
    return Thing(
        thing.work,
        TICK * thing.start,
        TICK * thing.end,
        None if thing.launched is None else TICK * thing.launched,
        None if thing.returned is None else TICK * thing.returned,
        thing.group,
    )


def traced(folder: Path, events: list[Event], layout: Any) -> Trace:
    groups = [{"pg_name": name, "pg_desc": text, "pg_size": 2, "ranks": [0, 1]} for name, text in GROUPS.items()]
    return read_trace(write(folder / "rank0.json", events, layout, **distributed(0, 8, groups)), BASIC_EVENTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def parts(entry: Parts) -> dict[str, int]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


@PROPERTY
@given(timeline=timelines, layout=layouts)
def test_the_breakdown_counts_every_nanosecond_once(folder: Path, timeline: list[Thing], layout: Any) -> None:
    (rank,) = breakdown.measure(traced(folder, events_of(timeline), layout))
    assert parts(rank.total) == oracle.breakdown(timeline)
    of_steps = {
        f"ProfilerStep#{number}": oracle.breakdown(members)
        for number, bounds in enumerate(STEPS, 1)
        if (members := oracle.in_step(timeline, *bounds))
    }
    assert {each.name: parts(each.parts) for each in rank.steps} == of_steps
    for each in (rank.total, *(of_step.parts for of_step in rank.steps)):
        assert each.compute + each.exposed_communication + each.exposed_copy + each.idle == each.window


@PROPERTY
@given(timeline=timelines)
def test_marked_steps_and_what_is_outside_of_them_make_the_window(folder: Path, timeline: list[Thing]) -> None:
    (rank,) = breakdown.measure(traced(folder, events_of(timeline), LAYOUTS[0]))
    members = [of_step for bounds in STEPS if (of_step := oracle.in_step(timeline, *bounds))]
    expected = oracle.outside_steps(timeline, STEPS)
    if rank.outside is None or rank.marked is None:
        assert (rank.outside, rank.marked, expected) == (None, None, None)
        return
    sums = [oracle.breakdown(of_step) for of_step in members]
    assert parts(rank.marked) == {name: sum(each[name] for each in sums) for name in sums[0]}
    assert {name: getattr(rank.outside, name) for name in expected or {}} == expected
    windows = {
        ns
        for of_step in members
        for ns in range(min(thing.start for thing in of_step), max(thing.end for thing in of_step))
    }
    apart = rank.outside.before + rank.outside.between + rank.outside.after
    assert apart + len(windows) == rank.total.window


@PROPERTY
@given(timeline=timelines, layout=layouts)
def test_groups_share_the_exposed_communication_exactly(folder: Path, timeline: list[Thing], layout: Any) -> None:
    trace = traced(folder, events_of(timeline), layout)
    found = overlap.measure(trace)
    assert found is not None
    assert {(group.axis or "").lower(): astuple(group.times) for group in found} == oracle.groups(
        timeline, ["pp", "tp", "dp"]
    )
    (rank,) = breakdown.measure(trace)
    assert sum(group.times.exposed for group in found) == rank.total.exposed_communication
    members = [of_step for bounds in STEPS if (of_step := oracle.in_step(timeline, *bounds))]
    if rank.marked is None:
        assert all(group.marked is None for group in found)
        return
    of_steps = [oracle.groups(of_step, ["pp", "tp", "dp"]) for of_step in members]
    expected = {
        (group.axis or "").lower(): tuple(
            sum(each.get((group.axis or "").lower(), (0, 0, 0))[index] for each in of_steps) for index in range(3)
        )
        for group in found
    }
    assert {(group.axis or "").lower(): astuple(group.marked) for group in found if group.marked} == expected
    assert sum(group.marked.exposed for group in found if group.marked) == rank.marked.exposed_communication


@PROPERTY
@given(timeline=timelines, layout=layouts, loading=stretches, waiting=stretches)
def test_the_causes_of_idle_time_add_up_to_it(
    folder: Path, timeline: list[Thing], layout: Any, loading: list[tuple[int, int]], waiting: list[tuple[int, int]]
) -> None:
    events = events_of([stretched(thing) for thing in timeline])
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events += [span("user_annotation", name, TICK * start, TICK * (start + length)) for start, length in loading]
    events += [
        call("cudaStreamSynchronize", TICK * start, TICK * (start + length), launch=-7) for start, length in waiting
    ]
    trace = traced(folder, events, layout)
    (rank,) = idle.measure(trace)
    covered = [{ns for start, length in each for ns in range(start, start + length)} for each in (loading, waiting)]
    expected = oracle.idle_causes(timeline, covered[0], covered[1], LAUNCH_GAP_NS // TICK)
    assert {cause: ns // TICK for cause, ns in zip(CAUSES, rank.by_cause, strict=True) if ns} == expected
    (parts_of,) = breakdown.measure(trace)
    assert sum(rank.by_cause) == parts_of.total.idle


def exact() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / "exact.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("truth", exact(), ids=lambda truth: str(truth["trace"]))
def test_real_traces_agree_with_exact_arithmetic_to_the_nanosecond(truth: dict[str, Any]) -> None:
    (rank,) = breakdown.measure(read_trace(FIXTURES / truth["trace"], BASIC_EVENTS))
    names = {
        "comm_us": "communication_us",
        "exposed_comm_us": "exposed_communication_us",
        "overlap": "overlap_fraction",
    }

    def renamed(entry: dict[str, Any]) -> dict[str, Any]:
        return {names.get(key, key): value for key, value in entry.items() if key != "kernels"}

    assert rank.total.data() == renamed(truth["total"])
    assert {each.name: each.parts.data() for each in rank.steps} == {
        name: renamed(entry) for name, entry in truth["steps"].items()
    }
    assert rank.device_events == truth["total"]["kernels"]
