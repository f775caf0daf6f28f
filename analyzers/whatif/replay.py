"""Runs an execution graph again, with its measured durations or with others.

Single events are computed only once. Events of a stream that wait only for their launch and the previous event form a
*run*. A run ends at ``max(before + A, host + B)``. ``A`` is the sum of its durations. ``B`` is what the latest launch
and the durations after it add to the host's time. The host's program is cut likewise where it waits for the device. A
replay then goes through runs, parts of host programs, and operations of several ranks. These operations end when the
last rank has arrived and the transfer is over.

Source: critical-path replay as in Lumos (arXiv 2504.09307) and dPRO (arXiv 2205.02473), in the max-plus algebra of
Baccelli et al., "Synchronization and Linearity", 1992, chapter 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.whatif.job_graph import JobGraph
from perfscope.analyzers.whatif.rank_graph import RankGraph
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput
from perfscope.measures.statistics import FEWEST_FOR_MEDIAN
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, distinct

#: Time between an event and the last thing that it waited for that is taken as its own: the device needs a few
#: microseconds to begin. What is longer has a cause that the trace does not show, and is left out.
_LONGEST_LAG_NS = 8 * NS_PER_US
#: A launch, and a call that waits, where the trace does not tell how long they take themselves.
_USUAL_CALL_NS = 5 * NS_PER_US
_LONGEST_LATENCY_NS = 20 * NS_PER_US


class RankTimes(Struct, frozen=True, eq=False):
    """The durations of one rank's graph, in nanoseconds; a scenario changes them.

    Attributes:
        event_ns: For each event how long it runs.
        lag_ns: For each event the time from the last thing that it waits for to its start.
        gap_ns: For each call the time of the host before it, since the call before it.
        call_ns: For each call its own time, without waiting for the device.
        return_ns: For each call the time from the end of the last event that it waits for to its own end.
        latency_ns: The shortest time from a launch to the start of its event.
    """

    event_ns: Int64
    lag_ns: Int64
    gap_ns: Int64
    call_ns: Int64
    return_ns: Int64
    latency_ns: int


class JobTimes(Struct, frozen=True, eq=False):
    """The durations of a job's graph.

    ``transfer_ns`` of an operation is the time from the arrival of its last rank; ``is_joined`` says whether its ranks
    wait for each other.
    """

    ranks: tuple[RankTimes, ...]
    transfer_ns: Int64
    is_joined: Bool

    def with_ranks(self, ranks: Sequence[RankTimes]) -> JobTimes:
        """The same with other durations of the ranks."""
        return replace(self, ranks=tuple(ranks))


class Replayed(Struct, frozen=True, eq=False):
    """The times of a replay on the first rank's clock: when each rank's events ended, and when its calls began."""

    end_ns: tuple[Int64, ...]
    call_start_ns: tuple[Int64, ...]


class _Runs(Struct):
    """The runs of one rank's events, by their first event, and what they wait for.

    Runs wait for the run before them on their stream, for ``sources`` on other streams, and for the ``part`` of the
    host's program that launches them. A part begins after the call that waited for ``part_sources``.
    """

    first: Int64
    part: Int64
    before: Int64
    run_of: Int64
    sources: dict[int, list[int]]
    parts: Int64
    part_sources: list[list[int]]


def measured_times(job: JobGraph) -> JobTimes:
    """The durations as they were measured."""
    return JobTimes(
        ranks=tuple(_rank_times(graph) for graph in job.ranks),
        transfer_ns=np.array([operation.transfer_ns for operation in job.operations], np.int64),
        is_joined=np.ones(len(job.operations), np.bool_),
    )


def _rank_times(graph: RankGraph) -> RankTimes:
    call_ns = graph.call_end_ns - graph.call_start_ns
    gap_ns = np.diff(graph.call_start_ns, prepend=graph.origin_ns)
    gap_ns[1:] -= call_ns[:-1]
    freed_ns = np.full(len(call_ns), np.iinfo(np.int64).min, np.int64)
    np.maximum.at(freed_ns, graph.host_call, graph.end_ns[graph.host_event])
    has_waited = freed_ns > graph.call_start_ns
    return_ns = np.where(has_waited, np.maximum(graph.call_end_ns - freed_ns, 0), 0)
    latency_ns = _latency(graph)
    return RankTimes(
        event_ns=graph.duration_ns,
        lag_ns=_lags(graph, latency_ns),
        gap_ns=gap_ns,
        call_ns=np.where(has_waited, np.minimum(call_ns, _USUAL_CALL_NS), call_ns),
        return_ns=return_ns,
        latency_ns=latency_ns,
    )


def _latency(graph: RankGraph) -> int:
    launched = graph.launch != ABSENT
    latency_ns = graph.start_ns[launched] - graph.call_start_ns[graph.launch[launched]]
    short_ns = latency_ns[(latency_ns > 0) & (latency_ns < _LONGEST_LATENCY_NS)]
    if not len(short_ns):
        return _USUAL_CALL_NS
    rank = (len(short_ns) - 1) // 20  # few are shorter; np.quantile would first import the masked arrays
    return int(np.partition(short_ns, rank)[rank])


def _lags(graph: RankGraph, latency_ns: int) -> Int64:
    """For each event the time from the last thing that it waited for to its start, as far as it is its own."""
    earliest_ns = np.full(len(graph.start_ns), np.iinfo(np.int64).min, np.int64)
    same_stream = np.flatnonzero(np.diff(graph.stream) == 0)
    earliest_ns[same_stream + 1] = graph.end_ns[same_stream]
    launched = graph.launch != ABSENT
    launch_ns = graph.call_start_ns[graph.launch[launched]] + latency_ns
    earliest_ns[launched] = np.maximum(earliest_ns[launched], launch_ns)
    np.maximum.at(earliest_ns, graph.wait_target, graph.end_ns[graph.wait_source])
    # Those of a CUDA graph may take until the host has handed over all of it.
    longest_ns = np.full(len(graph.start_ns), _LONGEST_LAG_NS, np.int64)
    in_graph = np.bincount(graph.launch[launched], minlength=len(graph.call_start_ns))[graph.launch[launched]] > 1
    handing_ns = (graph.call_end_ns - graph.call_start_ns)[graph.launch[launched]]
    longest_ns[launched] += np.where(in_graph, handing_ns, 0)
    lag_ns = np.clip(graph.start_ns - np.maximum(earliest_ns, graph.start_ns - longest_ns), 0, longest_ns)
    return np.asarray(np.where(launched, lag_ns, 0))


class JobReplay:
    """A job's graph, prepared to be run again with any durations."""

    def __init__(self, job: JobGraph) -> None:
        self.job = job
        self._operation_of: list[dict[int, int]] = [{} for _ in job.ranks]
        for number, operation in enumerate(job.operations):
            for position, event in operation.members:
                self._operation_of[position][event] = number
        self._runs = [
            _cut_into_runs(graph, np.array(sorted(joined), np.int64))
            for graph, joined in zip(job.ranks, self._operation_of, strict=True)
        ]
        self._order = _order_nodes(self._runs, self._operation_of)

    def run(self, times: JobTimes) -> Replayed:
        """Run the graph with these durations."""
        ranks = [
            _RankRun(graph, runs, rank_times, int(offset_ns))
            for graph, runs, rank_times, offset_ns in zip(
                self.job.ranks, self._runs, times.ranks, self.job.offset_ns, strict=True
            )
        ]
        arrival_ns: list[int] = [np.iinfo(np.int64).min] * len(self.job.operations)
        transfer_ns, is_joined = times.transfer_ns.tolist(), times.is_joined.tolist()
        for position, index, kind in self._order:
            if kind == _PART:
                ranks[position].start_part(index)
            elif kind == _RUN:
                ranks[position].finish_run(index)
            elif kind == _ARRIVAL:
                rank = ranks[position]
                number = self._operation_of[position][int(rank.runs.first[index])]
                if is_joined[number]:
                    arrival_ns[number] = max(arrival_ns[number], rank.arrive(index))
                else:
                    rank.finish_run(index)
            elif is_joined[index]:
                end_ns = arrival_ns[index] + transfer_ns[index]
                for member, event in self.job.operations[index].members:
                    ranks[member].end_of_run[int(ranks[member].runs.run_of[event])] = end_ns
        return Replayed(tuple(rank.event_ends() for rank in ranks), tuple(rank.call_starts() for rank in ranks))


_PART, _RUN, _ARRIVAL, _OPERATION = range(4)


def _cut_into_runs(graph: RankGraph, joined: Int64) -> _Runs:
    count = len(graph.start_ns)
    waiting_calls = np.array(distinct(graph.host_call), np.int64)
    parts = np.concatenate([np.zeros(1, np.int64), waiting_calls + 1])
    part = np.where(graph.launch == ABSENT, ABSENT, np.searchsorted(waiting_calls, graph.launch))
    is_first = np.ones(count, np.bool_)
    is_first[1:] = (np.diff(graph.stream) != 0) | (np.diff(part) != 0)
    is_first[graph.wait_target] = True
    is_first[joined] = True
    for last in (graph.wait_source, graph.host_event, joined):
        is_first[last[last + 1 < count] + 1] = True
    is_first[np.flatnonzero(graph.launch == ABSENT)] = True
    first = np.flatnonzero(is_first)
    run_of = np.cumsum(is_first) - 1
    before = np.arange(len(first)) - 1
    before[np.concatenate([[True], np.diff(graph.stream[first]) != 0])] = ABSENT
    sources: dict[int, list[int]] = {}
    for source, target in zip(run_of[graph.wait_source].tolist(), run_of[graph.wait_target].tolist(), strict=True):
        sources.setdefault(target, []).append(source)
    part_sources: list[list[int]] = [[] for _ in parts]
    numbers = np.searchsorted(waiting_calls, graph.host_call) + 1
    for number, run in zip(numbers.tolist(), run_of[graph.host_event].tolist(), strict=True):
        part_sources[number].append(run)
    return _Runs(first, part[first], before, run_of, sources, parts, part_sources)


_Node: TypeAlias = tuple[int, int, int]


def _order_nodes(runs_of_ranks: Sequence[_Runs], operation_of: Sequence[dict[int, int]]) -> list[_Node]:
    order: TopologicalSorter[_Node] = TopologicalSorter()
    for position, (runs, joined) in enumerate(zip(runs_of_ranks, operation_of, strict=True)):
        ends = [
            (0, joined[event], _OPERATION) if event in joined else (position, run, _RUN)
            for run, event in enumerate(runs.first.tolist())
        ]
        for number, sources in enumerate(runs.part_sources):
            before = [(position, number - 1, _PART)] if number else []
            order.add((position, number, _PART), *before, *(ends[run] for run in sources))
        for run, event in enumerate(runs.first.tolist()):
            node = (position, run, _ARRIVAL if event in joined else _RUN)
            waits = [(position, int(runs.part[run]), _PART)] if runs.part[run] != ABSENT else []
            if runs.before[run] != ABSENT:
                waits.append(ends[int(runs.before[run])])
            order.add(node, *waits, *(ends[source] for source in runs.sources.get(run, ())))
            if event in joined:
                order.add((0, joined[event], _OPERATION), node)
    try:
        return list(order.static_order())
    except CycleError:
        raise MissingInput("no order of its events is possible: what they wait for goes in a circle") from None


class _RankRun:
    def __init__(self, graph: RankGraph, runs: _Runs, times: RankTimes, offset_ns: int) -> None:
        self.runs = runs
        self._graph, self._times, self._offset_ns = graph, times, offset_ns
        self._prepare_host()
        self._prepare_runs()
        self.end_of_run: list[int] = [0] * len(runs.first)
        self._start_of_part = [0] * len(runs.parts)

    def _prepare_host(self) -> None:
        times, parts = self._times, self.runs.parts
        self._moment_ns = np.cumsum(times.gap_ns + np.concatenate([[0], times.call_ns[:-1]]))
        length = len(times.call_ns)
        part_of = np.searchsorted(parts, np.arange(length), side="right") - 1
        # A part begins at the end of the call that waited, before the gap of its first call.
        begin_ns = self._moment_ns[np.minimum(parts, length - 1)] - times.gap_ns[np.minimum(parts, length - 1)]
        self._part_of, self._since_ns = part_of, self._moment_ns - begin_ns[part_of]
        last = parts[1:] - 1
        self._waiting_end = (self._since_ns[last] + times.call_ns[last]).tolist()
        self._return_ns = times.return_ns[last].tolist()

    def _prepare_runs(self) -> None:
        graph, times, first = self._graph, self._times, self.runs.first
        self._work_ns = times.event_ns + times.lag_ns
        total_ns = np.cumsum(self._work_ns)
        before_ns = total_ns - self._work_ns
        launch = np.maximum(graph.launch, 0)
        self._ready_ns = np.where(
            graph.launch == ABSENT,
            graph.start_ns + self._offset_ns,
            self._since_ns[launch] + times.latency_ns,
        )
        last = np.concatenate([first[1:], [len(total_ns)]]) - 1
        self._sum: list[int] = (total_ns[last] - before_ns[first]).tolist()
        latest = np.maximum.reduceat(self._ready_ns - before_ns, first)
        self._since_host: list[int] = (latest + total_ns[last]).tolist()
        self._part: list[int] = self.runs.part.tolist()
        self._before: list[int] = self.runs.before.tolist()
        self._last_event: list[int] = times.event_ns[last].tolist()

    def start_part(self, number: int) -> None:
        if number == 0:
            self._start_of_part[0] = self._graph.origin_ns + self._offset_ns
            return
        own_end = self._start_of_part[number - 1] + self._waiting_end[number - 1]
        freed = max(self.end_of_run[run] for run in self.runs.part_sources[number]) + self._return_ns[number - 1]
        self._start_of_part[number] = max(own_end, freed)

    def finish_run(self, run: int) -> None:
        self.end_of_run[run] = self._end(run)

    def arrive(self, run: int) -> int:
        return self._end(run) - self._last_event[run]

    def _end(self, run: int) -> int:
        part = self._part[run]
        end_ns = self._since_host[run] + (self._start_of_part[part] if part != ABSENT else 0)
        freed = self._freed(run)
        return max(end_ns, max(freed) + self._sum[run]) if freed else end_ns

    def _freed(self, run: int) -> list[int]:
        freed = [self.end_of_run[source] for source in self.runs.sources.get(run, ())]
        if self._before[run] != ABSENT:
            freed.append(self.end_of_run[self._before[run]])
        return freed

    def call_starts(self) -> Int64:
        return np.array(self._start_of_part, np.int64)[self._part_of] + self._since_ns

    def event_ends(self) -> Int64:
        """When each event ended: counted back from the end of a run of one event, forwards in longer ones."""
        runs, launch = self.runs, self._graph.launch
        starts = np.array(self._start_of_part, np.int64)
        of_part = starts[np.maximum(runs.part[runs.run_of], 0)]
        ready_ns = self._ready_ns + np.where(launch == ABSENT, 0, of_part)
        result = np.array(self.end_of_run, np.int64)[runs.run_of]
        bounds = np.append(runs.first, len(result))
        for run in np.flatnonzero(np.diff(bounds) > 1).tolist():
            begin, end = int(bounds[run]), int(bounds[run + 1])
            total = np.cumsum(self._work_ns[begin:end])
            latest = np.maximum.accumulate(ready_ns[begin:end] - (total - self._work_ns[begin:end]))
            result[begin:end] = np.maximum(latest, max(self._freed(run), default=latest[0])) + total
        return result


class StepSpan(Struct, frozen=True):
    """The marked steps of a job on the first rank's clock, each from the end of the one before on the last rank.

    What was launched before the steps ends at ``start_ns``. ``last_rank`` is a position in the job's ranks.
    """

    start_ns: int
    end_ns: int
    last_rank: int
    last_event: int
    steps: int
    edges_ns: tuple[int, ...] = ()

    @property
    def _lengths_ns(self) -> Int64:
        return np.diff((self.start_ns, *self.edges_ns))

    @property
    def step_ns(self) -> float:
        """The time of one step: of three or more the median, because one may have been disturbed; else the mean."""
        lengths = self._lengths_ns
        if len(lengths) < FEWEST_FOR_MEDIAN:
            return (self.end_ns - self.start_ns) / self.steps
        return float(np.median(lengths))

    @property
    def standard_error_ns(self) -> float:
        """That of the time of a step, from how much the steps differ; 0 where there is one step alone."""
        lengths = self._lengths_ns
        return float(np.std(lengths, ddof=1) / math.sqrt(len(lengths))) if len(lengths) > 1 else 0.0


def measured_ends(job: JobGraph) -> tuple[Int64, ...]:
    """When each event of each rank ended, on the first rank's clock."""
    return tuple(graph.end_ns + offset_ns for graph, offset_ns in zip(job.ranks, job.offset_ns, strict=True))


def span_of_steps(job: JobGraph, ends_ns: Sequence[Int64]) -> StepSpan:
    """The marked steps, where events end at these times; MissingInput where ranks marked none, or different ones."""
    marks = {graph.marks for graph in job.ranks}
    if len(marks) != 1:
        raise MissingInput("the ranks marked different steps, which one replay cannot join")
    steps = len(marks.pop())
    if not steps:
        raise MissingInput("no step is marked: a replay needs ProfilerStep#N, as torch.profiler's step() marks them")
    begins, ends, lasts = [], [], []
    for graph, end_ns, offset_ns in zip(job.ranks, ends_ns, job.offset_ns, strict=True):
        own = np.flatnonzero(graph.step != ABSENT)
        if not len(own):
            raise MissingInput("no event of the device was launched in a marked step")
        before = launched_before(graph)
        begins.append(int(end_ns[before].max()) if before.any() else _first_moment(graph, own) + int(offset_ns))
        last = int(own[np.argmax(end_ns[own])])
        lasts.append(last)
        ends.append(int(end_ns[last]))
    last_rank = int(np.argmax(ends))
    return StepSpan(max(begins), ends[last_rank], last_rank, lasts[last_rank], steps, _edges_of_steps(job, ends_ns))


def _first_moment(graph: RankGraph, events: Int64) -> int:
    """When the steps of a rank begin whose trace shows nothing before them: the host waited for the device then."""
    first_ns = int(graph.start_ns[events].min())
    return first_ns if graph.first_mark_ns is None else min(first_ns, graph.first_mark_ns)


def _edges_of_steps(job: JobGraph, ends_ns: Sequence[Int64]) -> tuple[int, ...]:
    edges = []
    for step in job.ranks[0].marks:
        ends = [
            int(end_ns[graph.step == step].max())
            for graph, end_ns in zip(job.ranks, ends_ns, strict=True)
            if (graph.step == step).any()
        ]
        edges += [max(ends)] if ends else []
    return tuple(edges)


def launched_before(graph: RankGraph) -> Bool:
    """Which events of a rank were launched before its first marked step."""
    in_steps = graph.step != ABSENT
    first, begin_ns = graph.launch[in_steps].min(), graph.start_ns[in_steps].min()
    before = np.where(graph.launch == ABSENT, graph.start_ns < begin_ns, graph.launch < first)
    return np.asarray(~in_steps & before)
