"""Small jobs for the tests of replays: graphs made from random programs, and a slow replay that shares no code."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from perfscope.analyzers.collectives.calls import GroupKey, OperationKind
from perfscope.analyzers.whatif.job_graph import JobGraph, JointOperation, join_ranks
from perfscope.analyzers.whatif.rank_graph import RankGraph, build_rank_graph
from perfscope.analyzers.whatif.replay import JobTimes, RankTimes
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, BASIC_EVENTS, Work
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures"
_COMMUNICATION_STREAM = 9


@cache
def real_job(folder: str) -> JobGraph:
    """The graph of the traces of a folder of fixtures."""
    traces = [read_trace(path, BASIC_EVENTS) for path in sorted((FIXTURES / folder).glob("*.json.gz"))]
    return join_ranks([graph for trace in traces if (graph := build_rank_graph(trace, first_device(trace)))])


def first_device(trace: object) -> int:
    """The device of a trace of one rank."""
    return int(trace.device.device[0])  # type: ignore[attr-defined]


def column(values: Iterable[int], kind: type = np.int64) -> Int64:
    return np.array(list(values), kind)


def random_job(seed: int) -> tuple[JobGraph, JobTimes]:
    """A job of a few ranks with random programs, and random durations for it."""
    source = random.Random(seed)
    operations = source.randrange(0, 4)
    size = source.randrange(1, 4)
    graphs = [_random_graph(source, rank, operations) for rank in range(size)]
    joined = []
    for number in range(operations if size > 1 else 0):
        members = tuple(
            (rank, int(np.flatnonzero(graph.work == Work.COMMUNICATION)[number])) for rank, graph in enumerate(graphs)
        )
        joined.append(JointOperation(GroupKey("0", "0,1"), OperationKind("all_reduce", "float", 4), members, 0))
    offsets = column(source.randrange(-50, 50) if rank else 0 for rank in range(size))
    job = JobGraph(tuple(graphs), offsets, tuple(joined), ())
    ranks = tuple(_random_times(source, graph) for graph in graphs)
    transfers = column(source.randrange(0, 30) for _ in joined)
    return job, JobTimes(ranks, transfers, np.array([source.random() < 0.8 for _ in joined], np.bool_))


def _random_graph(source: random.Random, rank: int, operations: int) -> RankGraph:
    """A rank whose events wait for what came before them only, so that the graph has no circle."""
    calls = source.randrange(operations + 1, operations + 12)
    launching = sorted(source.sample(range(calls), max(operations, source.randrange(1, calls + 1))))
    communicating = set(source.sample(launching, operations))
    events: list[tuple[int, int, int]] = []
    for call in launching:
        for _ in range(1 if call in communicating else source.randrange(1, 3)):
            stream = _COMMUNICATION_STREAM if call in communicating else source.randrange(2)
            events.append((stream, len(events), call))
    if source.random() < 0.5:
        events.append((source.randrange(2), -1, ABSENT))
    events.sort()
    position = {event: index for index, event in enumerate(events)}
    waits: set[tuple[int, int]] = set()
    host_waits: set[tuple[int, int]] = set()
    for event in events:
        earlier = [other for other in events if other[2] < event[2] and other[0] != event[0]]
        if earlier and source.random() < 0.4:
            waits.add((position[source.choice(earlier)], position[event]))
    for call in range(calls):
        before = [event for event in events if event[2] < call]
        if before and source.random() < 0.25:
            host_waits.update((call, position[event]) for event in source.sample(before, 1))
    starts = column(source.randrange(0, 500) for _ in events)
    call_starts = column(sorted(source.randrange(0, 1000) for _ in range(calls)))
    sources, targets = zip(*sorted(waits), strict=True) if waits else ((), ())
    host_calls, host_events = zip(*sorted(host_waits), strict=True) if host_waits else ((), ())
    return RankGraph(
        path=f"rank{rank}.json",
        rank=rank,
        host="",
        base_ns=0,
        names=("compute", "communication"),
        call_start_ns=call_starts,
        call_end_ns=call_starts + 1,
        call_thread=np.zeros(calls, np.int64),
        data_wait_ns=np.zeros(calls, np.int64),
        name=np.array([int(event[0] == _COMMUNICATION_STREAM) for event in events], np.int32),
        work=np.array(
            [Work.COMMUNICATION if event[0] == _COMMUNICATION_STREAM else Work.COMPUTE for event in events], np.int8
        ),
        start_ns=starts,
        end_ns=starts + 5,
        stream=column(event[0] for event in events),
        launch=column(event[2] for event in events),
        step=column(1 if event[2] != ABSENT else ABSENT for event in events),
        wait_source=column(sources),
        wait_target=column(targets),
        host_call=column(host_calls),
        host_event=column(host_events),
        groups=(),
        group_events=(),
        marks=(1,),
    )


def _random_times(source: random.Random, graph: RankGraph) -> RankTimes:
    events, calls = len(graph.start_ns), len(graph.call_start_ns)
    return RankTimes(
        event_ns=column(source.randrange(0, 40) for _ in range(events)),
        lag_ns=column(source.randrange(0, 5) for _ in range(events)),
        gap_ns=column(source.randrange(0, 30) if call else 0 for call in range(calls)),
        call_ns=column(source.randrange(0, 10) for _ in range(calls)),
        return_ns=column(source.randrange(0, 10) for _ in range(calls)),
        latency_ns=source.randrange(0, 6),
    )


def replay_slowly(job: JobGraph, times: JobTimes) -> tuple[list[list[int]], list[list[int]]]:
    """The ends of all events and the starts of all calls, one by one from the definitions."""
    operation_of = {member: number for number, item in enumerate(job.operations) for member in item.members}
    ends: dict[tuple[int, int], int] = {}

    def event_start(rank: int, event: int) -> int:
        graph, own = job.ranks[rank], times.ranks[rank]
        moments = [event_end(rank, int(other)) for other in graph.wait_source[graph.wait_target == event]]
        if event and graph.stream[event - 1] == graph.stream[event]:
            moments.append(event_end(rank, event - 1))
        launch = int(graph.launch[event])
        if launch == ABSENT:
            moments.append(int(graph.start_ns[event] + job.offset_ns[rank]))
        else:
            moments.append(call_start(rank, launch) + own.latency_ns)
        return max(moments) + int(own.lag_ns[event])

    def event_end(rank: int, event: int) -> int:
        if (rank, event) not in ends:
            number = operation_of.get((rank, event))
            if number is not None and times.is_joined[number]:
                last = max(event_start(*member) for member in job.operations[number].members)
                ends[rank, event] = last + int(times.transfer_ns[number])
            else:
                ends[rank, event] = event_start(rank, event) + int(times.ranks[rank].event_ns[event])
        return ends[rank, event]

    def call_start(rank: int, call: int) -> int:
        graph, own = job.ranks[rank], times.ranks[rank]
        if call == 0:
            return int(graph.call_start_ns[0] + job.offset_ns[rank])
        return call_end(rank, call - 1) + int(own.gap_ns[call])

    def call_end(rank: int, call: int) -> int:
        graph, own = job.ranks[rank], times.ranks[rank]
        end = call_start(rank, call) + int(own.call_ns[call])
        freed = [event_end(rank, int(event)) for event in graph.host_event[graph.host_call == call]]
        return max(end, max(freed) + int(own.return_ns[call])) if freed else end

    event_ends = [[event_end(rank, event) for event in range(len(g.start_ns))] for rank, g in enumerate(job.ranks)]
    call_starts = [[call_start(rank, call) for call in range(len(g.call_start_ns))] for rank, g in enumerate(job.ranks)]
    return event_ends, call_starts


def truth_ms(folder: str) -> float:
    """The median of the unprofiled steps of a counterfactual."""

    text = Path(FIXTURES / folder / "truth.json").read_text()
    median: float = json.loads(text)["median_ms"]
    return median
