"""The parts of idle time on two threads, against an oracle that looks at every moment by itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers import breakdown, idle
from perfscope.analyzers.shared import host_activity
from perfscope.analyzers.shared.parts import CAUSES
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events, Trace
from tests.conftest import ROOT
from tests.sources.traces.making import AUTOGRAD, MAIN, Event, call, kernel, span, step, write

TRACES = ROOT / "fixtures" / "traces"
LONGEST = 300
PAUSE = 25
STEPS = [(0, 120), (120, 230)]
THREADS = MAIN, AUTOGRAD


@dataclass(frozen=True)
class Stretch:
    """What a thread did from one moment to another: an operator, a synchronisation or another call."""

    state: str
    start: int
    end: int
    thread: int


@dataclass(frozen=True)
class Kernel:
    """A kernel, and its launch; times in nanoseconds."""

    start: int
    end: int
    launched: int
    returned: int
    thread: int


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    launched = draw(st.integers(0, LONGEST))
    start = launched + draw(st.integers(0, 60))
    return Kernel(
        start,
        start + draw(st.integers(1, 40)),
        launched,
        launched + draw(st.integers(0, 9)),
        draw(st.sampled_from(THREADS)),
    )


@st.composite
def stretches(draw: st.DrawFn) -> Stretch:
    start = draw(st.integers(0, LONGEST))
    state = draw(st.sampled_from(["operator", "operator", "synchronisation", "cuda_call", "data_loading"]))
    return Stretch(state, start, start + draw(st.integers(0, 60)), draw(st.sampled_from(THREADS)))


def events_of(launches: list[Kernel], host: list[Stretch]) -> list[Event]:
    events: list[Event] = [step(number, *bounds) for number, bounds in enumerate(STEPS)]
    for number, each in enumerate(launches):
        events.append(call("cudaLaunchKernel", each.launched, each.returned, launch=number, tid=each.thread))
        events.append(kernel("gemm", each.start, each.end, launch=number))
    for stretch in host:
        if stretch.state == "operator":
            events.append(span("cpu_op", "aten::mm", stretch.start, stretch.end, tid=stretch.thread))
        elif stretch.state == "data_loading":
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            events.append(span("user_annotation", name, stretch.start, stretch.end, tid=stretch.thread))
        else:
            name = "cudaDeviceSynchronize" if stretch.state == "synchronisation" else "cudaMalloc"
            events.append(call(name, stretch.start, stretch.end, launch=900, tid=stretch.thread))
    return events


def state_at(moment: int, thread: int, host: list[Stretch]) -> str | None:
    """What the trace shows of a thread at a moment; a loader counts whatever its thread."""
    for state in ("data_loading", "synchronisation", "cuda_call", "operator"):
        for stretch in host:
            is_meant = state == "data_loading" or stretch.thread == thread
            if is_meant and stretch.state == state and stretch.start <= moment < stretch.end:
                return state
    return None


def is_pause(moment: int, thread: int, host: list[Stretch]) -> bool:
    """Whether the trace shows nothing of a thread for a pause's length around a moment."""
    first = last = moment
    while last - first + 1 < PAUSE and state_at(first - 1, thread, host) is None:
        first -= 1
    while last - first + 1 < PAUSE and state_at(last + 1, thread, host) is None:
        last += 1
    return last - first + 1 >= PAUSE


def host_cause(moment: int, thread: int, others: list[int], host: list[Stretch], shows_operators: bool) -> str:
    state = state_at(moment, thread, host)
    if state is not None:
        return state
    if not shows_operators:
        return "host_launch"
    if not is_pause(moment, thread, host):
        return "between_operators"
    elsewhere = [state_at(moment, other, host) for other in others]
    return next((state for state in ("synchronisation", "cuda_call", "operator") if state in elsewhere), "not_shown")


def oracle(launches: list[Kernel], host: list[Stretch], members: list[Kernel], launch_gap: int) -> dict[str, int]:
    """Idle nanoseconds between some kernels by cause, one moment after the other."""
    busy = {moment for each in members for moment in range(each.start, each.end)}
    calls = [Stretch("cuda_call", each.launched, each.returned, each.thread) for each in launches]
    shows_operators = any(stretch.state == "operator" and stretch.end > stretch.start for stretch in host)
    causes: dict[str, int] = {}
    gap: list[int] = []
    for moment in range(min(each.start for each in members), max(each.end for each in members)):
        if moment not in busy:
            gap.append(moment)
            continue
        if gap:
            after = min(
                (each for each in members if each.start == moment), key=lambda each: (each.launched, each.returned)
            )
            others = sorted({each.thread for each in launches} - {after.thread})
            for idle_moment in gap:
                if idle_moment < after.launched:
                    cause = host_cause(idle_moment, after.thread, others, [*host, *calls], shows_operators)
                elif after.launched >= gap[0] or after.returned > gap[0]:
                    cause = "launch_latency"
                else:
                    cause = "launch_gap" if len(gap) < launch_gap else "dependency"
                causes[cause] = causes.get(cause, 0) + 1
        gap = []
    return causes


def named(causes: tuple[int, ...] | None) -> dict[str, int]:
    return {cause: ns for cause, ns in zip(CAUSES, causes or (), strict=True) if ns}


def is_distinct(launches: list[Kernel]) -> bool:
    """Whether no two kernels begin together with launches that tie, which nothing could tell apart."""
    return len({(each.start, each.launched, each.returned) for each in launches}) == len(launches)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    launches=st.lists(kernels(), min_size=1, max_size=8).filter(is_distinct), host=st.lists(stretches(), max_size=10)
)
def test_every_moment_of_idle_time_has_the_cause_that_the_trace_shows(
    tmp_path: Path, launches: list[Kernel], host: list[Stretch]
) -> None:
    trace = read_trace(write(tmp_path / "rank0.json", events_of(launches, host)), BASIC_EVENTS | Events.OPERATOR_TIMES)
    with mock.patch.object(host_activity, "PAUSE_NS", PAUSE):
        (rank,) = idle.measure(trace)
    (parts,) = breakdown.measure(trace)
    assert named(rank.by_cause) == oracle(launches, host, launches, 5000)
    assert sum(rank.by_cause) == parts.total.idle
    steps = [[each for each in launches if first <= each.launched < last] for first, last in STEPS]
    expected: dict[str, int] = {}
    for members in steps:
        for cause, ns in (oracle(launches, host, members, 5000) if members else {}).items():
            expected[cause] = expected.get(cause, 0) + ns
    assert (rank.marked_by_cause is None) == (parts.marked is None)
    if rank.marked_by_cause is not None and parts.marked is not None:
        assert named(rank.marked_by_cause) == expected
        assert sum(rank.marked_by_cause) == parts.marked.idle


def measured(trace: str) -> tuple[Trace, idle.RankIdle]:
    read = read_trace(TRACES / trace, BASIC_EVENTS | Events.OPERATOR_TIMES)
    (rank,) = idle.measure(read)
    return read, rank


@pytest.mark.parametrize("trace", ["single/rank0.pt.trace.json.gz", "ddp4/rank0.pt.trace.json.gz"])
def test_the_causes_of_real_traces_add_up_to_their_idle_time(trace: str) -> None:
    read, rank = measured(trace)
    (parts,) = breakdown.measure(read)
    assert sum(rank.by_cause) == parts.total.idle
    assert parts.marked is not None
    assert sum(rank.marked_by_cause or ()) == parts.marked.idle
    assert named(rank.by_cause)["operator"] > 0


def test_the_causes_of_a_real_trace_without_its_operators_differ_in_the_host_s_alone() -> None:
    _, with_operators = measured("single/rank0.pt.trace.json.gz")
    (without,) = idle.measure(read_trace(TRACES / "single" / "rank0.pt.trace.json.gz", BASIC_EVENTS))
    fine, coarse = named(with_operators.marked_by_cause), named(without.marked_by_cause)
    late = "operator", "between_operators", "not_shown"
    assert coarse["host_launch"] == sum(fine.pop(cause, 0) for cause in late)
    assert {cause: ns for cause, ns in coarse.items() if cause != "host_launch"} == fine
