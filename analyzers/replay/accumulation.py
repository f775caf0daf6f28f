"""Gradient accumulation: the micro-batches of a step, and what one more or one less of them takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from perfscope.analyzers.replay.changes import Changed
from perfscope.analyzers.replay.communication_changes import without_communication
from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.measured import Measured
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.analyzers.replay.replay import launched_before, span_of_steps
from perfscope.constants import NS_PER_MS, NS_PER_S, TB
from perfscope.errors import MissingInput, UsageError
from perfscope.models.hardware import lookup_gpu
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Work

#: A forward pass takes at least this share of the longest one of its step; what is shorter prepares a backward pass.
_SHORTEST_FORWARD = 0.2
#: Groups whose gradients are added up over ranks: those of data parallelism.
_DATA_ROLES = ("", "DP", "world")
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
#: What adds sharded gradients up; an all_reduce beside it is of a norm or of the loss.
_SCATTERING = ("reduce_scatter",)


@dataclass(frozen=True, slots=True, eq=False)
class StepPasses:
    """The micro-batches of one step of one rank.

    Attributes:
        backward: For each micro-batch the events that its backward pass launched and that compute.
    """

    backward: tuple[Int64, ...]


def accumulate(measured: Measured, value: str, name: str = "accumulation") -> Changed:
    """A step of so many micro-batches like the measured ones, whose gradients are added up over ranks only once.

    Sharded gradients have no room for those of a whole model: FSDP and ZeRO-3 reduce them with every micro-batch.
    """
    count = parse_count(name, value)
    steps = [find_micro_batches(graph) for graph in measured.job.ranks]
    current = _common_count(steps)
    is_sharded = all(map(shards_parameters, measured.job.ranks))
    times = measured.times
    if is_sharded:
        steps = [_with_reductions(graph, passes) for graph, passes in zip(measured.job.ranks, steps, strict=True)]
    else:
        times = without_communication(measured, [reductions_of_gradients(graph) for graph in measured.job.ranks])
    ends_ns = measured.replay.run(times).end_ns
    extra_ns = _time_of_one(measured.job, steps, list(ends_ns))
    adding_ns = 0.0
    if current == 1:
        extra_ns = min(extra_ns, span_of_steps(measured.job, ends_ns).step_ns)
        adding_ns = max(time_of_adding(graph, is_sharded=is_sharded) for graph in measured.job.ranks)
    added_ns = (count - current) * (extra_ns + adding_ns)
    sentences = [_describe_micro_batch(current, extra_ns, is_sharded=is_sharded)]
    if adding_ns:
        sentences.append(
            f"Adding its gradients to those of the others takes {adding_ns / NS_PER_MS:.2f} ms more: they are read "
            "twice and written once at the rate of the memory's datasheet."
        )
    return Changed(measured.times, tuple(sentences), added_ns=added_ns, doubt_ns=_DOUBT * abs(added_ns))


#: How far a micro-batch may be off: with less pause between dense computations a device at its power limit lowers its
#: clock. On an H200 the same kernels took 3 % longer in steps of two micro-batches, and 6 % in steps of four.
_DOUBT = 0.05


def _describe_micro_batch(current: int, extra_ns: float, *, is_sharded: bool) -> str:
    begun = f"A step has {current} micro-batches; one "
    if is_sharded:
        return f"{begun}takes {extra_ns / NS_PER_MS:.2f} ms with the reduction of its gradients, which are sharded."
    return (
        f"{begun}without the reduction of gradients takes {extra_ns / NS_PER_MS:.2f} ms, "
        "and gradients are reduced with the last one."
    )


def parse_count(name: str, text: str) -> int:
    """A positive whole number behind a scenario's name.

    Raises:
        UsageError: It is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name}={text}: the number must be a positive integer", hint=f"{name}=4")
    return int(text)


def find_micro_batches(graph: RankGraph) -> tuple[StepPasses, ...]:
    """The micro-batches of each marked step: what the main thread launches goes forward, what others launch, back.

    Raises:
        MissingInput: No other thread launched anything.
    """
    steps = []
    launched = (graph.launch != ABSENT) & ((graph.work == Work.COMPUTE) | (graph.work == Work.FUSED))
    for step in graph.marks:
        rows = np.flatnonzero(launched & (graph.step == step))
        rows = rows[np.argsort(graph.launch[rows], kind="stable")]
        backward = _runs_backward(graph, rows)
        if not backward:
            raise MissingInput("no backward pass is seen: only one thread launched kernels")
        steps.append(StepPasses(backward))
    return tuple(steps)


def _runs_backward(graph: RankGraph, rows: Int64) -> tuple[Int64, ...]:
    """Runs of the backward pass; those without a real forward pass between them are one."""
    is_backward = graph.call_thread[graph.launch[rows]] != graph.main_thread
    bounds, position = [], 0
    for is_back, members in groupby(is_backward.tolist()):
        length = sum(1 for _ in members)
        bounds.append((is_back, rows[position : position + length]))
        position += length
    forward_ns = [int(graph.duration_ns[part].sum()) for is_back, part in bounds if not is_back]
    least_ns = _SHORTEST_FORWARD * max(forward_ns[:-1] or forward_ns, default=0)
    runs: list[Int64] = []
    is_new = True
    for is_back, part in bounds:
        if not is_back:
            is_new = is_new or int(graph.duration_ns[part].sum()) >= least_ns
        elif is_new or not runs:
            runs.append(part)
            is_new = False
        else:
            runs[-1] = np.concatenate([runs[-1], part])
    return tuple(runs)


def _common_count(steps: list[tuple[StepPasses, ...]]) -> int:
    counts = {len(step.backward) for rank in steps for step in rank}
    if len(counts) != 1:
        raise MissingInput("the steps differ in their micro-batches")
    return counts.pop()


def reductions_of_gradients(graph: RankGraph) -> Bool:
    """Which events add gradients up over the ranks of data parallelism while the backward pass runs."""
    rows = np.zeros(len(graph.work), np.bool_)
    for group, events in zip(graph.groups, graph.group_events, strict=True):
        if group.role in _DATA_ROLES:
            reduces = np.array([kind.operation in _REDUCING for kind in group.kinds], np.bool_)
            rows[events[reduces[group.kind]]] = True
    has_launch = graph.launch != ABSENT
    is_backward = np.zeros(len(rows), np.bool_)
    is_backward[has_launch] = graph.call_thread[graph.launch[has_launch]] != graph.main_thread
    return rows & is_backward


def shards_parameters(graph: RankGraph) -> bool:
    """Whether a rank has a part of the parameters alone: passes gather them piece by piece, and scatter what they add.

    Megatron's distributed optimizer does both as well, but reduces once; its groups have descriptions in capitals.
    """
    operations: Counter[str] = Counter()
    for group, events in zip(graph.groups, graph.group_events, strict=True):
        if group.role in _DATA_ROLES and not group.description.isupper():
            names = [kind.operation for kind in group.kinds]
            in_steps = graph.step[events] != ABSENT
            operations.update(names[kind] for kind in group.kind[in_steps].tolist())
    steps = max(len(graph.marks), 1)
    return operations["reduce_scatter"] > 0 and operations["all_gather"] >= _FEWEST_GATHERS * steps


#: What is not sharded is gathered once a step at most.
_FEWEST_GATHERS = 2


def _reductions_behind(
    graph: RankGraph, backward: Int64, step: int, operations: Collection[str]
) -> list[tuple[int, int]]:
    """The events of these operations that a step launched behind its first backward pass, and the bytes of each."""
    first = int(graph.launch[backward].min())
    events = []
    for group, rows in zip(graph.groups, graph.group_events, strict=True):
        if group.role not in _DATA_ROLES:
            continue
        for row, kind in zip(rows.tolist(), group.kind.tolist(), strict=True):
            reduces = group.kinds[kind].operation in operations
            if reduces and graph.step[row] == step and graph.launch[row] > first:
                events.append((row, group.kinds[kind].bytes))
    return events


def _with_reductions(graph: RankGraph, passes: tuple[StepPasses, ...]) -> tuple[StepPasses, ...]:
    """Micro-batches that end with the reduction of their gradients, where a step has one of them."""
    changed = []
    for step, of_step in zip(graph.marks, passes, strict=True):
        first, *others = of_step.backward
        rows = [] if others else [row for row, _ in _reductions_behind(graph, first, step, _SCATTERING)]
        changed.append(StepPasses((np.concatenate([first, np.array(rows, np.int64)]), *others)))
    return tuple(changed)


def time_of_adding(graph: RankGraph, *, is_sharded: bool) -> float:
    """What it takes to add a micro-batch's gradients to those of the others, in nanoseconds; 0 where not known.

    A step of one micro-batch writes its gradients; every further one reads both and writes the sum.
    """
    gpu = lookup_gpu(graph.device_name)
    if gpu is None or gpu.memory_tb_s is None:
        return 0.0
    sizes = []
    for step, of_step in zip(graph.marks, find_micro_batches(graph), strict=True):
        operations = _SCATTERING if is_sharded else _REDUCING
        reductions = _reductions_behind(graph, of_step.backward[0], step, operations)
        sizes.append(sum(max(size, 0) for _, size in reductions))
    owners = (graph.world_size or 1) if is_sharded else 1
    return _PASSES_OF_ADDING * float(np.median(sizes)) / owners / (gpu.memory_tb_s * TB / NS_PER_S)


_PASSES_OF_ADDING = 3


def _time_of_one(job: JobGraph, steps: list[tuple[StepPasses, ...]], ends_ns: list[Int64]) -> float:
    """What one micro-batch takes, in nanoseconds: from the end of one to the end of the next, on the slowest rank."""
    times = []
    for index in range(len(steps[0])):
        ends = [
            [int(end[part].max()) for part in rank[index].backward] for rank, end in zip(steps, ends_ns, strict=True)
        ]
        last = np.max(ends, axis=0)
        if len(last) > 1:
            times.append((last[-1] - last[0]) / (len(last) - 1))
            continue
        begin = _end_before(job, ends_ns, index)
        if begin is not None:
            times.append(float(last[0] - begin))
    if not times:
        raise MissingInput("nothing was launched before the first step: a micro-batch cannot be timed")
    return float(np.median(times))


def _end_before(job: JobGraph, ends_ns: list[Int64], index: int) -> int | None:
    """When the work of the step before ended; None where the traces do not show it."""
    ends = []
    for graph, end_ns in zip(job.ranks, ends_ns, strict=True):
        rows = launched_before(graph) if index == 0 else graph.step == graph.marks[index - 1]
        if not rows.any():
            return None
        ends.append(int(end_ns[rows].max()))
    return max(ends)
