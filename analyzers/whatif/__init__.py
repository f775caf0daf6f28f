"""What would make a step faster: the execution graph of a profiled step over all ranks, run again with changes.

First the graph is run with the durations that were measured. Its distance from the measured step is the method's error
on this job, and is printed with every answer. Then each scenario changes durations and runs it again. A second table
says what the steps waited for: the critical path through ranks, threads and streams.

The critical path goes from the end of the last step back to its begin, always to what was waited for last. Its parts
add up to the time of the steps exactly. An event is on it for as long as it ran. The host is on it from the end of its
wait to the next launch. An operation of several ranks is on it for its transfer, and the rank that arrived last before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated

from perfscope.analyzers.whatif.job_graph import JobGraph
from perfscope.analyzers.whatif.rank_graph import RankGraph, build_rank_graph
from perfscope.analyzers.whatif.replay import JobTimes, Replayed, StepSpan
from perfscope.analyzers.whatif.scenarios import (
    NOTHING,
    Outlook,
    apply_scenario,
    offered_scenarios,
    parse_scenario,
    prepare,
    write_scenario,
)
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.measures.statistics import FEWEST_FOR_MEDIAN
from perfscope.report import MOST_ROWS, SMALLEST_CHANGE, Row, Section, percent
from perfscope.result import MS_OF_NS, PERCENT, Column, Doc, Figures, InUnit, InUnitIfKnown, Result, Table, figure
from perfscope.tables.columns import Int64
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

#: A step with so much of its critical path on the host is bound by it.
_HOST_BOUND = 0.25


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


class CriticalPath:
    """The critical path of the marked steps of a replayed job."""

    def __init__(self, job: JobGraph, times: JobTimes, replayed: Replayed, span: StepSpan) -> None:
        self._job, self._times, self._replayed, self._span = job, times, replayed, span
        self._time_ns = span.end_ns
        self._parts: Counter[tuple[int, str, str]] = Counter()
        self._waits = [_sources(graph.wait_target, graph.wait_source) for graph in job.ranks]
        self._host_waits = [_sources(graph.host_call, graph.host_event) for graph in job.ranks]
        self._operation_of = {member: number for number, item in enumerate(job.operations) for member in item.members}

    def parts(self) -> tuple[PathPart, ...]:
        """Its parts, the largest first."""
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


class RefusedScenario(Figures, frozen=True):
    """A change that the traces cannot answer."""

    name: Annotated[str, Doc("As ``--scenario`` takes it.")]
    reason: Annotated[str, Doc("Why.")]


class WhatIf(Result, frozen=True):
    """``results.whatif``: the execution graph of the profiled steps, run again with changes.

    ``exact`` is the replay with the measured durations. Scenarios are compared with ``replayed``, without what the
    profiler costs the host between two calls (``overhead_ns``), where that is known.
    """

    measured: StepSpan
    exact: StepSpan
    replayed: StepSpan
    undisturbed_ns: float | None
    overhead_ns: float
    scenarios: Annotated[tuple[Outlook, ...], Doc("Those that save most first.")]
    refused: Annotated[tuple[RefusedScenario, ...], Doc("What cannot be answered.")]
    critical_path: Annotated[tuple[PathPart, ...], Doc("What the step waited for, the largest part first.")]
    notes: Annotated[tuple[str, ...], Doc("What could not be joined.")]
    undisturbed_step_us = InUnitIfKnown(
        "undisturbed_ns", NS_PER_US, "A step that nobody profiled; None where not known."
    )
    measured_step_us = InUnit("measured.step_ns", NS_PER_US, "The median profiled step; of fewer than three the mean.")
    replayed_step_us = InUnit("exact.step_ns", NS_PER_US, "The same, replayed with the measured durations.")
    compared_step_us = InUnit("replayed.step_ns", NS_PER_US, "What scenarios are compared with, as ``replayed``.")

    TABLES = (
        Table(
            "What would make a step faster",
            "scenarios",
            (
                Column("Scenario", "name"),
                Column("Step (ms)", "step_ns", MS_OF_NS, 2),
                Column("Saved (ms)", "saved_ns", MS_OF_NS, 2),
                Column("± (ms)", "uncertain_ns", MS_OF_NS, 2),
                Column("Change (%)", "change", PERCENT),
                Column("Meaning", "title"),
            ),
        ),
        Table(
            "Critical path",
            "critical_path",
            (
                Column("Rank", "rank"),
                Column("Cause", "cause"),
                Column("Name", "name", short_name),
                Column("Of a step (ms)", lambda part: part.time_ns / part.steps / NS_PER_MS, None, 3),
                Column("Share (%)", "share", PERCENT),
            ),
        ),
    )

    @figure
    def steps(self) -> int:
        """Profiled steps."""
        return self.measured.steps

    @figure
    def replay_error(self) -> float:
        """``replayed_step_us / measured_step_us - 1``: the error of the method on this job."""
        return self.exact.step_ns / self.measured.step_ns - 1

    def sections(self) -> tuple[Section, ...]:
        """The scenarios, and the critical path."""
        offered, path = self.TABLES
        first: list[Row] = [
            ("as measured", self.measured.step_ns / NS_PER_MS, None, None, None, _count_steps(self.measured.steps))
        ]
        if self.overhead_ns:
            compared_ms = self.replayed.step_ns / NS_PER_MS
            first.append(("without the profiler", compared_ms, None, None, None, "what scenarios are compared with"))
        rows = (*first, *(offered.row(outlook) for outlook in self.scenarios))
        causes = self._causes()
        in_words = ", ".join(f"{cause} {percent(share):.1f} %" for cause, share in causes.items())
        return (
            offered.section((), tuple(self._scenario_notes(causes)), totals=rows),
            path.section(self.critical_path, (f"The critical path adds up to the step: {in_words}.",), most=MOST_ROWS),
        )

    def _causes(self) -> dict[str, float]:
        sums: Counter[str] = Counter()
        for part in self.critical_path:
            sums[part.cause] += part.time_ns
        return {cause: time_ns / sums.total() for cause, time_ns in sums.most_common()}

    def _scenario_notes(self, causes: dict[str, float]) -> Iterator[str]:
        yield f"The replay of the measured durations is {self.replay_error:+.2%} from the measured step."
        if self.measured.steps < FEWEST_FOR_MEDIAN:
            yield (
                f"{_count_steps(self.measured.steps).capitalize()}: with three or more the median counts, and one that "
                "was disturbed does not."
            )
        yield from self._describe_overhead(causes.get(HOST, 0.0) + causes.get(LAUNCH, 0.0))
        if abs(self.replay_error) > SMALLEST_CHANGE:
            yield "That is too far for what saves less: the graph misses something that this job waited for."
        names: defaultdict[str, list[str]] = defaultdict(list)
        for outlook in self.scenarios:
            for assumption in outlook.assumptions:
                names[assumption].append(f"`{outlook.name}`")
        yield from (f"{', '.join(scenarios)}: {assumption}" for assumption, scenarios in names.items())
        yield from (f"`{refused.name}` is not answered: {refused.reason}." for refused in self.refused)
        yield from self.notes

    def _describe_overhead(self, of_host: float) -> Iterator[str]:
        if self.undisturbed_ns is None:
            if of_host >= _HOST_BOUND:
                yield (
                    f"{percent(of_host):.0f} % of the critical path is the host's. The profiler slows hosts and may "
                    "have made it so. `perfscope whatif RUN` of a run of `perfscope profile` compares with steps that "
                    "nobody profiled."
                )
            return
        undisturbed = f"Steps that nobody profiled took {self.undisturbed_ns / NS_PER_MS:.2f} ms"
        if not self.overhead_ns:
            yield f"{undisturbed}: the host is taken as profiled."
        else:
            left = self.replayed.step_ns / self.undisturbed_ns - 1
            yield (
                f"{undisturbed}: the host is taken {self.overhead_ns / NS_PER_US:.1f} us faster between two calls, "
                f"which leaves {left:+.1%}."
            )


def _count_steps(count: int) -> str:
    return "1 marked step" if count == 1 else f"{count} marked steps"


def measure(trace: Trace) -> tuple[RankGraph, ...] | None:
    """The execution graph of each device of a trace; None where there is none."""
    graphs = [build_rank_graph(trace, device) for device in distinct(trace.device.device)]
    return tuple(graph for graph in graphs if graph is not None) or None


def analyze(partials: Sequence[tuple[RankGraph, ...]]) -> WhatIf:
    """Replay a job with the scenarios that make sense for it; raises as ``answer`` does."""
    return answer(partials, ())


def answer(
    partials: Sequence[tuple[RankGraph, ...]], scenarios: Sequence[str], undisturbed_ns: float | None = None
) -> WhatIf:
    """Replay a job with scenarios, or with those that save most where none is named.

    ``undisturbed_ns`` is the time of a step that nobody profiled, where known: the host is taken as fast as there.
    MissingInput where the ranks marked no step, or different ones; UsageError where a scenario names nothing.
    """
    measured = prepare([graph for partial in partials for graph in partial], undisturbed_ns)
    outlooks: list[Outlook] = []
    refused: list[RefusedScenario] = []
    for scenario, value in [parse_scenario(text) for text in scenarios] or offered_scenarios(measured.job):
        try:
            outlooks.append(apply_scenario(measured, scenario, value))
        except MissingInput as missing:
            refused.append(RefusedScenario(write_scenario(scenario, value), missing.problem))
    outlooks.sort(key=lambda outlook: -outlook.saved_ns)
    if not scenarios:
        saving = [outlook for outlook in outlooks if outlook.saved_ns > NOTHING * measured.replayed.step_ns]
        outlooks, refused = saving[:MOST_ROWS], []
    return WhatIf(
        measured=measured.steps,
        exact=measured.exact,
        replayed=measured.replayed,
        undisturbed_ns=measured.undisturbed_ns,
        overhead_ns=measured.overhead_ns,
        scenarios=tuple(outlooks),
        refused=tuple(refused),
        critical_path=CriticalPath(measured.job, measured.times, measured.base, measured.replayed).parts(),
        notes=measured.job.notes,
    )
