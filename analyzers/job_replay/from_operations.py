"""A job from the operations that were recorded of it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfscope.analyzers.job_replay.graph import Graph
from perfscope.analyzers.job_replay.job import Job, JobSteps, Kind, describe_steps
from perfscope.analyzers.job_replay.training_graph import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    KINDS,
    TRANSFERS,
    Node,
    build_training_graph,
)
from perfscope.errors import MissingInput, PerfscopeError
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.operations import Operations

_PASSES = (FORWARD, BACKWARD)


def job_from_operations(operations: Operations) -> Job:
    """Join the operations of all workers into a job.

    A step is left out, with a note, where its operations are not complete.

    Raises:
        PerfscopeError: No step is complete, or a worker is not one place of one pipeline.
    """
    notes: list[str] = []
    modelled = np.isin(operations.kind, [number for number, name in enumerate(operations.kinds) if name in KINDS])
    others = sorted({operations.kinds[number] for number in np.unique(operations.kind[~modelled]).tolist()})
    if others:
        notes.append(f"Operations of unknown types are left out: {', '.join(others)}.")
    if not modelled.any():
        raise PerfscopeError("no operation is of a known type", hint=f"known: {', '.join(KINDS)}")
    table = _Table(operations, np.flatnonzero(modelled))
    reasons, signatures = table.check_steps()
    parts: list[JobSteps] = []
    for steps in signatures.values():
        try:
            parts.append(table.join_steps(steps))
        except MissingInput as missing:
            for step in steps:
                reasons[step] = missing.problem
    by_reason: dict[str, list[int]] = defaultdict(list)
    for step, reason in sorted(reasons.items()):
        by_reason[reason].append(step)
    left_out = [f"{describe_steps(steps)}: {reason}" for reason, steps in by_reason.items()]
    if not parts:
        raise PerfscopeError(f"no step can be replayed; {'; '.join(left_out[:3])}")
    notes += [f"Left out: {text}." for text in left_out]
    parts.sort(key=lambda part: part.steps)
    return Job(table.list_kinds(), table.ranks, tuple(parts), tuple(notes))


class _Table:
    """Rows of operations whose types are known, with steps counted from 0."""

    def __init__(self, operations: Operations, rows: Int64) -> None:
        self.kinds = operations.kinds
        self.kind, self.sequence = operations.kind[rows], operations.sequence[rows]
        self.pipeline, self.stage = operations.pipeline[rows], operations.stage[rows]
        self.chunk, self.global_chunk = operations.chunk[rows], operations.global_chunk[rows]
        self.start_ns, self.end_ns = operations.start_ns[rows], operations.end_ns[rows]
        self.numbers, self.step = np.unique(operations.step[rows], return_inverse=True)
        self.shape = (int(operations.pipeline.max()) + 1, int(operations.stage.max()) + 1, len(self.kinds))
        self.ranks = self._find_ranks(operations.rank[rows])

    def _find_ranks(self, rank: Int64) -> tuple[tuple[int, ...], ...]:
        workers = np.unique(np.stack([self.pipeline, self.stage, rank]), axis=1)
        pipelines, stages, _ = self.shape
        places = set(zip(workers[0].tolist(), workers[1].tolist(), strict=True))
        if len(places) < workers.shape[1] or len(np.unique(workers[2])) < workers.shape[1]:
            raise PerfscopeError(
                "a dp_rank and stage have several ranks, or a rank has several places",
                hint="keep one rank of each tensor-parallel group",
            )
        if len(places) < pipelines * stages:
            place = next((p, s) for p in range(pipelines) for s in range(stages) if (p, s) not in places)
            raise PerfscopeError(f"dp_rank {place[0]} has no operations of stage {place[1]}")
        by_place = np.empty((pipelines, stages), np.int64)
        by_place[workers[0], workers[1]] = workers[2]
        return tuple(tuple(row) for row in by_place.tolist())

    def list_kinds(self) -> tuple[Kind, ...]:
        """The types of operations, in the order of their indices."""
        causes = {name: f"{name.split('-')[0]}-pp-comm" for name in TRANSFERS}
        return tuple(Kind(name, causes.get(name, name), name in COMMUNICATION) for name in self.kinds)

    def check_steps(self) -> tuple[dict[int, str], dict[bytes, list[int]]]:
        """The steps that are not complete, and why; the others, those together that have the same operations."""
        cell = np.ravel_multi_index((self.step, self.pipeline, self.stage, self.kind), (len(self.numbers), *self.shape))
        size = len(self.numbers) * int(np.prod(self.shape))
        counts = np.bincount(cell, minlength=size)
        highest = np.full(size, -1, np.int64)
        np.maximum.at(highest, cell, self.sequence)
        is_broken = (highest + 1 != counts) | self._are_repeated(cell, size)
        by_step = counts.reshape(len(self.numbers), *self.shape)
        passes = [self.kinds.index(name) for name in _PASSES if name in self.kinds]
        reasons: dict[int, str] = {}
        signatures: dict[bytes, list[int]] = defaultdict(list)
        for index, number in enumerate(self.numbers.tolist()):
            reason = self._find_gap(is_broken.reshape(by_step.shape)[index], by_step[index], passes)
            if reason:
                reasons[number] = reason
            else:
                signatures[by_step[index, 0].tobytes()].append(number)
        return reasons, signatures

    def _are_repeated(self, cell: Int64, size: int) -> Bool:
        """By cell, whether a sequence number is negative or stands there twice."""
        order = np.lexsort((self.sequence, cell))
        same = (np.diff(cell[order]) == 0) & (np.diff(self.sequence[order]) == 0)
        broken = np.zeros(size, np.bool_)
        broken[cell[order][1:][same]] = True
        broken[cell[self.sequence < 0]] = True
        return broken

    def _find_gap(self, is_broken: Bool, counts: Int64, passes: list[int]) -> str:
        """Why a step is not complete; empty where it is."""
        if is_broken.any():
            pipeline, stage, kind = np.argwhere(is_broken)[0].tolist()
            rank = self.ranks[pipeline][stage]
            return f"the seq_id of {self.kinds[kind]} of rank {rank} do not count from 0 without a gap"
        differs = (counts != counts[0]).any(axis=(1, 2))
        if differs.any():
            return f"dp_rank {int(np.argmax(differs))} has other operations than dp_rank 0"
        if len(passes) < len(_PASSES) or not counts[0][:, passes].all():
            return "a stage has no forward or no backward passes"
        if (counts[0][:, passes] != counts[0][0, passes[0]]).any():
            return "the stages have different numbers of passes"
        return ""

    def join_steps(self, steps: list[int]) -> JobSteps:
        """The steps of these numbers, which have the same operations.

        Raises:
            MissingInput: Sends and receives do not fit each other.
        """
        rows = np.flatnonzero(np.isin(self.numbers[self.step], steps))
        keys = (self.step, self.pipeline, self.sequence, self.kind, self.stage)
        rows = rows[np.lexsort(tuple(key[rows] for key in keys))]
        shape = (-1, self.shape[0], len(steps))
        start, end = self.start_ns[rows].reshape(shape), self.end_ns[rows].reshape(shape)
        first = rows.reshape(shape)[:, 0, 0]
        nodes = [self._node(number, row) for number, row in enumerate(first.tolist())]
        graph = build_training_graph(nodes)
        begin = start.min(axis=(0, 1))
        return JobSteps(
            steps=tuple(steps),
            graph=graph,
            kinds=self.kind[first],
            stages=self.stage[first],
            labels=tuple(f"{node.kind} {node.sequence}" for node in nodes),
            times_ns=_own_times(graph, start, end),
            measured_ns=end.max(axis=(0, 1)) - begin,
            starts_ns=start - begin,
            durations_ns=end - start,
        )

    def _node(self, number: int, row: int) -> Node:
        return Node(
            number=number,
            kind=self.kinds[self.kind[row]],
            stage=int(self.stage[row]),
            sequence=int(self.sequence[row]),
            chunk=int(self.chunk[row]),
            global_chunk=int(self.global_chunk[row]),
            start_ns=int(self.start_ns[row]),
            end_ns=int(self.end_ns[row]),
        )


def _own_times(graph: Graph, start: Int64, end: Int64) -> Int64:
    """How long each operation took after all of its group had started; 0 where clocks make that negative."""
    times = np.empty_like(start)
    for group in graph.groups:
        nodes = list(group.nodes)
        last = start[nodes].max(axis=0)
        if group.is_joined:
            last = last.max(axis=0, keepdims=True)
        times[nodes] = np.maximum(end[nodes] - last, 0)
    return times
