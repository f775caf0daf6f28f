"""More nodes: collectives among more ranks, by the bandwidth and latency that were measured. An extrapolation."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.replay.accumulation import parse_count
from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.joined_operations import Operation
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.steps import span_of_steps
from perfscope.analyzers.replay.transfer_times import fit_transfer_times, scale_to_ranks
from perfscope.errors import MissingInput
from perfscope.tables.columns import Int64

#: Groups that have more members on more nodes: those of data parallelism; others stay on their nodes.
_GROWING = ("", "DP", "world")


def add_nodes(measured: Measured, value: str) -> Changed:
    """The job on so many nodes, every rank with as much work as now."""
    wanted = parse_count("nodes", value)
    nodes = max(len({graph.host for graph in measured.job.ranks}), 1)
    growing: dict[tuple[object, str], list[int]] = defaultdict(list)
    for number, operation in enumerate(measured.job.operations):
        if operation.role in _GROWING and not operation.is_point_to_point and len(operation.members) > 1:
            growing[operation.group, operation.kind.operation].append(number)
    if not growing:
        raise MissingInput("the traces show no collective of data parallelism among several ranks")
    transfer_ns = measured.times.transfer_ns.copy()
    unknown: set[str] = set()
    for (_, name), numbers in growing.items():
        operations = [measured.job.operations[number] for number in numbers]
        if not _rescale(operations, np.asarray(numbers, np.int64), transfer_ns, wanted / nodes):
            unknown.add(f"{name or 'collectives'} whose size is not stated")
    changed = replace(measured.times, transfer_ns=transfer_ns)
    slower = replace(measured.times, transfer_ns=np.maximum(2 * transfer_ns, measured.times.transfer_ns))
    step_ns = span_of_steps(measured.job, measured.replay.run(changed).end_ns).step_ns
    doubled_ns = span_of_steps(measured.job, measured.replay.run(slower).end_ns).step_ns
    is_new_link = nodes == 1 and wanted > 1
    sentences = [
        f"An extrapolation from {nodes} {'node' if nodes == 1 else 'nodes'} to {wanted}: collectives keep the latency "
        "of a round and the bus bandwidth that were measured; every rank has as much work as now.",
        f"The interval reaches to half of that bandwidth{_NEW_LINK if is_new_link else '.'}",
    ]
    if unknown:
        sentences.append(f"Taken as measured: {', '.join(sorted(unknown))}.")
    return Changed(changed, tuple(sentences), doubt_ns=max(0.0, doubled_ns - step_ns))


_NEW_LINK = ", because no link between nodes was measured."


def _rescale(operations: list[Operation], numbers: Int64, transfer_ns: Int64, growth: float) -> bool:
    """Scale the transfers of operations of one kind; whether the kind has a formula."""
    if any(operation.kind.bytes <= 0 for operation in operations):
        return False
    times = fit_transfer_times(operations, transfer_ns[numbers])
    for number, operation in zip(numbers.tolist(), operations, strict=True):
        ranks = len(operation.members)
        wanted = max(round(ranks * growth), 1)
        scaled, has_formula = scale_to_ranks(operation, int(transfer_ns[number]), times, ranks, wanted)
        if not has_formula:
            return False
        transfer_ns[number] = round(scaled)
    return True
