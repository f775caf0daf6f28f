"""Claims about what every device did: against a slow count, on real traces, and of jobs with very many ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.timeline import (
    MOST_SHOWN,
    STATES,
    DeviceTimeline,
    JobTimeline,
    StateRuns,
    analyze,
    measure,
    simplify,
)
from perfscope.errors import MissingInput
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Events, Trace, Work
from tests.conftest import ROOT

REAL = {
    "zero2": sorted((ROOT / "fixtures" / "runs" / "h200_zero2" / "traces").glob("*.gz")),
    "pipeline": sorted((ROOT / "fixtures" / "pipeline" / "pp4_1f1b_m8").glob("*.gz")),
}


def read(path: Path) -> Trace:
    return read_trace(str(path), BASIC_EVENTS | Events.OPERATOR_TIMES)


def timelines(paths: Sequence[Path]) -> list[tuple[DeviceTimeline, ...]]:
    return [timeline for timeline in map(measure, map(read, paths)) if timeline is not None]


def slow_times(trace: Trace) -> dict[str, int]:
    """The time in each busy state and idle, by looking at every moment between two edges."""
    device = trace.device
    spans = list(zip(device.start_ns.tolist(), device.end_ns.tolist(), device.work.tolist(), strict=True))
    edges = sorted({edge for start, end, _ in spans for edge in (start, end)})
    times: Counter[str] = Counter()
    active: Counter[int] = Counter()
    changes = sorted([(start, 1, work) for start, _, work in spans] + [(end, -1, work) for _, end, work in spans])
    position = 0
    for first, last in pairwise(edges):
        while position < len(changes) and changes[position][0] <= first:
            active[changes[position][2]] += changes[position][1]
            position += 1
        computes = active[Work.COMPUTE] + active[Work.FUSED] > 0
        communicates = active[Work.COMMUNICATION] + active[Work.FUSED] > 0
        if computes and communicates:
            state = "compute beside communication"
        elif computes or communicates:
            state = "compute" if computes else "exposed communication"
        else:
            state = "exposed copy" if active[Work.COPY] > 0 else "idle"
        times[state] += last - first
    return dict(times)


@pytest.mark.parametrize("job", REAL)
def test_the_times_are_those_of_a_slow_count(job: str) -> None:
    for path in REAL[job]:
        trace = read(path)
        (device,) = measure(trace) or ()
        times = dict(zip(STATES, device.time_ns, strict=True))
        expected = slow_times(trace)
        for state in STATES[:4]:
            assert times[state] == expected.get(state, 0), state
        assert sum(time for state, time in times.items() if state.startswith("idle")) == expected.get("idle", 0)


def renumbered(device: DeviceTimeline, rank: int) -> DeviceTimeline:
    calls = device.tracks.calls
    assert calls is not None
    return replace(device, tracks=replace(device.tracks, rank=rank, calls=replace(calls, rank=rank)))


def large_job(ranks: int) -> JobTimeline:
    (device,) = timelines(REAL["zero2"][:1])[0]
    devices = [renumbered(device, rank) for rank in range(ranks)]
    time_ns = list(device.time_ns)
    time_ns[STATES.index("idle: operator")] *= 3
    devices[ranks // 3] = replace(devices[ranks // 3], time_ns=tuple(time_ns))
    return analyze([(device,) for device in devices])


def test_of_a_very_large_job_those_that_stand_out_are_shown_with_the_reason() -> None:
    ranks = MOST_SHOWN + 44
    timeline = large_job(ranks)
    shown = dict(zip(timeline.shown, timeline.why_shown, strict=True))
    assert len(timeline.devices) == ranks
    assert len(timeline.shown) <= MOST_SHOWN
    assert shown[ranks // 3] == "most idle: operator"
    assert len(timeline.data()["ranks"]) == ranks  # type: ignore[arg-type,index,call-overload]


def test_without_a_device_there_is_none() -> None:
    with pytest.raises(MissingInput):
        analyze([])


def states_of(durations: list[int], kinds: list[int], start: int = 7) -> StateRuns:
    edges = start + np.concatenate(([0], np.cumsum(durations))).astype(np.int64)
    return StateRuns(edges[:-1], edges[1:], np.array(kinds, np.int64))


lists = st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, len(STATES) - 1)), min_size=1, max_size=120)


@given(lists, st.integers(1, 40))
def test_nothing_is_left_out(pieces: list[tuple[int, int]], most: int) -> None:
    states = states_of([length for length, _ in pieces], [kind for _, kind in pieces])
    joined, _ = simplify(states, most)
    assert len(joined.state) <= most
    assert joined.start_ns[0] == states.start_ns[0]
    assert joined.end_ns[-1] == states.end_ns[-1]
    assert (joined.start_ns[1:] == joined.end_ns[:-1]).all()
