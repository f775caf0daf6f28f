"""Which ranks form a pipeline, and in which order they are its stages.

The most trusted source is the process groups that are described as pipelines. Next come marks of the hooks, then the
peers of sends and receives. A job without any further process group is one pipeline of all its ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.pipelines.extraction import is_pipeline_group
from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.constants import MOST_RANKS
from perfscope.errors import MissingInput
from perfscope.schedules.operations import PassKind


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline.

    Attributes:
        ranks: Its ranks in the order of stages; None where the trace does not name its rank.
        stages: What the trace of each stage says; None for a stage without a trace.
    """

    ranks: tuple[int | None, ...]
    stages: tuple[RankPasses | None, ...]

    @property
    def traced(self) -> tuple[RankPasses, ...]:
        """The stages that have a trace."""
        return tuple(stage for stage in self.stages if stage is not None)

    @property
    def missing(self) -> tuple[int, ...]:
        """Stages without a trace."""
        return tuple(stage for stage, passes in enumerate(self.stages) if passes is None)


def find_pipelines(traces: Sequence[RankPasses]) -> list[Pipeline]:
    """Sort ranks into pipelines.

    Args:
        traces: What each rank's trace says.

    Raises:
        MissingInput: The traces do not show which ranks form a pipeline.
    """
    by_rank = {trace.rank: trace for trace in traces if trace.rank is not None}
    if len(by_rank) < len(traces):
        return [_join_unnamed(traces)]
    world_size = next((trace.world_size for trace in traces if trace.world_size is not None), None)
    for find_groups in (_group_by_description, _group_by_marks, _group_by_peers, _group_world):
        groups = find_groups(by_rank, world_size)
        if groups:
            return _drop_untraced([_order_stages(ranks, by_rank) for ranks in groups])
    raise MissingInput(
        "the traces do not show which ranks form a pipeline: no process group is described as one, and the transfers "
        "name no peer"
    )


def _drop_untraced(pipelines: list[Pipeline]) -> list[Pipeline]:
    return [pipeline for pipeline in pipelines if pipeline.traced]


def _join_unnamed(traces: Sequence[RankPasses]) -> Pipeline:
    """Traces that do not name their ranks form one pipeline, its stages ordered by their first forward pass."""
    ordered = tuple(sorted(traces, key=_first_forward_ns))
    if all(trace.device is not None for trace in traces):
        ordered = tuple(sorted(traces, key=lambda trace: trace.device or 0))
    return Pipeline(tuple(trace.rank for trace in ordered), ordered)


def _select(ranks: Sequence[int], by_rank: Mapping[int, RankPasses]) -> tuple[RankPasses | None, ...]:
    return tuple(by_rank.get(rank) for rank in ranks)


def _group_by_description(by_rank: Mapping[int, RankPasses], _world_size: int | None) -> list[list[int]]:
    groups = {
        group.ranks
        for rank, trace in by_rank.items()
        for group in trace.groups
        if len(group.ranks) > 1 and is_pipeline_group(group.description) and rank in group.ranks
    }
    return [list(ranks) for ranks in sorted(groups)]


def _group_by_marks(by_rank: Mapping[int, RankPasses], _world_size: int | None) -> list[list[int]]:
    """Groups of any description whose ranks the hooks marked as all the positions of one pipeline."""
    groups = set()
    for ranks in {group.ranks for trace in by_rank.values() for group in trace.groups}:
        members = [by_rank[rank] for rank in ranks if rank in by_rank]
        positions = {member.device for member in members}
        if len(members) == len(ranks) > 1 and positions == set(range(len(ranks))) and members[0].devices == len(ranks):
            groups.add(ranks)
    return [list(ranks) for ranks in sorted(groups)]


def _group_by_peers(by_rank: Mapping[int, RankPasses], world_size: int | None) -> list[list[int]]:
    """Ranks that are connected by transfers, where the numbers of peers are those of the whole job."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for rank, trace in by_rank.items():
        for transfer in (transfer for step in trace.steps for transfer in step.transfers):
            if transfer.peer is not None and transfer.peer != rank and transfer.peer < (world_size or 0):
                neighbours[rank].add(transfer.peer)
                neighbours[transfer.peer].add(rank)
    groups: list[list[int]] = []
    ungrouped = set(neighbours)
    while ungrouped:
        group, border = set[int](), {min(ungrouped)}
        while border:
            group |= border
            border = {neighbour for rank in border for neighbour in neighbours[rank]} - group
        ungrouped -= group
        groups.append(sorted(group))
    return groups


def _group_world(by_rank: Mapping[int, RankPasses], world_size: int | None) -> list[list[int]]:
    """All ranks, where no group suggests a further kind of parallelism: each has a single rank or all of them."""
    sizes = {len(group.ranks) for trace in by_rank.values() for group in trace.groups}
    marked_lengths = {trace.devices for trace in by_rank.values() if trace.devices is not None}
    if (
        world_size is None
        or world_size > MOST_RANKS
        or not (sizes <= {0, 1, world_size} or marked_lengths == {world_size})
    ):
        return []
    return [list(range(world_size))]


def _order_stages(ranks: Sequence[int], by_rank: Mapping[int, RankPasses]) -> Pipeline:
    """Order stages by marks; else by their first forward pass where no trace is missing; else by rank."""
    traces = [by_rank[rank] for rank in ranks if rank in by_rank]
    if len(traces) < len(ranks):
        ordered = sorted(ranks)
    elif all(trace.position is not None for trace in traces):
        ordered = sorted(ranks, key=lambda rank: by_rank[rank].position or 0)
    else:
        ordered = sorted(ranks, key=lambda rank: _warmup_order(by_rank[rank]))
    return Pipeline(tuple(ordered), _select(ordered, by_rank))


def _warmup_order(trace: RankPasses) -> tuple[int, int]:
    """A sort key: a later stage has at most as many warm-up forward passes, and begins its first one later.

    The number of passes needs no clock; where it ties (GPipe runs all forward passes first) the time decides.
    """
    first_step = next(step for step in trace.steps if step.passes)
    warmup = 0
    for measured in first_step.passes:
        if measured.kind is not PassKind.FORWARD:
            break
        warmup += 1
    return -warmup, _first_forward_ns(trace)


def _first_forward_ns(trace: RankPasses) -> int:
    """When the first forward pass of the last step began; in the first step each rank waits for its own profiler."""
    passes = [step.passes for step in trace.steps if step.passes][-1]
    return min(
        (measured.start_ns for measured in passes if measured.kind is PassKind.FORWARD), default=passes[0].start_ns
    )
