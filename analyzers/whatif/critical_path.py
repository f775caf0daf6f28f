"""The critical path of a replay: from the end of the last step back to its begin, always to what was waited for last.

Its parts add up to the time of the steps exactly. An event is on it for as long as it ran. The host is on it from the
end of its wait to the next launch. An operation of several ranks is on it for its transfer. The time before is on the
path of the rank that arrived last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Annotated

from perfscope.analyzers.whatif.job_graph import JobGraph
from perfscope.analyzers.whatif.replay import JobTimes, Replayed, StepSpan
from perfscope.constants import NS_PER_US
from perfscope.result import Doc, Figures, InUnit, figure
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, Work

COMPUTE, COMMUNICATION, COPY, HOST, DATA, LAUNCH = (
    "compute", "communication", "copy", "host", "data loading", "launch latency",
)  # fmt: skip
_CAUSES = {Work.COMPUTE: COMPUTE, Work.COMMUNICATION: COMMUNICATION, Work.COPY: COPY, Work.FUSED: COMPUTE}
_BETWEEN_LAUNCHES = "between launches"


class PathPart(Figures, frozen=True):
    """A part of the critical path through ranks, threads and streams; ``time_ns`` is of all ``steps``."""

    rank: Annotated[int, Doc("The rank, or its position where the trace does not state one.")]
    cause: Annotated[str, Doc("What the time went to.")]
    name: Annotated[str, Doc("The kernel, or what the host did.")]
    time_ns: int
    steps: int
    path_ns: int
    us = InUnit("time_ns", NS_PER_US, "How long.", per="steps")

    @figure
    def share(self) -> float:
        """Share of the path."""
        return self.time_ns / self.path_ns


def find_critical_path(job: JobGraph, times: JobTimes, replayed: Replayed, span: StepSpan) -> tuple[PathPart, ...]:
    """The critical path of the marked steps, the largest part first."""
    return _Walk(job, times, replayed, span).run()


class _Walk:
    def __init__(self, job: JobGraph, times: JobTimes, replayed: Replayed, span: StepSpan) -> None:
        self._job, self._times, self._replayed, self._span = job, times, replayed, span
        self._time_ns = span.end_ns
        self._parts: Counter[tuple[int, str, str]] = Counter()
        self._waits = [_sources(graph.wait_target, graph.wait_source) for graph in job.ranks]
        self._host_waits = [_sources(graph.host_call, graph.host_event) for graph in job.ranks]
        self._operation_of = {member: number for number, item in enumerate(job.operations) for member in item.members}

    def run(self) -> tuple[PathPart, ...]:
        position, event = self._span.last_rank, self._span.last_event
        while self._time_ns > self._span.start_ns:
            position, event = self._last_to_arrive(position, event)
            following = self._pass_event(position, event)
            if following is None:
                break
            event = following
        self._add(position, HOST, "before the first launch of the trace", self._span.start_ns)
        path_ns = self._span.end_ns - self._span.start_ns
        assert self._parts.total() == path_ns
        ranks = [place if graph.rank is None else graph.rank for place, graph in enumerate(self._job.ranks)]
        parts = [
            PathPart(ranks[place], cause, name, time_ns, self._span.steps, path_ns)
            for (place, cause, name), time_ns in self._parts.items()
        ]
        return tuple(sorted(parts, key=lambda part: (-part.time_ns, part.rank, part.cause, part.name)))

    def _last_to_arrive(self, position: int, event: int) -> tuple[int, int]:
        number = self._operation_of.get((position, event))
        if number is None or not self._times.is_joined[number]:
            return position, event
        return max(self._job.operations[number].members, key=lambda member: self._ready(*member)[0])

    def _ready(self, position: int, event: int) -> tuple[int, int | None]:
        graph, ends_ns = self._job.ranks[position], self._replayed.end_ns[position]
        before = [event - 1] if event and graph.stream[event - 1] == graph.stream[event] else []
        candidates: list[tuple[int, int | None]] = [
            (int(ends_ns[source]), source) for source in (*before, *self._waits[position].get(event, ()))
        ]
        launch = int(graph.launch[event])
        launched_ns = int(
            graph.start_ns[event] + self._job.offset_ns[position]
            if launch == ABSENT
            else self._replayed.call_start_ns[position][launch] + self._times.ranks[position].latency_ns
        )
        return max([*candidates, (launched_ns, None)], key=lambda candidate: candidate[0])

    def _pass_event(self, position: int, event: int) -> int | None:
        graph = self._job.ranks[position]
        ready_ns, source = self._ready(position, event)
        lag_ns = int(self._times.ranks[position].lag_ns[event])
        self._add(position, _CAUSES[Work(graph.work[event])], graph.names[graph.name[event]], ready_ns + lag_ns)
        self._add(position, LAUNCH, "start of the event", ready_ns)
        launch = int(graph.launch[event])
        if source is not None or launch == ABSENT:
            return source
        self._add(position, LAUNCH, "launch", int(self._replayed.call_start_ns[position][launch]))
        return self._pass_host(position, launch)

    def _pass_host(self, position: int, call: int) -> int | None:
        times, starts_ns = self._times.ranks[position], self._replayed.call_start_ns[position]
        ends_ns, waiting = self._replayed.end_ns[position], self._job.ranks[position].host_call
        while len(earlier := waiting[waiting < call]):
            wait = int(earlier.max())
            self._add_host(position, wait + 1, call)
            source = max(self._host_waits[position][wait], key=lambda event: int(ends_ns[event]))
            freed_ns = int(ends_ns[source])
            if freed_ns + int(times.return_ns[wait]) > int(starts_ns[wait]) + int(times.call_ns[wait]):
                self._add(position, HOST, "return from waiting for the device", freed_ns)
                return source
            self._add(position, HOST, _BETWEEN_LAUNCHES, int(starts_ns[wait]))
            call = wait
        self._add_host(position, 0, call)
        return None

    def _add_host(self, position: int, first: int, call: int) -> None:
        times = self._times.ranks[position]
        begin_ns = int(self._replayed.call_start_ns[position][first]) - int(times.gap_ns[first])
        data_ns = int(self._job.ranks[position].data_wait_ns[first : call + 1].sum())
        loaded_ns = min(data_ns, max(0, self._time_ns - max(begin_ns, self._span.start_ns)))
        self._add(position, DATA, "enumerate(DataLoader)", self._time_ns - loaded_ns)
        self._add(position, HOST, _BETWEEN_LAUNCHES, begin_ns)

    def _add(self, position: int, cause: str, name: str, from_ns: int) -> None:
        begin_ns = max(from_ns, self._span.start_ns)
        if begin_ns < self._time_ns:
            self._parts[position, cause, name] += self._time_ns - begin_ns
            self._time_ns = begin_ns


def _sources(targets: Int64, sources: Int64) -> dict[int, list[int]]:
    by_target: defaultdict[int, list[int]] = defaultdict(list)
    for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
        by_target[target].append(source)
    return by_target
