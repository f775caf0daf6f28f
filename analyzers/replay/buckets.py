"""Another size of the buckets in which DistributedDataParallel reduces gradients.

The measured buckets say when how many bytes of gradients were ready: between the ends of two buckets, evenly. Buckets
of another size are filled in the same order. Each is reduced when it is full and the previous one is done. It takes a
latency and its bytes at the bandwidth of the measured ones. Reductions that end after the backward pass make the step
longer. Those that are newly hidden slow kernels; those that are no longer hidden do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.replay.accumulation import find_micro_batches, reductions_of_gradients
from perfscope.analyzers.replay.changes import Changed, parse_factor
from perfscope.analyzers.replay.communication_changes import without_communication
from perfscope.analyzers.replay.contention import lost_beside
from perfscope.analyzers.replay.job_graph import Operation
from perfscope.analyzers.replay.measured import Measured
from perfscope.constants import MIB, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.tables.columns import Bool, Float64, Int64

#: What a small collective takes on NVLink; used where all measured ones have the same size.
_USUAL_LATENCY_NS = 20 * NS_PER_US
#: Sizes that differ by less do not tell latency from bandwidth.
_FEWEST_TIMES_LARGER = 2


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """A line through measured transfers.

    Attributes:
        latency_ns: What a transfer takes besides its bytes.
        bytes_per_ns: Its bandwidth: the same number in GB/s.
        is_fitted: Whether sizes differed enough to tell the two apart; the latency is a usual one otherwise.
    """

    latency_ns: float
    bytes_per_ns: float
    is_fitted: bool

    def time_of(self, size_bytes: float) -> float:
        """Nanoseconds for a size."""
        return self.latency_ns + size_bytes / self.bytes_per_ns


def fit_transfer_times(operations: Sequence[Operation], transfer_ns: Int64) -> TransferTimes:
    """Fit operations of one kind, by the median time of each size."""
    sizes = np.array([operation.kind.bytes for operation in operations], np.float64)
    distinct = np.unique(sizes)
    medians: Float64 = np.array([np.median(transfer_ns[sizes == size]) for size in distinct])
    if distinct[-1] >= _FEWEST_TIMES_LARGER * distinct[0]:
        # Relative distances count, so that large transfers do not drown the latency of small ones.
        slope, latency = np.polyfit(distinct, medians, 1, w=1 / np.maximum(medians, 1))
        if slope > 0 and latency >= 0:
            return TransferTimes(float(latency), float(1 / slope), is_fitted=True)
    largest = medians[-1]
    latency_ns = float(min(_USUAL_LATENCY_NS, largest / 2))
    return TransferTimes(latency_ns, float(distinct[-1] / (largest - latency_ns)), is_fitted=False)


#: A bucket so many times larger than the usual one holds one parameter that cannot be divided.
_INDIVISIBLE = 2.5
#: The share of what reductions cost that the model may be off by.
_DOUBT = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """The buckets of one step, in the order of their reduction.

    Attributes:
        ready_ns: When each was ready on the last rank, where nothing is reduced.
        size_bytes: The size of each.
        begin_ns, end_ns: When the backward pass began and ended there.
    """

    ready_ns: Int64
    size_bytes: Int64
    begin_ns: int
    end_ns: int

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The buckets as they were: when each was ready, and its bytes."""
        return list(zip(self.ready_ns.tolist(), self.size_bytes.tolist(), strict=True))


def resize_buckets(measured: Measured, value: str) -> Changed:
    """Gradients are reduced in buckets of so many MiB."""
    size_bytes = int(parse_factor("bucket", value) * MIB)
    rows = [reductions_of_gradients(graph) for graph in measured.job.ranks]
    numbers = _reductions(measured, rows)
    alone = without_communication(measured, rows)
    ends_ns = measured.replay.run(alone).end_ns
    steps = [_describe_step(measured, numbers, ends_ns, index) for index in range(measured.steps.steps)]
    times = fit_transfer_times(
        [measured.job.operations[number] for number in numbers], measured.times.transfer_ns[numbers]
    )
    lost = lost_beside(measured.job.ranks, measured.contention) or 0.0
    added_ns = [
        _cost(step, _fill(step, size_bytes), times, lost) - _cost(step, step.measured, times, lost) for step in steps
    ]
    spread_ns = [_cost(step, step.measured, times, lost) for step in steps]
    sentences = (
        f"A reduction takes {times.latency_ns / 1e3:.0f} us and its bytes at {times.bytes_per_ns:.0f} GB/s.",
        "Gradients of a measured bucket become ready evenly; a parameter larger than a bucket has one of its own.",
        f"Kernels lose {lost:.0%} of the time that a reduction runs beside them.",
    )
    doubt_ns = _DOUBT * (abs(float(np.mean(added_ns))) + float(np.mean(spread_ns)))
    return Changed(measured.times, sentences, added_ns=float(np.mean(added_ns)), doubt_ns=doubt_ns)


def _reductions(measured: Measured, rows: Sequence[Bool]) -> Int64:
    """The operations that reduce gradients with all ranks."""
    numbers = [
        number
        for number, item in enumerate(measured.job.operations)
        if rows[item.members[0][0]][item.members[0][1]] and item.kind.operation == "all_reduce" and item.kind.bytes > 0
    ]
    if not numbers:
        raise MissingInput("the traces show no reduction of gradients in buckets, with its size, in a backward pass")
    return np.asarray(numbers, np.int64)


def _describe_step(measured: Measured, numbers: Int64, ends_ns: Sequence[Int64], index: int) -> _Step:
    """The buckets of a marked step in a replay without reductions: each of their events ends when it is ready."""
    job = measured.job
    ready, sizes = [], []
    for number in numbers.tolist():
        operation = job.operations[number]
        first, event = operation.members[0]
        if job.ranks[first].step[event] == job.ranks[first].marks[index]:
            ready.append(max(int(ends_ns[rank][own]) for rank, own in operation.members))
            sizes.append(operation.kind.bytes)
    if not ready:
        raise MissingInput("a marked step reduced no gradients")
    order = np.argsort(ready, kind="stable")
    passes = [find_micro_batches(graph)[index].backward[-1] for graph in job.ranks]
    begins = [
        int((end_ns[part] - graph.duration_ns[part]).min())
        for graph, end_ns, part in zip(job.ranks, ends_ns, passes, strict=True)
    ]
    ends = [int(end_ns[part].max()) for end_ns, part in zip(ends_ns, passes, strict=True)]
    return _Step(np.asarray(ready, np.int64)[order], np.asarray(sizes, np.int64)[order], max(begins), max(ends))


def _fill(step: _Step, size_bytes: int) -> list[tuple[int, int]]:
    """Buckets of another size: when each is ready, and its bytes."""
    total = np.concatenate([[0], np.cumsum(step.size_bytes)])
    usual = float(np.median(step.size_bytes))
    moments = np.concatenate([[min(step.begin_ns, int(step.ready_ns[0]))], step.ready_ns])
    edges: list[int] = []
    filled = 0
    for index, size in enumerate(step.size_bytes.tolist()):
        end = int(total[index + 1])
        if size > max(size_bytes, _INDIVISIBLE * usual) and len(step.size_bytes) > 1:
            edges.append(end)
            filled = end
            continue
        while end - filled >= size_bytes:
            filled += size_bytes
            edges.append(filled)
    if not edges or edges[-1] < total[-1]:
        edges.append(int(total[-1]))
    ready = np.interp(edges, total, moments)
    return list(zip(np.rint(ready).astype(np.int64).tolist(), np.diff([0, *edges]).tolist(), strict=True))


def _cost(step: _Step, buckets: Sequence[tuple[int, int]], times: TransferTimes, lost: float) -> float:
    """What reductions add to a step: how long they last behind the backward pass, and what those beside it slow."""
    free_at, hidden = step.begin_ns, 0
    for ready_ns, size_bytes in buckets:
        start = max(free_at, ready_ns)
        free_at = start + round(times.time_of(size_bytes))
        hidden += max(0, min(free_at, step.end_ns) - min(start, step.end_ns))
    return max(0, free_at - step.end_ns) + lost * hidden
