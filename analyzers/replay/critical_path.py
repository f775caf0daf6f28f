"""The critical path of a replay: from the end of the last step back to its begin, always to what was waited for last.

Its parts add up to the time of the steps exactly. An event is on it for as long as it ran. The host is on it from the
end of its wait to the next launch. An operation of several ranks is on it for its transfer. The time before is on the
path of the rank that arrived last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.replay import JobTimes, Replayed, StepSpan
from perfscope.constants import NS_PER_US
from perfscope.report import Json
from perfscope.tables.columns import Int64
from perfscope.tables.trace import ABSENT, Work

COMPUTE, COMMUNICATION, COPY, HOST, DATA, LAUNCH = (
    "compute",
    "communication",
    "copy",
    "host",
    "data loading",
    "launch latency",
)
_CAUSES = {Work.COMPUTE: COMPUTE, Work.COMMUNICATION: COMMUNICATION, Work.COPY: COPY, Work.FUSED: COMPUTE}
_BETWEEN_LAUNCHES = "between launches"


@dataclass(frozen=True, slots=True)
class PathPart:
    """A part of the critical path.

    Attributes:
        rank: The rank, or its position where the trace does not state one.
        cause: What the time went to.
        name: The kernel, or what the host did.
        time_ns: How much of the path it is.
    """

    rank: int
    cause: str
    name: str
    time_ns: int

    def data(self, steps: int) -> dict[str, Json]:
        """One entry of ``critical_path`` in JSON, for one step."""
        return {
            "rank": self.rank,
            "cause": self.cause,
            "name": self.name,
            "us": self.time_ns / steps / NS_PER_US,
        }


class _Walk:
    """The way back through a replay."""

    def __init__(self, job: JobGraph, times: JobTimes, replayed: Replayed, span: StepSpan) -> None:
        self._job, self._times, self._replayed, self._span = job, times, replayed, span
        self._time_ns = span.end_ns
        self._parts: Counter[tuple[int, str, str]] = Counter()
        self.operators: Counter[str] = Counter()
        self._waits = [_sources(graph.wait_target, graph.wait_source) for graph in job.ranks]
        self._host_waits = [_sources(graph.host_call, graph.host_event) for graph in job.ranks]
        self._operation_of: list[dict[int, int]] = [{} for _ in job.ranks]
        for number, operation in enumerate(job.operations):
            for position, event in operation.members:
                self._operation_of[position][event] = number

    def run(self) -> tuple[PathPart, ...]:
        """The parts of the path, the largest first."""
        position, event = self._span.last_rank, self._span.last_event
        while self._time_ns > self._span.start_ns:
            position, event = self._last_to_arrive(position, event)
            following = self._pass_event(position, event)
            if following is None:
                break
            event = following
        parts = [PathPart(self._rank(place), cause, name, time) for (place, cause, name), time in self._parts.items()]
        left_ns = self._time_ns - self._span.start_ns
        if left_ns > 0:
            parts.append(PathPart(self._rank(position), HOST, "before the first launch of the trace", left_ns))
        assert sum(part.time_ns for part in parts) == self._span.end_ns - self._span.start_ns
        return tuple(sorted(parts, key=lambda part: (-part.time_ns, part.rank, part.cause, part.name)))

    def _rank(self, position: int) -> int:
        rank = self._job.ranks[position].rank
        return position if rank is None else rank

    def _last_to_arrive(self, position: int, event: int) -> tuple[int, int]:
        """Of an operation of several ranks the part of the rank that all others waited for."""
        number = self._operation_of[position].get(event)
        if number is None or not self._times.is_joined[number]:
            return position, event
        members = self._job.operations[number].members
        return max(members, key=lambda member: self._arrival_ns(*member))

    def _arrival_ns(self, position: int, event: int) -> int:
        """When a rank arrives at an operation: at the end of the last thing that its event waits for."""
        return max(time_ns for time_ns, _ in self._candidates(position, event))

    def _candidates(self, position: int, event: int) -> list[tuple[int, int | None]]:
        """What an event waits for: when each ended, and the event, or None for the launch."""
        graph, ends_ns = self._job.ranks[position], self._replayed.end_ns[position]
        before = [event - 1] if event and graph.stream[event - 1] == graph.stream[event] else []
        candidates: list[tuple[int, int | None]] = [
            (int(ends_ns[source]), source) for source in (*before, *self._waits[position].get(event, ()))
        ]
        launch = int(graph.launch[event])
        if launch == ABSENT:
            start_ns = int(graph.start_ns[event] + self._job.offset_ns[position])
            return [*candidates, (start_ns, None)]
        moment_ns = int(self._replayed.call_start_ns[position][launch]) + self._times.ranks[position].latency_ns
        return [*candidates, (moment_ns, None)]

    def _pass_event(self, position: int, event: int) -> int | None:
        """Go from the end of an event to the end of what it waited for last; None at the begin of the trace."""
        graph = self._job.ranks[position]
        ready_ns, source = max(self._candidates(position, event), key=lambda candidate: candidate[0])
        lag_ns = int(self._times.ranks[position].lag_ns[event])
        ended_ns = self._time_ns
        self._add(position, _CAUSES[Work(graph.work[event])], graph.names[graph.name[event]], ready_ns + lag_ns)
        if graph.stacks and graph.stack[event] != ABSENT:
            self.operators[graph.stacks[graph.stack[event]][-1]] += ended_ns - self._time_ns
        self._add(position, LAUNCH, "start of the event", ready_ns)
        if source is not None:
            return source
        launch = int(graph.launch[event])
        if launch == ABSENT:
            return None
        self._add(position, LAUNCH, "launch", int(self._replayed.call_start_ns[position][launch]))
        return self._pass_host(position, launch)

    def _pass_host(self, position: int, call: int) -> int | None:
        """Go back through the host's program to the last call that waited for the device, and what it waited for."""
        times, starts_ns = self._times.ranks[position], self._replayed.call_start_ns[position]
        waiting = self._job.ranks[position].host_call
        while len(earlier := waiting[waiting < call]):
            wait = int(earlier.max())
            self._add_host(position, wait + 1, call)
            sources = self._host_waits[position][wait]
            ends_ns = self._replayed.end_ns[position]
            source = max(sources, key=lambda event: int(ends_ns[event]))
            freed_ns = int(ends_ns[source])
            if freed_ns + int(times.return_ns[wait]) > int(starts_ns[wait]) + int(times.call_ns[wait]):
                self._add(position, HOST, "return from waiting for the device", freed_ns)
                return source
            self._add(position, HOST, _BETWEEN_LAUNCHES, int(starts_ns[wait]))
            call = wait
        self._add_host(position, 0, call)
        return None

    def _add_host(self, position: int, first: int, call: int) -> None:
        """The host's time from the gap before one call to the start of another, data loading apart."""
        times = self._times.ranks[position]
        begin_ns = int(self._replayed.call_start_ns[position][first]) - int(times.gap_ns[first])
        data_ns = int(self._job.ranks[position].data_wait_ns[first : call + 1].sum())
        loaded_ns = min(data_ns, max(0, self._time_ns - max(begin_ns, self._span.start_ns)))
        self._add(position, DATA, "enumerate(DataLoader)", self._time_ns - loaded_ns)
        self._add(position, HOST, _BETWEEN_LAUNCHES, begin_ns)

    def _add(self, position: int, cause: str, name: str, from_ns: int) -> None:
        """The path lies here from a moment to where it was reached; nothing before the steps counts."""
        begin_ns = max(from_ns, self._span.start_ns)
        if begin_ns < self._time_ns:
            self._parts[position, cause, name] += self._time_ns - begin_ns
            self._time_ns = begin_ns


def _sources(targets: Int64, sources: Int64) -> dict[int, list[int]]:
    by_target: dict[int, list[int]] = {}
    for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
        by_target.setdefault(target, []).append(source)
    return by_target


def find_critical_path(job: JobGraph, times: JobTimes, replayed: Replayed, span: StepSpan) -> tuple[PathPart, ...]:
    """The critical path of the marked steps."""
    return _Walk(job, times, replayed, span).run()


def find_operators_on_path(job: JobGraph, times: JobTimes, replayed: Replayed, span: StepSpan) -> dict[str, int] | None:
    """The nanoseconds of the path in events of each operator, the largest first; None where operators were not read."""
    if not any(graph.stacks for graph in job.ranks):
        return None
    walk = _Walk(job, times, replayed, span)
    walk.run()
    return dict(walk.operators.most_common())


def shares_by_cause(parts: Sequence[PathPart]) -> dict[str, int]:
    """The nanoseconds of each cause, the largest first."""
    return _sum_by(parts, lambda part: part.cause)


def path_shares(parts: Sequence[PathPart], operators: Mapping[str, int] | None) -> dict[str, Json]:
    """``critical_path_shares`` in JSON: of the whole path, by cause, rank, kernel, collective and operator."""
    total_ns = max(sum(part.time_ns for part in parts), 1)
    kernels = [part for part in parts if part.cause in (COMPUTE, COPY)]
    sums: dict[str, Mapping[str, int] | None] = {
        "cause": shares_by_cause(parts),
        "rank": _sum_by(parts, lambda part: str(part.rank)),
        "kernel": _sum_by(kernels, lambda part: part.name),
        "collective": _sum_by([part for part in parts if part.cause == COMMUNICATION], lambda part: part.name),
        "operator": operators,
    }
    return {
        by: None if times is None else {name: time_ns / total_ns for name, time_ns in times.items()}
        for by, times in sums.items()
    }


def _sum_by(parts: Sequence[PathPart], name_of: Callable[[PathPart], str]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for part in parts:
        sums[name_of(part)] += part.time_ns
    return dict(sums.most_common())
