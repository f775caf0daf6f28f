"""Changes of a replayed job: what would a step take if communication were free, if no rank were late, and so on.

A scenario is written as ``NAME`` or ``NAME=VALUE``. Each one changes durations, or whether ranks wait for each other,
and leaves everything else as measured: what a change would do to the kernels that a library chooses, to clocks or to
memory is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analyzers.replay.contention import Contention, without_contention
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.peers import durations_of_peers
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import JobTimes, RankTimes
from perfscope.errors import MissingInput, UsageError
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import Work


@dataclass(frozen=True, slots=True)
class Measured:
    """What a scenario starts from.

    Attributes:
        job: The graph.
        times: Its durations as measured.
        contention: How much communication slows what runs beside it.
    """

    job: JobGraph
    times: JobTimes
    contention: tuple[Contention, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed job.

    Attributes:
        times: The changed durations.
        assumptions: What the answer rests on, as sentences.
        least_ns: The steps cannot take less than this, whatever the graph says; 0 where nothing else limits them.
    """

    times: JobTimes
    assumptions: tuple[str, ...]
    least_ns: int = 0


Change = Callable[[Measured, str], Changed]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of change.

    Attributes:
        name: What it is called.
        value: What stands behind ``=``, for people; ``""`` where nothing does.
        title: What it means, in a few words.
        change: Applies it.
        is_offered: Whether it is tried without being asked for.
    """

    name: str
    value: str
    title: str
    change: Change
    is_offered: bool = True


def _free_communication(measured: Measured, axis: str) -> Changed:
    """Communication takes no time, keeps no rank waiting, and slows nothing beside it."""
    ranks = []
    for graph, times, chosen in zip(measured.job.ranks, measured.times.ranks, _chosen(measured.job, axis), strict=True):
        alone_ns = without_contention(graph, measured.contention) if axis == "" else times.event_ns
        ranks.append(replace(times, event_ns=np.where(chosen, 0, alone_ns), lag_ns=np.where(chosen, 0, times.lag_ns)))
    is_free = _chosen_operations(measured.job, axis)
    changed = _without_transfers(measured, measured.times.with_ranks(ranks), is_free)
    return Changed(changed, (_describe_contention(measured.contention) if axis == "" else _AXIS_CONTENTION,))


def _without_transfers(measured: Measured, times: JobTimes, is_free: Bool) -> JobTimes:
    """Operations that take no time and keep no rank waiting, but for who receives: it needs what is sent."""
    is_needed = np.array([operation.is_point_to_point for operation in measured.job.operations], np.bool_)
    return replace(
        times,
        transfer_ns=np.where(is_free, 0, times.transfer_ns),
        is_joined=times.is_joined & ~(is_free & ~is_needed),
    )


_AXIS_CONTENTION = "Kernels beside this communication stay as slow as they were measured."


def _faster_communication(measured: Measured, value: str) -> Changed:
    """Transfers take 1/x of their time; waiting for the last rank stays."""
    axis, _, factor = value.rpartition(":")
    times_faster = _parse_factor("faster-communication", factor)
    ranks = [
        replace(times, event_ns=np.where(chosen, _divide(times.event_ns, times_faster), times.event_ns))
        for times, chosen in zip(measured.times.ranks, _chosen(measured.job, axis), strict=True)
    ]
    is_faster = _chosen_operations(measured.job, axis)
    transfer_ns = np.where(is_faster, _divide(measured.times.transfer_ns, times_faster), measured.times.transfer_ns)
    return Changed(replace(measured.times.with_ranks(ranks), transfer_ns=transfer_ns), (_AXIS_CONTENTION,))


def _perfect_overlap(measured: Measured, _value: str) -> Changed:
    """No kernel waits for communication: a step takes its computation, or its communication where that is longer."""
    ranks, least_ns = [], 0
    for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True):
        chosen = graph.work == Work.COMMUNICATION
        in_steps = chosen & (graph.step >= 0)
        transfer_ns = _transfers(measured, graph, times)
        least_ns = max(least_ns, int(transfer_ns[in_steps].sum()))
        ranks.append(
            replace(times, event_ns=np.where(chosen, 0, times.event_ns), lag_ns=np.where(chosen, 0, times.lag_ns))
        )
    every_one = np.ones(len(measured.job.operations), np.bool_)
    changed = _without_transfers(measured, measured.times.with_ranks(ranks), every_one)
    return Changed(changed, (_HIDDEN_CONTENTION,), least_ns)


_HIDDEN_CONTENTION = (
    "Kernels are as slow as they were measured: communication that is hidden only then would slow more of them."
)


def _free_launches(measured: Measured, _value: str) -> Changed:
    """The host needs no time between launches, as where CUDA graphs replay a step; it still waits where it waited."""
    ranks = []
    for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True):
        gap_ns = np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns)
        ranks.append(replace(times, gap_ns=gap_ns, call_ns=np.zeros_like(times.call_ns)))
    return Changed(
        measured.times.with_ranks(ranks), ("Waiting for data and for the device stays; a graph's own launch is free.",)
    )


def _free_data_loading(measured: Measured, _value: str) -> Changed:
    """The host never waits for the data loader."""
    ranks = [
        replace(times, gap_ns=times.gap_ns - np.minimum(np.maximum(times.gap_ns, 0), graph.data_wait_ns))
        for graph, times in zip(measured.job.ranks, measured.times.ranks, strict=True)
    ]
    if not any(graph.data_wait_ns.any() for graph in measured.job.ranks):
        raise MissingInput("the traces contain no `enumerate(DataLoader)`")
    return Changed(measured.times.with_ranks(ranks), ())


def _no_stragglers(measured: Measured, _value: str) -> Changed:
    """Every rank is at least as fast as the median of the others, its device and its host."""
    _require_peers(measured.job)
    changed = _faster_devices(measured, range(len(measured.job.ranks)))
    hosts = _host_peers(measured, range(len(measured.job.ranks)))
    ranks = [replace(times, gap_ns=host.gap_ns) for times, host in zip(changed.ranks, hosts, strict=True)]
    return Changed(changed.with_ranks(ranks), (_PEERS,))


_PEERS = (
    "Each kernel takes its own time or the median of the same kernel on the other ranks, whichever is less; work that "
    "the other ranks do not do takes none."
)


def _median_device(measured: Measured, value: str) -> Changed:
    """The device of one rank is as fast as the median of the others."""
    _require_peers(measured.job)
    return Changed(_faster_devices(measured, [_position(measured.job, value)]), (_PEERS,))


def _median_host(measured: Measured, value: str) -> Changed:
    """The host of one rank is as fast as the median of the others."""
    _require_peers(measured.job)
    return Changed(
        measured.times.with_ranks(_host_peers(measured, [_position(measured.job, value)])),
        ("The host's time of a step is that of the other ranks' median, in the same proportions.",),
    )


def _faster_kernels(measured: Measured, value: str) -> Changed:
    """Kernels whose name holds a text are x times faster."""
    text, _, factor = value.rpartition(":")
    times_faster = _parse_factor("faster-kernel", factor)
    is_named = [np.array([text.lower() in name.lower() for name in graph.names]) for graph in measured.job.ranks]
    chosen = [named[graph.name] for named, graph in zip(is_named, measured.job.ranks, strict=True)]
    if not text or not any(rows.any() for rows in chosen):
        raise UsageError(f"faster-kernel={value} names no kernel of the traces", hint="faster-kernel=gemm:1.5")
    ranks = [
        replace(times, event_ns=np.where(rows, _divide(times.event_ns, times_faster), times.event_ns))
        for times, rows in zip(measured.times.ranks, chosen, strict=True)
    ]
    return Changed(measured.times.with_ranks(ranks), ())


def _chosen(job: JobGraph, axis: str) -> list[Bool]:
    """For each rank the events of communication that serve an axis or a group; all of them where none is named."""
    chosen = []
    for graph in job.ranks:
        rows = graph.work == Work.COMMUNICATION
        if axis:
            rows = np.zeros(len(graph.work), np.bool_)
            for group, events in zip(graph.groups, graph.group_events, strict=True):
                if axis.lower() in (group.role.lower(), group.key.name.lower(), group.description.lower()):
                    rows[events] = True
        chosen.append(rows)
    if axis and not any(rows.any() for rows in chosen):
        roles = sorted({group.role or group.key.name for graph in job.ranks for group in graph.groups} - {""})
        raise UsageError(f"no communication of {axis!r}", hint=f"there is: {', '.join(roles) or 'none'}")
    return chosen


def _chosen_operations(job: JobGraph, axis: str) -> Bool:
    return np.array(
        [not axis or axis.lower() in (item.role.lower(), item.group.name.lower()) for item in job.operations], np.bool_
    )


def _transfers(measured: Measured, graph: RankGraph, times: RankTimes) -> Int64:
    """For each event its duration; for an operation of several ranks its transfer, without waiting."""
    position = measured.job.ranks.index(graph)
    transfer_ns = times.event_ns.copy()
    for operation, operation_ns in zip(measured.job.operations, measured.times.transfer_ns.tolist(), strict=True):
        for member, event in operation.members:
            if member == position:
                transfer_ns[event] = operation_ns
    return transfer_ns


def _faster_devices(measured: Measured, positions: Sequence[int]) -> JobTimes:
    peers = durations_of_peers(measured.job)
    ranks = list(measured.times.ranks)
    for position in positions:
        times = ranks[position]
        ranks[position] = replace(times, event_ns=np.minimum(times.event_ns, peers[position]))
    return measured.times.with_ranks(ranks)


def _host_peers(measured: Measured, positions: Sequence[int]) -> list[RankTimes]:
    """The hosts of some ranks, their time between calls scaled to the other ranks' median where that is less."""
    totals = [int(np.maximum(times.gap_ns, 0).sum()) for times in measured.times.ranks]
    ranks = list(measured.times.ranks)
    for position in positions:
        others = float(np.median(np.delete(totals, position)))
        if totals[position] > others:
            times = ranks[position]
            scale = others / totals[position]
            gap_ns = np.where(times.gap_ns > 0, np.rint(times.gap_ns * scale), times.gap_ns)
            ranks[position] = replace(times, gap_ns=gap_ns.astype(np.int64))
    return ranks


def _require_peers(job: JobGraph) -> None:
    if len(job.ranks) == 1:
        raise MissingInput("the traces of one rank cannot be compared with other ranks'")
    if job.is_pipeline:
        raise MissingInput("the stages of a pipeline do different work, so that their ranks are not compared")


def _position(job: JobGraph, value: str) -> int:
    ranks = [graph.rank for graph in job.ranks]
    if not value.isdigit() or int(value) not in ranks:
        raise UsageError(f"{value!r} is no rank of the traces", hint=f"ranks: {', '.join(map(str, ranks))}")
    return ranks.index(int(value))


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


def _describe_contention(contention: Sequence[Contention]) -> str:
    overlapped = [item for item in contention if item.overlapped_ns]
    if not overlapped:
        return "No kernel ran beside communication, so none was slowed by it."
    known = [f"{item.kernels} by {item.slowdown:.0%}" for item in overlapped if item.slowdown is not None]
    unknown = [item.kernels for item in overlapped if item.slowdown is None]
    sentences = (
        [f"Communication slows what runs beside it: {', '.join(known)}; without it they run alone."] if known else []
    )
    if unknown:
        sentences.append(f"How much it slows {' and '.join(unknown)} is unknown: none of them ever ran alone.")
    return " ".join(sentences)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("communication-free", "[AXIS]", "communication takes no time", _free_communication),
    Scenario("perfect-overlap", "", "all communication is hidden behind computation", _perfect_overlap),
    Scenario("faster-communication", "[AXIS:]X", "transfers are X times faster", _faster_communication),
    Scenario("launch-free", "", "the host launches without taking time (CUDA graphs)", _free_launches),
    Scenario("data-loading-free", "", "the host never waits for data", _free_data_loading),
    Scenario("no-stragglers", "", "no rank is slower than the others", _no_stragglers),
    Scenario("median-device", "RANK", "the device of a rank is as fast as the others'", _median_device),
    Scenario("median-host", "RANK", "the host of a rank is as fast as the others'", _median_host),
    Scenario("faster-kernel", "TEXT:X", "kernels with this text in their name are X times faster", _faster_kernels),
)


def parse_scenario(text: str) -> tuple[Scenario, str]:
    """The scenario that a text names, and its value.

    Raises:
        UsageError: There is none of that name.
    """
    name, _, value = text.partition("=")
    for scenario in SCENARIOS:
        if scenario.name == name:
            if bool(value) < (scenario.value != "" and not scenario.value.startswith("[AXIS]")):
                raise UsageError(f"{name} needs a value: {name}={scenario.value}")
            if value and not scenario.value:
                raise UsageError(f"{name} takes no value")
            return scenario, value
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    raise UsageError(f"there is no scenario {name!r}", hint=f"scenarios: {names}")


def offered_scenarios(job: JobGraph) -> list[tuple[Scenario, str]]:
    """The scenarios that make sense for a job without being asked for."""
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    offered = [(by_name[name], "") for name in ("launch-free", "data-loading-free")]
    roles = sorted({group.role for graph in job.ranks for group in graph.groups} - {""})
    if any((graph.work == Work.COMMUNICATION).any() for graph in job.ranks):
        offered += [(by_name["communication-free"], ""), (by_name["perfect-overlap"], "")]
        offered.append((by_name["faster-communication"], "2"))
        if len(roles) > 1:
            offered += [(by_name["communication-free"], role) for role in roles]
    if len(job.ranks) > 1 and not job.is_pipeline:
        offered.append((by_name["no-stragglers"], ""))
        for graph in job.ranks[:8]:
            offered += [(by_name[name], str(graph.rank)) for name in ("median-device", "median-host")]
    return offered
