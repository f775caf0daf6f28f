"""Changes of communication: free, faster, hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfscope.analyzers.replay.changes import Changed, divide, parse_factor
from perfscope.analyzers.replay.contention import Contention, without_contention
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import JobTimes, RankTimes
from perfscope.errors import UsageError
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import Work


def free_communication(measured: Measured, axis: str) -> Changed:
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


def faster_communication(measured: Measured, value: str) -> Changed:
    """Transfers take 1/x of their time; waiting for the last rank stays."""
    axis, _, factor = value.rpartition(":")
    times_faster = parse_factor("faster-communication", factor)
    ranks = [
        replace(times, event_ns=np.where(chosen, divide(times.event_ns, times_faster), times.event_ns))
        for times, chosen in zip(measured.times.ranks, _chosen(measured.job, axis), strict=True)
    ]
    is_faster = _chosen_operations(measured.job, axis)
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
    return Changed(changed, (_HIDDEN_CONTENTION,), least_ns)


_HIDDEN_CONTENTION = (
    "Kernels are as slow as they were measured: communication that is hidden only then would slow more of them."
)


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
