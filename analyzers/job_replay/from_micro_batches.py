"""A job from the passes of micro-batches that the hooks timed, without a trace.

A record has the order of a step's passes and the total time of each kind of pass on each virtual stage, so each pass
takes the mean of its kind in its step. Transfers and the optimizer are not in the records: they take no time here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analyzers.job_replay.graph import Graph, order_groups
from perfscope.analyzers.job_replay.job import Job, JobSteps, Kind, describe_steps
from perfscope.analyzers.shared.step_selection import find_undisturbed
from perfscope.errors import MissingInput
from perfscope.tables.columns import Int64
from perfscope.tables.micro_batches import MicroBatches, of_last_attempts
from perfscope.tables.run import Run
from perfscope.wire.passes import PASS_KINDS

_KINDS = tuple(PASS_KINDS)
#: Each kind as operations name it: "forward-compute", "input-gradient-compute".
_NAMES = tuple(f"{words.replace(' ', '-')}-compute" for words in PASS_KINDS.values())
#: Records of one step by pipeline and stage.
_Records = tuple[tuple[MicroBatches, ...], ...]


def job_from_micro_batches(run: Run) -> Job:
    """Join the passes of all ranks into a job, over the undisturbed steps where there are any.

    Raises:
        MissingInput: The run has no pipeline, a rank of it timed nothing, or no step is complete on every rank.
    """
    by_rank = of_last_attempts(run.micro_batches)
    if not by_rank:
        raise MissingInput("no pipeline: no rank timed micro-batches")
    ranks = _place_ranks(run, by_rank)
    common = sorted(set.intersection(*(set(records) for records in by_rank.values())))
    undisturbed = set(find_undisturbed(run.steps).numbers.tolist())
    steps = [step for step in common if step in undisturbed] or [step for step in common if step > 1] or common
    left_out: list[int] = []
    groups: dict[tuple[tuple[str, ...], ...], list[int]] = defaultdict(list)
    for step in steps:
        orders = {tuple(by_rank[rank][step].order for rank in row) for row in ranks}
        if len(orders) == 1 and all(_is_complete(by_rank[rank][step]) for row in ranks for rank in row):
            groups[orders.pop()].append(step)
        else:
            left_out.append(step)
    if not groups:
        raise MissingInput("no step has the same complete passes on every pipeline")
    parts = [
        _join_steps(orders, numbers, {step: _records_of(by_rank, ranks, step) for step in numbers})
        for orders, numbers in groups.items()
    ]
    notes = [
        "From the hooks: each pass takes the mean of its kind in its step; transfers, reductions of gradients and the "
        "optimizer are not in the records.",
    ]
    if left_out:
        notes.append(f"Left out: {describe_steps(left_out)}: passes are missing, or differ between pipelines.")
    return Job(tuple(Kind(name, name, is_transfer=False) for name in _NAMES), ranks, tuple(parts), tuple(notes))


def _place_ranks(run: Run, by_rank: Mapping[int, Mapping[int, MicroBatches]]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each pipeline by stage; ranks of one pipeline have the same place on every other axis.

    Where the places of ranks were not recorded, the n-th ranks of all stages form a pipeline.
    """
    axes = {
        rank.rank: tuple(sorted((axis, place) for axis, place in rank.parallel.items() if axis != "pp"))
        for rank in run.ranks
    }
    first = {rank: next(iter(records.values())) for rank, records in by_rank.items()}
    devices = {record.devices for record in first.values()}
    pipelines: dict[object, dict[int, int]] = defaultdict(dict)
    seen: dict[int, int] = defaultdict(int)
    for rank, record in first.items():
        key: object = axes.get(rank) or seen[record.device]
        seen[record.device] += 1
        pipelines[key][record.device] = rank
    for places in pipelines.values():
        missing = sorted(set(range(max(devices))) - set(places))
        if missing:
            raise MissingInput(f"stages {', '.join(map(str, missing))} of a pipeline timed no micro-batches")
    if sum(map(len, pipelines.values())) < len(by_rank):
        raise MissingInput("several ranks have the same place in the same pipeline")
    return tuple(tuple(rank for _, rank in sorted(places.items())) for places in pipelines.values())


def _is_complete(record: MicroBatches) -> bool:
    """Whether a record's order has the passes that its totals count."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for text in record.order:
        kind, _, stage = _parse(text)
        counts[kind, stage] += 1
    return bool(counts) and counts == {(total.kind, total.stage): total.count for total in record.totals}


def _parse(text: str) -> tuple[str, int, int]:
    """Kind, micro-batch and virtual stage of a pass that is written as ``F3.1``."""
    microbatch, _, stage = text[1:].partition(".")
    return text[0], int(microbatch), int(stage)


def _records_of(
    by_rank: Mapping[int, Mapping[int, MicroBatches]], ranks: tuple[tuple[int, ...], ...], step: int
) -> _Records:
    return tuple(tuple(by_rank[rank][step] for rank in row) for row in ranks)


def _join_steps(orders: tuple[tuple[str, ...], ...], steps: Sequence[int], records: Mapping[int, _Records]) -> JobSteps:
    passes = [(device, *_parse(text)) for device, order in enumerate(orders) for text in order]
    columns = [
        np.stack([np.concatenate([_times_of(record) for record in pipeline]) for pipeline in records[step]], axis=1)
        for step in steps
    ]
    measured = [max(record.span_ns for pipeline in records[step] for record in pipeline) for step in steps]
    return JobSteps(
        steps=tuple(steps),
        graph=_build_graph(passes),
        kinds=np.asarray([_KINDS.index(kind) for _, kind, _, _ in passes], np.int64),
        stages=np.asarray([device for device, _, _, _ in passes], np.int64),
        labels=tuple(f"{_NAMES[_KINDS.index(kind)]} {microbatch}" for _, kind, microbatch, _ in passes),
        times_ns=np.stack(columns, axis=2),
        measured_ns=np.asarray(measured, np.int64),
    )


def _times_of(record: MicroBatches) -> Int64:
    """The time of each pass of a record: equal ones that add up to the total of their kind."""
    totals = {(total.kind, total.stage): divmod(total.time_ns, total.count) for total in record.totals}
    done: dict[tuple[str, int], int] = defaultdict(int)
    times = []
    for text in record.order:
        kind, _, stage = _parse(text)
        mean, rest = totals[kind, stage]
        times.append(mean + (done[kind, stage] < rest))
        done[kind, stage] += 1
    return np.asarray(times, np.int64)


def _build_graph(passes: Sequence[tuple[int, str, int, int]]) -> Graph:
    """A pass waits for the one before it on its device, and for its inputs from other stages.

    Raises:
        PerfscopeError: Passes wait for each other.
    """
    number_of: dict[tuple[str, int, int], int] = {}
    for number, (_, kind, microbatch, stage) in enumerate(passes):
        number_of["B" if kind == "I" else kind, microbatch, stage] = number
    waits: list[list[int]] = []
    for number, (device, kind, microbatch, stage) in enumerate(passes):
        inputs = [("F", microbatch, stage - 1)]
        if kind != "F":
            inputs = [("F", microbatch, stage), ("B", microbatch, stage if kind == "W" else stage + 1)]
        before = [number - 1] if number and passes[number - 1][0] == device else []
        waits.append([*before, *(number_of[key] for key in inputs if key in number_of)])
    return order_groups(waits, [])
