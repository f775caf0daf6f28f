"""A replay gives what the definitions give one by one, and with measured durations the measured steps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.whatif import CriticalPath
from perfscope.analyzers.whatif.job_graph import JobGraph
from perfscope.analyzers.whatif.replay import JobReplay, measured_ends, measured_times, span_of_steps
from perfscope.errors import MissingInput
from tests.analyzers.whatif.jobs import random_job, real_job, replay_slowly

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
