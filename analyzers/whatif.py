"""What would make a step faster: the execution graph of a profiled step over all ranks, run again with changes.

First the graph is run with the durations that were measured. Its distance from the measured step is the method's error
on this job, and is printed with every answer. Then each scenario changes durations and runs it again. A second table
says what the steps waited for: the critical path through ranks, threads and streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.communication_changes import exposed_communication, free_communication
from perfscope.analyzers.replay.contention import Contention
from perfscope.analyzers.replay.critical_path import (
    HOST,
    LAUNCH,
    PathPart,
    find_critical_path,
    find_operators_on_path,
    path_shares,
    shares_by_cause,
)
from perfscope.analyzers.replay.host_changes import free_data_loading, free_host
from perfscope.analyzers.replay.measured import Measured, prepare
from perfscope.analyzers.replay.outlook import Outlook, apply_scenario, write_scenario
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import Replay, StepSpan, span_of_steps
from perfscope.analyzers.replay.scenarios import offered_scenarios, parse_scenario
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section, in_unit, percent, percent_of
from perfscope.tables.kernel_classes import short_name
from perfscope.tables.trace import Work

COMMUNICATION, LAUNCHES, SYNCHRONISATION, DATA = "communication", "launches", "synchronisation", "data loading"


@dataclass(frozen=True, slots=True)
class Blocking:
    """What one cause costs a step.

    Attributes:
        cause: The cause.
        blocking_ns: What a step takes less in a replay without it.
        exposed_ns: For communication the time of a step in which a rank communicates and computes nothing, of the rank
            where that is least; absent for other causes.
        contention_ns: For communication what it costs by slowing the kernels beside it, likewise.
    """

    cause: str
    blocking_ns: float
    exposed_ns: float | None = None
    contention_ns: float | None = None

    @property
    def order_ns(self) -> float | None:
        """The rest of the difference: a step would wait for something else, or waits for more than is exposed."""
        if self.exposed_ns is None or self.contention_ns is None:
            return None
        return self.blocking_ns - self.exposed_ns - self.contention_ns

    def data(self) -> dict[str, Json]:
        """One entry of ``blocking`` in JSON, for one step."""
        parts = {"exposed_us": self.exposed_ns, "contention_us": self.contention_ns, "order_us": self.order_ns}
        return {
            "cause": self.cause,
            "blocking_us": self.blocking_ns / NS_PER_US,
            **{name: None if value is None else value / NS_PER_US for name, value in parts.items()},
        }


def measure_blocking(measured: Measured) -> tuple[Blocking, ...]:
    """The blocking time of each cause that a job has."""
    found = []
    if any((graph.work == Work.COMMUNICATION).any() for graph in measured.job.ranks):
        found.append(_communication(measured))
    found.append(Blocking(LAUNCHES, _saved(measured, free_host)))
    if any(len(graph.host_call) for graph in measured.job.ranks):
        found.append(Blocking(SYNCHRONISATION, _without_synchronisation(measured)))
    with suppress(MissingInput):  # where there is no data loader
        found.append(Blocking(DATA, _saved(measured, free_data_loading)))
    return tuple(found)


def _saved(measured: Measured, change: Callable[[Measured, str], Changed]) -> float:
    changed = change(measured, "")
    return measured.replayed.step_ns - span_of_steps(measured.job, measured.replay.run(changed.times).end_ns).step_ns


def _communication(measured: Measured) -> Blocking:
    changed = free_communication(measured, "").times
    slow = [
        replace(free, event_ns=np.where(graph.work == Work.COMMUNICATION, free.event_ns, times.event_ns))
        for graph, free, times in zip(measured.job.ranks, changed.ranks, measured.times.ranks, strict=True)
    ]
    free_ns = span_of_steps(measured.job, measured.replay.run(changed).end_ns).step_ns
    slow_ns = span_of_steps(measured.job, measured.replay.run(changed.with_ranks(slow)).end_ns).step_ns
    exposed_ns = exposed_communication(measured.job.ranks) / measured.steps.steps
    return Blocking(COMMUNICATION, measured.replayed.step_ns - free_ns, exposed_ns, slow_ns - free_ns)


def _without_synchronisation(measured: Measured) -> float:
    """What a step takes less where no call of the host waits for the device."""
    nothing = np.zeros(0, np.int64)
    ranks = tuple(replace(graph, host_call=nothing, host_event=nothing) for graph in measured.job.ranks)
    job = replace(measured.job, ranks=ranks)
    return measured.replayed.step_ns - span_of_steps(job, Replay(job).run(measured.times).end_ns).step_ns


_MOST_OFFERED = 10
_MOST_PATH_ROWS = 12
_LARGEST_ERROR = 0.02
_FEWEST_STEPS = 3
#: A step with so much of its critical path on the host is bound by it.
_HOST_BOUND = 0.25
_OF_HOST = (HOST, LAUNCH)
#: What saves less than this share of a step is not offered.
_LEAST_SAVED = 0.001


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answers for one job.

    Attributes:
        measured: The steps as measured.
        exact: The steps of the replay with the measured durations.
        replayed: The steps that scenarios are compared with: without what the profiler costs the host, where known.
        undisturbed_ns: The time of a step that nobody profiled; absent where not known.
        overhead_ns: What the profiler was found to cost the host between two calls.
        is_overhead_known: Whether these steps told that cost; a usual one is taken otherwise.
        outlooks: The scenarios, those that save most first.
        path: The critical path of the replay.
        operators: Its nanoseconds by operator; absent where operators were not read.
        contention: What communication costs the kernels beside it.
        blocking: What each cause costs a step, by a replay without it.
        refused: Scenarios that the traces cannot answer, and why.
        notes: What could not be joined.
    """

    measured: StepSpan
    exact: StepSpan
    replayed: StepSpan
    undisturbed_ns: float | None
    overhead_ns: float
    is_overhead_known: bool
    outlooks: tuple[Outlook, ...]
    path: tuple[PathPart, ...]
    operators: dict[str, int] | None
    contention: tuple[Contention, ...]
    blocking: tuple[Blocking, ...]
    refused: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """How far the replay of the measured durations is from the measured step, as a share of it."""
        return self.exact.step_ns / self.measured.step_ns - 1

    def data(self) -> Json:
        """``results.whatif`` in JSON, and what ``perfscope whatif`` gives."""
        return {
            "measured_step_us": self.measured.step_ns / NS_PER_US,
            "replayed_step_us": self.exact.step_ns / NS_PER_US,
            "replay_error": self.error,
            "undisturbed_step_us": None if self.undisturbed_ns is None else self.undisturbed_ns / NS_PER_US,
            "compared_step_us": self.replayed.step_ns / NS_PER_US,
            "steps": self.measured.steps,
            "scenarios": [outlook.data(self.replayed.step_ns) for outlook in self.outlooks],
            "refused": [{"name": name, "reason": reason} for name, reason in self.refused],
            "critical_path": [part.data(self.replayed.steps) for part in self.path],
            "critical_path_shares": path_shares(self.path, self.operators),
            "contention": [item.data() for item in self.contention],
            "blocking": [item.data() for item in self.blocking],
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """The tables for people."""
        return (self._scenario_section(), self._path_section(), self._blocking_section(), *self._contention_sections())

    def _scenario_section(self) -> Section:
        columns = (
            Column("Scenario"),
            Column("Step (ms)", 2),
            Column("Saved (ms)", 2),
            Column("± (ms)", 2),
            Column("Change (%)"),
            Column("Meaning"),
        )
        measured = self.measured.step_ns
        rows: list[tuple[Cell, ...]] = [
            ("as measured", measured / NS_PER_MS, None, None, None, _count_steps(self.measured.steps))
        ]
        if self.overhead_ns and self.is_overhead_known:
            compared_ns = self.replayed.step_ns
            rows.append(
                ("without the profiler", compared_ns / NS_PER_MS, None, None, None, "what scenarios are compared with")
            )
        rows += [
            (
                outlook.name,
                outlook.step_ns / NS_PER_MS,
                outlook.saved_ns / NS_PER_MS,
                outlook.uncertain_ns / NS_PER_MS,
                percent(-outlook.saved_ns / self.replayed.step_ns),
                outlook.title,
            )
            for outlook in self.outlooks
        ]
        notes = [f"The replay of the measured durations is {self.error:+.2%} from the measured step."]
        if self.measured.steps < _FEWEST_STEPS:
            notes.append(
                f"{_count_steps(self.measured.steps).capitalize()}: with three or more the median counts, and one that "
                "was disturbed does not."
            )
        notes += self._describe_overhead() or self._warn_of_profiler()
        if abs(self.error) > _LARGEST_ERROR:
            notes.append("That is too far for what saves less: the graph misses something that this job waited for.")
        notes += self._list_assumptions()
        notes += [f"`{name}` is not answered: {reason}." for name, reason in self.refused]
        notes += self.notes
        return Section("What would make a step faster", columns, tuple(rows), tuple(notes))

    def _describe_overhead(self) -> list[str]:
        """How the host without the profiler was found, where steps that nobody profiled are known."""
        if self.undisturbed_ns is None:
            return []
        undisturbed = f"Steps that nobody profiled took {self.undisturbed_ns / NS_PER_MS:.2f} ms"
        if not self.overhead_ns:
            return [f"{undisturbed}: the host is taken as profiled."]
        if not self.is_overhead_known:
            return [
                f"{undisturbed}. They do not wait for the host, which is taken 30 % faster between calls than profiled."
            ]
        note = f"{undisturbed}: the host is taken {self.overhead_ns / NS_PER_US:.1f} us faster between two calls"
        left = self.replayed.step_ns / self.undisturbed_ns - 1
        return [f"{note}, which leaves {left:+.1%}."]

    def _warn_of_profiler(self) -> list[str]:
        """That the profiler may be what makes the host slow, where steps that nobody profiled are not known."""
        shares = shares_by_cause(self.path)
        of_host = sum(time_ns for cause, time_ns in shares.items() if cause in _OF_HOST) / max(sum(shares.values()), 1)
        if of_host < _HOST_BOUND:
            return []
        return [
            f"{percent(of_host):.0f} % of the critical path is the host's. The profiler slows hosts and may have made "
            "it so. `perfscope whatif RUN` of a run of `perfscope profile` compares with steps that nobody profiled."
        ]

    def _list_assumptions(self) -> list[str]:
        """Each assumption once, with the scenarios that rest on it."""
        names: dict[str, list[str]] = {}
        for outlook in self.outlooks:
            for assumption in outlook.assumptions:
                names.setdefault(assumption, []).append(f"`{outlook.name}`")
        return [f"{', '.join(scenarios)}: {assumption}" for assumption, scenarios in names.items()]

    def _path_section(self) -> Section:
        columns = (Column("Rank"), Column("Cause"), Column("Name"), Column("Of a step (ms)", 3), Column("Share (%)"))
        total = self.replayed.end_ns - self.replayed.start_ns
        rows = tuple(
            (
                part.rank,
                part.cause,
                short_name(part.name),
                part.time_ns / self.replayed.steps / NS_PER_MS,
                percent_of(part.time_ns, total),
            )
            for part in self.path[:_MOST_PATH_ROWS]
        )
        causes = ", ".join(
            f"{cause} {percent_of(time_ns, total):.1f} %" for cause, time_ns in shares_by_cause(self.path).items()
        )
        notes = [f"The critical path adds up to the step: {causes}."]
        if len(self.path) > len(rows):
            notes.append(f"{len(self.path) - len(rows)} more rows are in --format json.")
        return Section("Critical path", columns, rows, tuple(notes))

    def _blocking_section(self) -> Section:
        columns = (
            Column("Without"),
            Column("A step takes less (ms)", 3),
            Column("Exposed (ms)", 3),
            Column("Slowed kernels (ms)", 3),
            Column("Order (ms)", 3),
        )
        rows = tuple(
            (
                item.cause,
                item.blocking_ns / NS_PER_MS,
                in_unit(item.exposed_ns, NS_PER_MS),
                in_unit(item.contention_ns, NS_PER_MS),
                in_unit(item.order_ns, NS_PER_MS),
            )
            for item in self.blocking
        )
        notes = (
            "What a step waits for is more than is exposed where communication slows kernels, and less where the step "
            "would wait for something else in its place (order); the three add up.",
        )
        return Section("Blocking time", columns, rows, notes)

    def _contention_sections(self) -> tuple[Section, ...]:
        overlapped = [item for item in self.contention if item.overlapped_ns]
        if not overlapped:
            return ()
        columns = (
            Column("Kernels"),
            Column("Slowed by communication (%)"),
            Column("Beside communication (ms)", 2),
            Column("Compared kernels"),
        )
        rows = tuple(
            (item.kernels, percent(item.slowdown), item.overlapped_ns / NS_PER_MS, item.compared) for item in overlapped
        )
        notes = ("Against the same kernel with the same neighbours where no communication ran beside it.",)
        return (Section("Contention", columns, rows, notes),)


def _count_steps(count: int) -> str:
    return "1 marked step" if count == 1 else f"{count} marked steps"


def analyze(partials: Sequence[tuple[RankGraph, ...]]) -> WhatIf:
    """Replay a job with the scenarios that make sense for it.

    Raises:
        MissingInput: No step is marked, or the ranks marked different ones.
    """
    return answer(partials, ())


def answer(
    partials: Sequence[tuple[RankGraph, ...]], scenarios: Sequence[str], undisturbed_ns: float | None = None
) -> WhatIf:
    """Replay a job with scenarios, or with those that save most where none is named.

    Args:
        partials: The graphs of each trace.
        scenarios: What to try.
        undisturbed_ns: The time of a step that nobody profiled, where it is known: the host is taken as fast as there.

    Raises:
        MissingInput: No step is marked, or the ranks marked different ones.
        UsageError: A scenario does not exist, or names nothing.
    """
    measured = prepare([graph for partial in partials for graph in partial], undisturbed_ns)
    chosen = [parse_scenario(text) for text in scenarios] or offered_scenarios(measured.job)
    outlooks: list[Outlook] = []
    refused: list[tuple[str, str]] = []
    for scenario, value in chosen:
        try:
            outlooks.append(apply_scenario(measured, scenario, value))
        except MissingInput as missing:
            refused.append((write_scenario(scenario, value), missing.problem))
    outlooks.sort(key=lambda outlook: -outlook.saved_ns)
    if not scenarios:
        saving = [outlook for outlook in outlooks if outlook.saved_ns > _LEAST_SAVED * measured.replayed.step_ns]
        outlooks, refused = saving[:_MOST_OFFERED], []
    return WhatIf(
        measured=measured.steps,
        exact=measured.exact,
        replayed=measured.replayed,
        undisturbed_ns=measured.undisturbed_ns,
        overhead_ns=measured.overhead_ns,
        is_overhead_known=measured.is_overhead_known,
        outlooks=tuple(outlooks),
        path=find_critical_path(measured.job, measured.times, measured.base, measured.replayed),
        operators=find_operators_on_path(measured.job, measured.times, measured.base, measured.replayed),
        contention=measured.contention,
        blocking=measure_blocking(measured),
        refused=tuple(refused),
        notes=measured.job.notes,
    )
