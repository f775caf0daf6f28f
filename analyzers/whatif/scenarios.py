"""Changes of a replayed job: what would a step take if communication were free, if no rank were late, and so on.

A scenario is written as ``NAME`` or ``NAME=VALUE``. Each one changes durations, or whether ranks wait for each other,
and leaves everything else as measured. Effects on a library's choice of kernels, on clocks or on memory are not in it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.collectives.calls import GroupKey
from perfscope.analyzers.stragglers.lateness import MORE
from perfscope.analyzers.whatif.job_graph import JobGraph, join_ranks
from perfscope.analyzers.whatif.rank_graph import RankGraph
from perfscope.analyzers.whatif.replay import (
    JobReplay,
    JobTimes,
    RankTimes,
    Replayed,
    StepSpan,
    measured_ends,
    measured_times,
    span_of_steps,
)
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput, UsageError
from perfscope.report import MOST_ROWS, SMALLEST_CHANGE
from perfscope.result import Doc, Figures, InUnit, figure
from perfscope.tables.columns import Bool, Float64, Int64
from perfscope.tables.intervals import union
from perfscope.tables.trace import ABSENT, Work

#: Between two calls the host keeps at least this share of its time, and loses no more than so much.
_LEAST_KEPT = 0.4
_MOST_OVERHEAD_NS = 100.0 * NS_PER_US
#: Less than this share of a step is nothing.
NOTHING = 0.001


def calibrate(times: JobTimes, undisturbed_ns: float, step_of: Callable[[JobTimes], float]) -> tuple[JobTimes, float]:
    """Durations that give the step that nobody profiled, and what was taken off between two calls at most, in ns."""

    def take_off(overhead_ns: float) -> JobTimes:
        kept = ((rank, np.maximum(rank.gap_ns - overhead_ns, _LEAST_KEPT * rank.gap_ns)) for rank in times.ranks)
        return times.with_ranks(
            [
                replace(rank, gap_ns=np.where(rank.gap_ns > 0, np.rint(gap_ns), rank.gap_ns).astype(np.int64))
                for rank, gap_ns in kept
            ]
        )

    step_ns, middle = step_of(times), 0.0
    if step_ns <= undisturbed_ns * (1 + NOTHING):
        return times, 0.0
    target_ns = max(undisturbed_ns, step_of(take_off(_MOST_OVERHEAD_NS)) * (1 + NOTHING))
    least, most = 0.0, _MOST_OVERHEAD_NS
    while abs(step_ns / target_ns - 1) > NOTHING and most - least > 1:
        middle = (least + most) / 2
        step_ns = step_of(take_off(middle))
        least, most = (middle, most) if step_ns > target_ns else (least, middle)
    return take_off(middle), middle


class MeasuredJob(Struct, frozen=True):
    """What a scenario starts from.

    ``times`` are as measured, or of a host without the profiler where such steps are known. ``base`` and ``replayed``
    are the replay with these, ``exact`` is the replay with the measured durations. ``overhead_ns`` is what the profiler
    was found to cost the host between two calls.
    """

    job: JobGraph
    times: JobTimes
    replay: JobReplay
    base: Replayed
    steps: StepSpan
    exact: StepSpan
    replayed: StepSpan
    overhead_ns: float
    undisturbed_ns: float | None

    @property
    def error(self) -> float:
        """How far the replay of the measured durations is from the measured step, as a share of it."""
        return self.exact.step_ns / self.steps.step_ns - 1

    @property
    def uncertain_ns(self) -> float:
        """How far the replayed step may be off: the error of the replay, and the standard error of a measured step."""
        usual_ns = self.steps.step_ns if self.undisturbed_ns is None else self.undisturbed_ns
        return math.hypot(self.replayed.step_ns - usual_ns, self.steps.standard_error_ns)

    def span(self, times: JobTimes) -> StepSpan:
        """The marked steps of a replay with other durations."""
        return span_of_steps(self.job, self.replay.run(times).end_ns)


def prepare(graphs: Sequence[RankGraph], undisturbed_ns: float | None = None) -> MeasuredJob:
    """Join the graphs of a job's ranks, and replay it as measured, or as fast as a step that nobody profiled.

    MissingInput where there is no graph, or the ranks marked no step, or different ones.
    """
    if not graphs:
        raise MissingInput("no trace joins events of the device with their launches")
    job = join_ranks(graphs)
    replay, times = JobReplay(job), measured_times(job)
    steps = span_of_steps(job, measured_ends(job))
    exact = span_of_steps(job, replay.run(times).end_ns)
    overhead_ns = 0.0
    if undisturbed_ns is not None:
        times, overhead_ns = calibrate(
            times, undisturbed_ns, lambda changed: span_of_steps(job, replay.run(changed).end_ns).step_ns
        )
    base = replay.run(times)
    return MeasuredJob(
        job=job,
        times=times,
        replay=replay,
        base=base,
        steps=steps,
        exact=exact,
        replayed=span_of_steps(job, base.end_ns),
        overhead_ns=overhead_ns,
        undisturbed_ns=undisturbed_ns,
    )


#: Of what a scenario saves: how far predictions were from changes that were really made, besides what is known.
_UNSEEN = 0.2


class Changed(Struct, frozen=True):
    """A changed job, and what the answer rests on.

    A step takes ``added_ns`` more than its replay, and all steps at least ``least_ns``. ``doubt_ns`` is for what the
    traces do not show.
    """

    times: JobTimes
    assumptions: tuple[str, ...] = ()
    least_ns: int = 0
    added_ns: float = 0.0
    doubt_ns: float = 0.0


class Scenario(Struct, frozen=True):
    """One kind of change; a ``value`` in brackets may be left out.

    ``change`` raises MissingInput where the traces cannot answer it, and UsageError where the value names nothing.
    """

    name: str
    value: str
    title: str
    change: Callable[[MeasuredJob, str], Changed]


class Outlook(Figures, frozen=True):
    """A change, and the step that it would give.

    ``uncertain_ns`` is by the replay, by the spread of the measured steps, by what the scenario cannot know, and a
    fifth of the saving (reports/what-if.md).
    """

    name: Annotated[str, Doc("As ``--scenario`` takes it.")]
    title: Annotated[str, Doc("In words.")]
    step_ns: float
    saved_ns: float
    uncertain_ns: float
    replayed_ns: float
    assumptions: Annotated[tuple[str, ...], Doc("What it rests on.")]
    step_us = InUnit("step_ns", NS_PER_US, "The replayed step.")
    saved_us = InUnit("saved_ns", NS_PER_US, "What it saves of ``compared_step_us``.")

    @figure
    def interval_us(self) -> tuple[float, float]:
        """Least and most of ``step_us``."""
        return (self.step_ns - self.uncertain_ns) / NS_PER_US, (self.step_ns + self.uncertain_ns) / NS_PER_US

    @figure
    def change(self) -> float:
        """``-saved_us / compared_step_us``."""
        return -self.saved_ns / self.replayed_ns


def apply_scenario(measured: MeasuredJob, scenario: Scenario, value: str) -> Outlook:
    """Replay the job with a change; raises as ``Scenario.change`` does."""
    changed = scenario.change(measured, value)
    span, replayed_ns = measured.span(changed.times), measured.replayed.step_ns
    step_ns = max(span.step_ns + changed.added_ns, changed.least_ns / span.steps, 0.0)
    return Outlook(
        name=write_scenario(scenario, value),
        title=scenario.title,
        step_ns=step_ns,
        saved_ns=replayed_ns - step_ns,
        uncertain_ns=math.hypot(measured.uncertain_ns, changed.doubt_ns, _UNSEEN * (replayed_ns - step_ns)),
        replayed_ns=replayed_ns,
        assumptions=changed.assumptions,
    )


def write_scenario(scenario: Scenario, value: str) -> str:
    """A scenario as it is written."""
    return f"{scenario.name}={value}" if value else scenario.name


def parse_scenario(text: str) -> tuple[Scenario, str]:
    """The scenario that a text names, and its value; UsageError where there is none of that name."""
    name, _, value = text.partition("=")
    for scenario in SCENARIOS:
        if scenario.name == name:
            if not value and scenario.value and scenario.value[0] + scenario.value[-1] != "[]":
                raise UsageError(f"{name} needs a value: {name}={scenario.value}")
            if value and not scenario.value:
                raise UsageError(f"{name} takes no value")
            return scenario, value
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    raise UsageError(f"there is no scenario {name!r}", hint=f"scenarios: {names}")


def offered_scenarios(job: JobGraph) -> list[tuple[Scenario, str]]:
    """The scenarios that make sense for a job without being asked for: those that leave a step's work as it is."""
    texts = ["launch-free", "data-loading-free", "recomputation-off"]
    if any(graph.is_communication.any() for graph in job.ranks):
        texts += ["communication-free", "perfect-overlap", "faster-communication=2"]
        roles = sorted({group.role for graph in job.ranks for group in graph.groups} - {""})
        texts += [f"communication-free={role}" for role in roles if len(roles) > 1]
    if len(job.ranks) > 1:
        texts.append("no-stragglers")
        texts += [f"median-{part}={graph.rank}" for graph in job.ranks[:MOST_ROWS] for part in ("device", "host")]
    return [parse_scenario(text) for text in texts]


def _parse_factor(name: str, text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise UsageError(f"{name}={text}: the factor must be a positive number", hint=f"{name}=2 is twice as fast")
    return factor


def _divide(times_ns: Int64, factor: float) -> Int64:
    return np.rint(times_ns / factor).astype(np.int64)


# Communication

#: What kernels lose of the time that communication runs beside them: 34 to 41 % in DistributedDataParallel on two H200,
#: where NCCL holds 24 of 132 multiprocessors (reports/what-if.md); 19 % on average in arXiv 2507.03114.
_LOST_BESIDE = 0.4


def _free_communication(measured: MeasuredJob, axis: str) -> Changed:
    rows_of_ranks, ranks, hidden_ns = _choose_communication(measured.job, axis), [], 0
    for graph, times, chosen in zip(measured.job.ranks, measured.times.ranks, rows_of_ranks, strict=True):
        alone_ns = _without_contention(graph, chosen)
        ranks.append(replace(times, event_ns=np.where(chosen, 0, alone_ns), lag_ns=np.where(chosen, 0, times.lag_ns)))
        hidden_ns = max(hidden_ns, _communication_ns(graph, chosen) - _communication_ns(graph, chosen, is_exposed=True))
    changed = _without_transfers(measured, ranks, _operations_of(measured.job, rows_of_ranks))
    doubt_ns = _LOST_BESIDE * hidden_ns / measured.steps.steps
    sentence = f"Communication slows what runs beside it by {_LOST_BESIDE:.0%}; without it kernels run alone."
    return Changed(changed, (sentence if hidden_ns else _NOTHING_BESIDE,), doubt_ns=doubt_ns)


_NOTHING_BESIDE = "No kernel ran beside communication, so none was slowed by it."


def _without_contention(graph: RankGraph, removed: Bool) -> Int64:
    duration_ns, is_computing = graph.duration_ns.copy(), (graph.work == Work.COMPUTE) & (graph.step != ABSENT)
    own_ns, spans = duration_ns[is_computing], (graph.start_ns[is_computing], graph.end_ns[is_computing])
    shared_ns, removed_ns = (
        union(graph.start_ns[rows], graph.end_ns[rows]).measure_within(*spans)
        for rows in (graph.is_communication, removed)
    )
    alone_ns = own_ns / (1 + _LOST_BESIDE * shared_ns / np.maximum(own_ns, 1))
    lost_ns = (own_ns - alone_ns) * removed_ns / np.maximum(shared_ns, 1)
    duration_ns[is_computing] -= np.rint(lost_ns).astype(np.int64)
    return duration_ns


def _overlap_perfectly(measured: MeasuredJob, _value: str) -> Changed:
    transfer_ns = [times.event_ns.copy() for times in measured.times.ranks]
    for operation, operation_ns in zip(measured.job.operations, measured.times.transfer_ns.tolist(), strict=True):
        for position, event in operation.members:
            transfer_ns[position][event] = operation_ns
    ranks, least_ns = [], 0
    for graph, times, own_ns in zip(measured.job.ranks, measured.times.ranks, transfer_ns, strict=True):
        chosen = graph.is_communication
        least_ns = max(least_ns, int(own_ns[chosen & (graph.step != ABSENT)].sum()))
        ranks.append(
            replace(times, event_ns=np.where(chosen, 0, times.event_ns), lag_ns=np.where(chosen, 0, times.lag_ns))
        )
    # On the ranks that expose more, a part of it is waiting for the one that exposes least.
    exposed_ns = min(_communication_ns(graph, graph.is_communication, is_exposed=True) for graph in measured.job.ranks)
    lost_ns = _LOST_BESIDE * exposed_ns / measured.steps.steps
    sentence = f"Kernels lose {_LOST_BESIDE:.0%} of the time in which only then communication runs beside them."
    changed = _without_transfers(measured, ranks, np.ones(len(measured.job.operations), np.bool_))
    return Changed(changed, (sentence,), least_ns, added_ns=lost_ns, doubt_ns=lost_ns / 2)


def _faster_communication(measured: MeasuredJob, value: str) -> Changed:
    axis, _, factor = value.rpartition(":")
    times_faster = _parse_factor("faster-communication", factor)
    rows_of_ranks = _choose_communication(measured.job, axis)
    times = _speed_up(measured, rows_of_ranks, times_faster)
    is_faster = _operations_of(measured.job, rows_of_ranks)
    transfer_ns = np.where(is_faster, _divide(times.transfer_ns, times_faster), times.transfer_ns)
    sentence = "Kernels beside this communication stay as slow as they were measured."
    return Changed(replace(times, transfer_ns=transfer_ns), (sentence,))


def _choose_communication(job: JobGraph, chosen: str) -> list[Bool]:
    if not chosen:
        return [graph.is_communication for graph in job.ranks]
    rows_of_ranks, there = [], set()
    for graph in job.ranks:
        rows = np.zeros(len(graph.work), np.bool_)
        for group, events in zip(graph.groups, graph.group_events, strict=True):
            names = (group.role.lower(), group.key.name.lower(), group.description.lower())
            is_kind = np.array([chosen.lower() == kind.operation for kind in group.kinds], np.bool_)
            rows[events[is_kind[group.kind] | (chosen.lower() in names)]] = True
            there |= {group.role or group.key.name, *(kind.operation for kind in group.kinds)}
        rows_of_ranks.append(rows)
    if not any(rows.any() for rows in rows_of_ranks):
        raise UsageError(
            f"no communication of {chosen!r}", hint=f"there is: {', '.join(sorted(there - {''})) or 'none'}"
        )
    return rows_of_ranks


def _operations_of(job: JobGraph, rows_of_ranks: Sequence[Bool]) -> Bool:
    firsts = [operation.members[0] for operation in job.operations]
    return np.array([bool(rows_of_ranks[rank][event]) for rank, event in firsts], np.bool_)


def _without_transfers(measured: MeasuredJob, ranks: Sequence[RankTimes], is_free: Bool) -> JobTimes:
    """Operations that take no time and keep no rank waiting, but for who receives: it needs what is sent."""
    times = measured.times.with_ranks(ranks)
    is_needed = np.array([operation.is_point_to_point for operation in measured.job.operations], np.bool_)
    transfer_ns = np.where(is_free, 0, times.transfer_ns)
    return replace(times, transfer_ns=transfer_ns, is_joined=times.is_joined & ~(is_free & ~is_needed))


def _communication_ns(graph: RankGraph, chosen: Bool, *, is_exposed: bool = False) -> int:
    in_steps = graph.step != ABSENT
    communication = union(graph.start_ns[in_steps & chosen], graph.end_ns[in_steps & chosen])
    computing = in_steps & ((graph.work == Work.COMPUTE) | (graph.work == Work.FUSED))
    if is_exposed:
        communication = communication - union(graph.start_ns[computing], graph.end_ns[computing])
    return communication.measure


# Hosts

#: Between two kernels of a CUDA graph, of 575 kernels on an H200. Those that a host launches one by one follow each
#: other in twice that, however early they were launched.
_LAG_IN_GRAPH_NS = 600


def _free_launches(measured: MeasuredJob, value: str) -> Changed:
    changed = _free_host(measured, value)
    ranks = [replace(times, lag_ns=np.minimum(times.lag_ns, _LAG_IN_GRAPH_NS)) for times in changed.times.ranks]
    sentence = (
        "Waiting for data and for the device stays; a graph's own launch is free, and its kernels follow each other "
        f"within {_LAG_IN_GRAPH_NS / NS_PER_US} us."
    )
    return Changed(changed.times.with_ranks(ranks), (sentence,))


def _free_host(measured: MeasuredJob, _value: str) -> Changed:
    ranks = []
    for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True):
        gap_ns = np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns)
        ranks.append(replace(times, gap_ns=gap_ns, call_ns=np.zeros_like(times.call_ns)))
    return Changed(
        measured.times.with_ranks(ranks), ("Waiting for data and for the device stays; a graph's own launch is free.",)
    )


def _free_data_loading(measured: MeasuredJob, _value: str) -> Changed:
    if not any(graph.data_wait_ns.any() for graph in measured.job.ranks):
        raise MissingInput("the traces contain no `enumerate(DataLoader)`")
    return Changed(
        measured.times.with_ranks(
            [
                replace(times, gap_ns=times.gap_ns - np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns))
                for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True)
            ]
        )
    )


# Kernels


def _speed_up_kernels(measured: MeasuredJob, value: str) -> Changed:
    text, _, factor = value.rpartition(":")
    times_faster = _parse_factor("faster-kernel", factor)
    is_named = [np.array([text.lower() in name.lower() for name in graph.names]) for graph in measured.job.ranks]
    chosen = [named[graph.name] for named, graph in zip(is_named, measured.job.ranks, strict=True)]
    if not text or not any(rows.any() for rows in chosen):
        raise UsageError(f"faster-kernel={value} names no kernel of the traces", hint="faster-kernel=gemm:1.5")
    sentence = "The host launches as many kernels as before, in the same time."
    return Changed(_speed_up(measured, chosen, times_faster), (sentence,))


def _speed_up(measured: MeasuredJob, chosen: Sequence[Bool], times_faster: float) -> JobTimes:
    return measured.times.with_ranks(
        [
            replace(times, event_ns=np.where(rows, _divide(times.event_ns, times_faster), times.event_ns))
            for times, rows in zip(measured.times.ranks, chosen, strict=True)
        ]
    )


#: Five kernels in a row that ran in the forward pass in the same order are no accident, if three of them are different
#: ones, and if the whole part has two matrix products: what prepares gathered parameters repeats without any.
_LENGTH, _FEWEST_DIFFERENT, _FEWEST_PRODUCTS = 5, 3, 2
_PRODUCT = re.compile(r"gemm|nvjet|cutlass|wgmma|xmma|Cijk_|wgrad|dgrad|implicit_convolve", re.IGNORECASE)


def _drop_recomputation(measured: MeasuredJob, _value: str) -> Changed:
    recomputed = [find_recomputed(graph) for graph in measured.job.ranks]
    if not any(rows.any() for rows in recomputed):
        raise MissingInput("nothing was recomputed: no kernels of the forward pass run again in the backward pass")
    ranks = []
    for graph, times, rows in zip(measured.job.ranks, measured.times.ranks, recomputed, strict=True):
        calls = np.zeros(len(times.gap_ns), np.bool_)
        calls[graph.launch[rows]] = True
        ranks.append(
            replace(
                times,
                event_ns=np.where(rows, 0, times.event_ns),
                lag_ns=np.where(rows, 0, times.lag_ns),
                gap_ns=np.where(calls, np.minimum(times.gap_ns, 0), times.gap_ns),
                call_ns=np.where(calls, 0, times.call_ns),
            )
        )
    return Changed(measured.times.with_ranks(ranks), ("All activations fit into the memory of the device.",))


def find_recomputed(graph: RankGraph) -> Bool:
    """Which events of a rank repeat the forward pass of their step."""
    found = np.zeros(len(graph.name), np.bool_)
    computes = (graph.launch != ABSENT) & (graph.work == Work.COMPUTE)
    is_main = np.zeros(len(graph.name), np.bool_)
    is_main[computes] = graph.call_thread[graph.launch[computes]] == graph.main_thread
    is_product = np.array([_PRODUCT.search(name) is not None for name in graph.names], np.bool_)[graph.name]
    for step in graph.marks:
        rows = np.flatnonzero(computes & (graph.step == step))
        rows = rows[np.argsort(graph.launch[rows], kind="stable")]
        backward = rows[~is_main[rows]]
        if not len(backward):
            continue
        forward = rows[is_main[rows] & (graph.launch[rows] < graph.launch[backward].max())]
        repeats = find_repeats(graph.name[forward].tolist(), graph.name[backward].tolist())
        part = np.cumsum(np.diff(repeats, prepend=False))
        products = np.bincount(part, weights=repeats & is_product[backward])
        found[backward[repeats & (products[part] >= _FEWEST_PRODUCTS)]] = True
    return found


def find_repeats(forward: Sequence[int], backward: Sequence[int]) -> Bool:
    """Which positions of the second sequence lie in a part that occurs in the first one."""
    parts = {tuple(forward[at : at + _LENGTH]) for at in range(len(forward) - _LENGTH + 1)}
    repeats = np.zeros(len(backward), np.bool_)
    for at in range(len(backward) - _LENGTH + 1):
        part = tuple(backward[at : at + _LENGTH])
        if part in parts and len(set(part)) >= _FEWEST_DIFFERENT:
            repeats[at : at + _LENGTH] = True
    return repeats


# Ranks

_PEERS = (
    "Each kernel takes its own time or the median of the same kernel on the other ranks, whichever is less; work that "
    "the other ranks do not do takes none."
)
_HOSTS = "The host's n-th shortest time between two calls is at most that of the other ranks' median."
#: The axes of parallelism on which ranks of one stage of a pipeline differ.
_WITHIN_STAGES = ("DP", "TP", "CP", "EP")
_WAITING = "Kernels of the others that ran beside communication that waited for this rank take its time for them."


def _remove_stragglers(measured: MeasuredJob, _value: str) -> Changed:
    every_rank = range(len(measured.job.ranks))
    devices = _faster_devices(measured, every_rank, _ranks_of_same_work(measured.job))
    return Changed(_with_hosts_of(devices, _faster_hosts(measured, every_rank)), (_PEERS,))


def _take_median_device(measured: MeasuredJob, value: str) -> Changed:
    position = _position(measured.job, value)
    return Changed(
        _faster_devices(measured, [position], _ranks_of_same_work(measured.job, position)), (_PEERS, _WAITING)
    )


def _take_median_host(measured: MeasuredJob, value: str) -> Changed:
    hosts = _faster_hosts(measured, [_position(measured.job, value)])
    try:
        devices = _faster_devices(measured, (), _ranks_of_same_work(measured.job))
    except MissingInput:  # stages of one pipeline
        return Changed(_with_hosts_of(measured.times, hosts), (_HOSTS,))
    return Changed(_with_hosts_of(devices, hosts), (_HOSTS, _WAITING))


def _with_hosts_of(times: JobTimes, hosts: Sequence[RankTimes]) -> JobTimes:
    return times.with_ranks([replace(own, gap_ns=host.gap_ns) for own, host in zip(times.ranks, hosts, strict=True)])


def _position(job: JobGraph, value: str) -> int:
    ranks = [graph.rank for graph in job.ranks]
    if not value.isdigit() or int(value) not in ranks:
        raise UsageError(f"{value!r} is no rank of the traces", hint=f"ranks: {', '.join(map(str, ranks))}")
    return ranks.index(int(value))


def _ranks_of_same_work(job: JobGraph, position: int | None = None) -> list[list[int]]:
    if len(job.ranks) == 1:
        raise MissingInput("the traces of one rank cannot be compared with other ranks'")
    stage = [rank if job.is_pipeline else 0 for rank in range(len(job.ranks))]
    members: defaultdict[GroupKey, set[int]] = defaultdict(set)
    for rank, graph in enumerate(job.ranks):
        for group in graph.groups:
            if group.role in _WITHIN_STAGES:
                members[group.key].add(rank)
    for group_ranks in members.values():
        joined = {stage[rank] for rank in group_ranks}
        stage = [min(joined) if number in joined else number for number in stage]
    same = [[rank for rank, number in enumerate(stage) if number == own] for own in sorted(set(stage))]
    same = [ranks for ranks in same if len(ranks) > 1]
    if not same or (position is not None and not any(position in ranks for ranks in same)):
        raise MissingInput("each rank is a stage of a pipeline of its own: no other rank does the same work")
    return same


def _faster_devices(measured: MeasuredJob, positions: Collection[int], groups: Sequence[Sequence[int]]) -> JobTimes:
    """Devices that take their peers' times where these are clearly less.

    On the other ranks that holds for kernels beside communication: what waits for a slow rank slows them.
    """
    peers = [graph.duration_ns.copy() for graph in measured.job.ranks]
    for group in groups:
        for step in measured.job.ranks[0].marks:
            _compare_step([measured.job.ranks[at] for at in group], step, [peers[at] for at in group])
    ranks = list(measured.times.ranks)
    for position, (graph, times) in enumerate(zip(measured.job.ranks, ranks, strict=True)):
        chosen = times.event_ns > MORE * peers[position]
        if position not in positions:
            communicating = union(graph.start_ns[graph.is_communication], graph.end_ns[graph.is_communication])
            chosen &= communicating.measure_within(graph.start_ns, graph.end_ns) > 0
        ranks[position] = replace(times, event_ns=np.where(chosen, peers[position], times.event_ns))
    return measured.times.with_ranks(ranks)


def _compare_step(ranks: Sequence[RankGraph], step: int, durations: Sequence[Int64]) -> None:
    """Set for each event of a step but communication what the same work takes on the other ranks: their median.

    It is 0 for work that the rank with the fewest events does not do.
    """
    rows, names = [], []
    numbers: dict[str, int] = {}
    for graph in ranks:
        own = np.flatnonzero((graph.step == step) & ~graph.is_communication)
        rows.append(own[np.argsort(graph.launch[own], kind="stable")])
        names.append([numbers.setdefault(graph.names[name], len(numbers)) for name in graph.name[rows[-1]]])
    reference = min(names, key=len)
    table: Float64 = np.full((len(ranks), len(reference)), np.nan)
    matches = [_match_names(reference, own) for own in names]
    for position, (graph, own, (common, matching)) in enumerate(zip(ranks, rows, matches, strict=True)):
        table[position, common] = graph.duration_ns[own[matching]]
    for position, (own, (common, matching)) in enumerate(zip(rows, matches, strict=True)):
        durations[position][np.delete(own, matching)] = 0
        others = np.delete(table, position, axis=0)[:, common]
        has_peer = ~np.isnan(others).all(axis=0)
        durations[position][own[matching[has_peer]]] = np.nanmedian(others[:, has_peer], axis=0)


def _match_names(reference: list[int], names: list[int]) -> tuple[Int64, Int64]:
    if reference == names:
        return np.arange(len(reference)), np.arange(len(names))
    blocks = SequenceMatcher(None, reference, names, autojunk=False).get_matching_blocks()
    common = [np.arange(block.a, block.a + block.size) for block in blocks]
    matching = [np.arange(block.b, block.b + block.size) for block in blocks]
    return np.concatenate(common), np.concatenate(matching)


def _faster_hosts(measured: MeasuredJob, positions: Collection[int]) -> list[RankTimes]:
    """Hosts whose n-th shortest time between calls is at most that of the other ranks' median.

    A host that is slow everywhere is made faster everywhere, and one that slept once no longer does.
    """
    # Before its first call each rank waits for its own profiler, which says nothing about its host.
    gaps = [np.sort(np.maximum(times.gap_ns[1:], 0)) for times in measured.times.ranks]
    first_ns = [max(int(times.gap_ns[0]), 0) for times in measured.times.ranks]
    ranks = list(measured.times.ranks)
    if len(ranks) == 1:
        raise MissingInput("the traces of one rank cannot be compared with other ranks'")
    for position in positions:
        times, own = ranks[position], gaps[position]
        places = np.linspace(0, 1, len(own))
        others = [
            np.interp(places, np.linspace(0, 1, len(gap)), gap)
            for other, gap in enumerate(gaps)
            if other != position and len(gap)
        ]
        if not others or not len(own) or own.sum() <= np.median([other.sum() for other in others]):
            continue
        expected = np.minimum(own, np.rint(np.median(others, axis=0))).astype(np.int64)
        order = 1 + np.argsort(np.maximum(times.gap_ns[1:], 0), kind="stable")
        gap_ns = times.gap_ns.copy()
        gap_ns[0] = min(first_ns[position], round(float(np.median(np.delete(first_ns, position)))))
        gap_ns[order] = np.where(times.gap_ns[order] > 0, expected, times.gap_ns[order])
        ranks[position] = replace(times, gap_ns=gap_ns)
    return ranks


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("communication-free", "[AXIS]", "communication takes no time", _free_communication),
    Scenario("perfect-overlap", "", "all communication is hidden behind computation", _overlap_perfectly),
    Scenario("faster-communication", "[AXIS:]X", "transfers are X times faster", _faster_communication),
    Scenario("launch-free", "", "the host launches without taking time (CUDA graphs)", _free_launches),
    Scenario("data-loading-free", "", "the host never waits for data", _free_data_loading),
    Scenario("no-stragglers", "", "no rank is slower than the others", _remove_stragglers),
    Scenario("median-device", "RANK", "the device of a rank is as fast as the others'", _take_median_device),
    Scenario("median-host", "RANK", "the host of a rank is as fast as the others'", _take_median_host),
    Scenario("faster-kernel", "TEXT:X", "kernels with this text in their name are X times faster", _speed_up_kernels),
    Scenario("recomputation-off", "", "activations are kept, not computed again", _drop_recomputation),
)
#: What launches cost where a fix regains more: a CUDA graph also lets kernels follow each other faster.
_FREE_HOST = Scenario("launch-free", "", "the host launches without taking time", _free_host)


class Regain(Struct, frozen=True):
    """What a replay of the profiled steps without a finding's cause saves of a step, and how far that may be off.

    Less than ``noise_ns`` is no saving.
    """

    saved_ns: float
    uncertain_ns: float
    noise_ns: float


class Fixes:
    """Answers what fixes of one job regain, from the graphs of its traces; ``undisturbed_ns`` is as in ``prepare``."""

    def __init__(self, partials: Sequence[tuple[RankGraph, ...]], undisturbed_ns: float | None = None) -> None:
        self._graphs = [graph for partial in partials for graph in partial]
        self._undisturbed_ns = undisturbed_ns

    @cached_property
    def _measured(self) -> MeasuredJob | None:
        try:
            return prepare(self._graphs, self._undisturbed_ns)
        except MissingInput:
            return None

    def regain(self, fix: str) -> Regain | None:
        """What a scenario such as ``communication-free=DP`` saves; None where the traces cannot answer it."""
        measured = self._measured
        if measured is None or abs(measured.error) > SMALLEST_CHANGE:
            return None  # it misses something that the job waited for
        try:
            outlook = apply_scenario(measured, *((_FREE_HOST, "") if fix == _FREE_HOST.name else parse_scenario(fix)))
        except (MissingInput, UsageError):
            return None
        return Regain(outlook.saved_ns, outlook.uncertain_ns, measured.uncertain_ns)
