"""Changes of communication: free, faster, hidden."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.changes import Changed, divide, parse_factor
from perfscope.analyzers.replay.contention import Contention, lost_beside, without_contention
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import JobTimes, RankTimes
from perfscope.analyzers.shared.intervals import union
from perfscope.errors import UsageError
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Work


def free_communication(measured: Measured, axis: str) -> Changed:
    """Communication takes no time, keeps no rank waiting, and slows nothing beside it."""
    rows_of_ranks = choose_communication(measured.job, axis)
    changed = without_communication(measured, rows_of_ranks)
    return Changed(
        changed, (_describe_contention(measured.contention),), doubt_ns=_doubt_of_hidden(measured, rows_of_ranks)
    )


def _doubt_of_hidden(measured: Measured, rows_of_ranks: Sequence[Bool]) -> float:
    """How far a step may be off for what communication that is taken away cost the kernels beside it."""
    hidden_ns = max(_hidden_ns(graph, rows) for graph, rows in zip(measured.job.ranks, rows_of_ranks, strict=True))
    return _HIDDEN_DOUBT * hidden_ns / measured.steps.steps


#: Of the time that communication ran beside kernels: how much more or less than was measured these may lose by it.
_HIDDEN_DOUBT = 0.5


def _hidden_ns(graph: RankGraph, chosen: Bool) -> int:
    """How long some communication of marked steps ran beside computation."""
    in_steps = graph.step != ABSENT
    computing = in_steps & ((graph.work == Work.COMPUTE) | (graph.work == Work.FUSED))
    communication = union(graph.start_ns[in_steps & chosen], graph.end_ns[in_steps & chosen])
    return communication.measure - (communication - union(graph.start_ns[computing], graph.end_ns[computing])).measure


def without_communication(measured: Measured, rows_of_ranks: Sequence[Bool]) -> JobTimes:
    """The durations without some events of communication: they take no time, keep no rank waiting, slow nothing."""
    ranks = []
    for graph, times, chosen in zip(measured.job.ranks, measured.times.ranks, rows_of_ranks, strict=True):
        alone_ns = without_contention(graph, measured.contention, chosen)
        ranks.append(replace(times, event_ns=np.where(chosen, 0, alone_ns), lag_ns=np.where(chosen, 0, times.lag_ns)))
    is_free = operations_of(measured.job, rows_of_ranks)
    return _without_transfers(measured, measured.times.with_ranks(ranks), is_free)


def _without_transfers(measured: Measured, times: JobTimes, is_free: Bool) -> JobTimes:
    """Operations that take no time and keep no rank waiting, but for who receives: it needs what is sent."""
    is_needed = np.array([operation.is_point_to_point for operation in measured.job.operations], np.bool_)
    return replace(
        times,
        transfer_ns=np.where(is_free, 0, times.transfer_ns),
        is_joined=times.is_joined & ~(is_free & ~is_needed),
    )


_AXIS_CONTENTION = "Kernels beside this communication stay as slow as they were measured."


def faster_communication(measured: Measured, value: str) -> Changed:
    """Transfers take 1/x of their time; waiting for the last rank stays."""
    axis, _, factor = value.rpartition(":")
    times_faster = parse_factor("faster-communication", factor)
    rows_of_ranks = choose_communication(measured.job, axis)
    ranks = [
        replace(times, event_ns=np.where(chosen, divide(times.event_ns, times_faster), times.event_ns))
        for times, chosen in zip(measured.times.ranks, rows_of_ranks, strict=True)
    ]
    is_faster = operations_of(measured.job, rows_of_ranks)
    transfer_ns = np.where(is_faster, divide(measured.times.transfer_ns, times_faster), measured.times.transfer_ns)
    return Changed(replace(measured.times.with_ranks(ranks), transfer_ns=transfer_ns), (_AXIS_CONTENTION,))


def overlap_perfectly(measured: Measured, _value: str) -> Changed:
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
    lost = lost_beside(measured.job.ranks, measured.contention)
    newly_ns = exposed_communication(measured.job.ranks) / measured.steps.steps
    if lost is None:
        return Changed(changed, (_UNKNOWN_CONTENTION,), least_ns)
    sentence = (
        f"Kernels lose {lost:.0%} of the time that communication runs beside them, what is hidden only then, too."
    )
    return Changed(changed, (sentence,), least_ns, added_ns=lost * newly_ns, doubt_ns=lost * newly_ns / 2)


_UNKNOWN_CONTENTION = (
    "Kernels are as slow as they were measured: communication that is hidden only then would slow more of them."
)


def exposed_communication(ranks: Sequence[RankGraph]) -> int:
    """How long a rank communicates in marked steps while it computes nothing; of the rank where it is least.

    On the others a part of this time is waiting for that rank.
    """
    exposed = []
    for graph in ranks:
        in_steps = graph.step != ABSENT
        chosen = in_steps & (graph.work == Work.COMMUNICATION)
        computing = in_steps & ((graph.work == Work.COMPUTE) | (graph.work == Work.FUSED))
        communication = union(graph.start_ns[chosen], graph.end_ns[chosen])
        exposed.append((communication - union(graph.start_ns[computing], graph.end_ns[computing])).measure)
    return min(exposed, default=0)


def choose_communication(job: JobGraph, chosen: str) -> list[Bool]:
    """For each rank its events of an axis, a group or a collective; all communication where none is named.

    Raises:
        UsageError: There is none of that name.
    """
    if not chosen:
        return [graph.work == Work.COMMUNICATION for graph in job.ranks]
    rows_of_ranks = []
    for graph in job.ranks:
        rows = np.zeros(len(graph.work), np.bool_)
        for group, events in zip(graph.groups, graph.group_events, strict=True):
            names = (group.role.lower(), group.key.name.lower(), group.description.lower())
            is_kind = np.array([chosen.lower() == kind.operation for kind in group.kinds], np.bool_)
            rows[events[is_kind[group.kind] | (chosen.lower() in names)]] = True
        rows_of_ranks.append(rows)
    if not any(rows.any() for rows in rows_of_ranks):
        groups = [group for graph in job.ranks for group in graph.groups]
        there = {group.role or group.key.name for group in groups}
        there |= {kind.operation for group in groups for kind in group.kinds}
        raise UsageError(
            f"no communication of {chosen!r}", hint=f"there is: {', '.join(sorted(there - {''})) or 'none'}"
        )
    return rows_of_ranks


def operations_of(job: JobGraph, rows_of_ranks: Sequence[Bool]) -> Bool:
    """Which operations of several ranks are made of these events."""
    return np.array([bool(rows_of_ranks[item.members[0][0]][item.members[0][1]]) for item in job.operations], np.bool_)


def _transfers(measured: Measured, graph: RankGraph, times: RankTimes) -> Int64:
    """For each event its duration; for an operation of several ranks its transfer, without waiting."""
    position = measured.job.ranks.index(graph)
    transfer_ns = times.event_ns.copy()
    for operation, operation_ns in zip(measured.job.operations, measured.times.transfer_ns.tolist(), strict=True):
        for member, event in operation.members:
            if member == position:
                transfer_ns[event] = operation_ns
    return transfer_ns


def _describe_contention(contention: Sequence[Contention]) -> str:
    overlapped = [item for item in contention if item.overlapped_ns]
    if not overlapped:
        return "No kernel ran beside communication, so none was slowed by it."
    known = [f"{item.kernels} by {item.slowdown:.0%}" for item in overlapped if item.slowdown is not None]
    unknown = [item.kernels for item in overlapped if item.slowdown is None]
    sentences = (
        [f"Communication slows what runs beside it: {', '.join(known)}; without it they run alone."] if known else []
    )
    expected = [
        f"{item.kernels} by {item.estimate:.0%}" for item in overlapped if item.slowdown is None and item.estimate
    ]
    if expected:
        sentences.append(
            f"It slows {' and '.join(expected)} by the multiprocessors that it holds: none of them ever ran alone."
        )
    elif unknown:
        sentences.append(f"How much it slows {' and '.join(unknown)} is unknown: none of them ever ran alone.")
    return " ".join(sentences)
