"""A replay gives what the definitions give one by one, and with measured durations the measured steps."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.whatif import CriticalPath, WhatIf, answer, measure
from perfscope.analyzers.whatif.job_graph import JobGraph, join_ranks
from perfscope.analyzers.whatif.rank_graph import RankGraph, build_rank_graph
from perfscope.analyzers.whatif.replay import JobReplay, measured_ends, measured_times, span_of_steps
from perfscope.errors import MissingInput
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS
from tests.analyzers.whatif.jobs import random_job, real_job, replay_slowly
from tests.sources.traces.making import Event, call, kernel, step, write

#: Every set of real traces with marked steps, and how far its replay may be from the measured step.
REAL = {
    "whatif/base": 0.002,
    "whatif/no_overlap": 0.002,
    "whatif/slow_gpu": 0.002,
    "whatif/fsdp2": 0.002,
    "traces/ddp4": 0.003,
    "traces/single": 0.001,
    "whatif/ds_pp4": 0.002,
}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_runs_of_events_give_what_the_definitions_give(seed: int) -> None:
    job, times = random_job(seed)
    replayed = JobReplay(job).run(times)
    event_ends, call_starts = replay_slowly(job, times)
    assert [ends.tolist() for ends in replayed.end_ns] == event_ends
    assert [starts.tolist() for starts in replayed.call_start_ns] == call_starts


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_the_critical_path_adds_up_to_the_steps(seed: int) -> None:
    job, times = random_job(seed)
    replayed = JobReplay(job).run(times)
    span = span_of_steps(job, replayed.end_ns)
    if span.end_ns > span.start_ns:
        parts = CriticalPath(job, times, replayed, span).parts()
        assert sum(part.time_ns for part in parts) == span.end_ns - span.start_ns
        assert all(part.time_ns > 0 for part in parts)


@pytest.mark.parametrize("folder", REAL)
def test_measured_durations_give_the_measured_step_back(folder: str) -> None:
    job = real_job(folder)
    replayed = JobReplay(job).run(measured_times(job))
    measured = span_of_steps(job, measured_ends(job)).step_ns
    assert span_of_steps(job, replayed.end_ns).step_ns == pytest.approx(measured, rel=REAL[folder])


def test_the_critical_path_names_what_a_job_is_bound_by() -> None:
    for folder, cause in (("whatif/base", "compute"), ("whatif/fsdp2", "host")):
        job = real_job(folder)
        times = measured_times(job)
        replayed = JobReplay(job).run(times)
        times_of: Counter[str] = Counter()
        for part in CriticalPath(job, times, replayed, span_of_steps(job, replayed.end_ns)).parts():
            times_of[part.cause] += part.time_ns
        assert times_of.most_common(1)[0][0] == cause


def test_operations_that_wait_for_each_other_in_a_circle_are_refused() -> None:
    job, _ = random_job(3)
    for seed in range(3, 200):
        job, _ = random_job(seed)
        if len(job.operations) >= 2 and len(job.ranks) >= 2:
            break
    first, second, *others = job.operations
    crossed = (
        replace(first, members=(first.members[0], second.members[1], *first.members[2:])),
        replace(second, members=(second.members[0], first.members[1], *second.members[2:])),
    )
    with pytest.raises(MissingInput, match="circle"):
        JobReplay(JobGraph(job.ranks, job.offset_ns, (*crossed, *others), ()))


US = 1000


def graph_of(folder: Path, events: list[Event]) -> RankGraph:
    graph = build_rank_graph(read_trace(write(folder / "rank0.json", events)), 0)
    assert graph is not None
    return graph


def test_a_copy_that_another_thread_overtook_is_waited_for_by_no_later_call(tmp_path: Path) -> None:
    """Its call begins first and is held up; the kernel of the other thread comes before it on the stream."""
    copy = call("cudaMemcpyAsync", 10 * US, 60 * US, launch=1, tid=1)
    overtakes = call("cudaLaunchKernel", 20 * US, 22 * US, launch=2, tid=2)
    events = [
        step(1, 0, 90 * US),
        *(copy, overtakes, call("cudaLaunchKernel", 70 * US, 72 * US, launch=3, tid=1)),
        *(kernel("first", 25 * US, 30 * US, launch=2), kernel("copied", 35 * US, 55 * US, launch=1)),
        kernel("last", 75 * US, 80 * US, launch=3),
    ]
    graph = graph_of(tmp_path, events)
    assert not len(graph.host_call)
    job = join_ranks([graph])
    replayed = JobReplay(job).run(measured_times(job))
    assert span_of_steps(job, replayed.end_ns).step_ns == span_of_steps(job, measured_ends(job)).step_ns


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_threads_can_be_replayed(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    events, free_us = [step(1, 0, 10_000 * US)], {7: 30, 8: 30}
    for number in range(1, 60):
        begin, stream = source.randrange(10, 2_000), source.choice((7, 8))
        start = max(free_us[stream], begin + source.randrange(5, 400))
        free_us[stream] = end = start + source.randrange(1, 30)
        name = source.choice(("cudaMemcpyAsync", "cudaLaunchKernel"))
        returns = end + source.randrange(1, 9) if name == "cudaMemcpyAsync" else begin + 2
        events += [
            call(name, begin * US, returns * US, launch=number, tid=number),
            kernel("work", start * US, end * US, launch=number, stream=stream),
        ]
        if source.random() < 0.3:
            events.append(call("cudaStreamSynchronize", begin * US + 1, (end + 3) * US, launch=1000 + number))
    job = join_ranks([graph_of(tmp_path, events)])
    assert JobReplay(job).run(measured_times(job)).end_ns


_STEPS, _STEP_US = (1, 2, 3), 1000


def graphed(tmp_path: Path) -> Path:
    """Steps of one graph each: two kernels on a stream, one beside them, and a last one that waits for both streams."""
    events = []
    for number in (0, *_STEPS):
        start = number * _STEP_US * US
        if number:
            events.append(step(number, start, start + _STEP_US * US))
        events.append(call("cudaGraphLaunch", start + 10 * US, start + 45 * US, launch=number + 1))
        events.append(call("cudaDeviceSynchronize", start + 40 * US, start + 720 * US, launch=100 + number))
        for name, at, ends, stream in (
            ("first", 50, 350, 7),
            ("second", 351, 551, 7),
            ("beside", 50, 450, 9),
            ("last", 552, 702, 7),
        ):
            node = {"graph node id": at}
            events.append(kernel(name, start + at * US, start + ends * US, launch=number + 1, stream=stream, **node))
    return write(tmp_path / "rank0.json", events)


def ask(tmp_path: Path, scenario: str) -> WhatIf:
    partial = measure(read_trace(graphed(tmp_path), BASIC_EVENTS))
    assert partial is not None
    (graph,) = partial
    assert len(set(graph.launch.tolist())) == 1 + len(_STEPS)
    return answer([partial], (scenario,))


def test_the_events_of_a_graph_are_replayed_from_its_one_launch(tmp_path: Path) -> None:
    result = ask(tmp_path, "launch-free")
    assert result.measured.step_ns == _STEP_US * US
    assert result.replay_error == pytest.approx(0, abs=1e-3)
    assert {part.name for part in result.critical_path} >= {"first", "second", "last"}


@pytest.mark.parametrize(("kernel", "saved_us"), [("first", 150), ("last", 75), ("beside", 0)])
def test_a_faster_kernel_of_a_graph_saves_what_the_step_waits_for(tmp_path: Path, kernel: str, saved_us: int) -> None:
    (outlook,) = ask(tmp_path, f"faster-kernel={kernel}:2").scenarios
    assert outlook.saved_ns == pytest.approx(saved_us * US, abs=2 * US)
