"""Which ranks form a pipeline, and in which order they are its stages.

The most trusted source is the process groups that are described as pipelines. Next come marks of the
hooks. A job without any further process group is one pipeline of all its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.pipeline_bubble.rank_passes import RankPasses
from perfscope.constants import MOST_RANKS
from perfscope.errors import MissingInput
from perfscope.schedules.operations import PassKind

_PIPELINE = re.compile(r"pipeline|(^|_)(pp|pipe)(_|$)", re.IGNORECASE)
#: A group that joins more than stages is no pipeline: Megatron's EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP.
_NOT_PIPELINE = re.compile(r"tensor|expert|data|context", re.IGNORECASE)


class PipelineRanks(Struct, frozen=True):
    """One pipeline by stage: its ranks, None where a trace does not name its rank; its traces, None without one."""

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


def find_pipelines(traces: Sequence[RankPasses]) -> list[PipelineRanks]:
    """Sort ranks into pipelines, without those that have no trace; MissingInput where the traces show none.

    Several traces of a rank are windows of one run.
    """
    by_rank: dict[int, RankPasses] = {}
    for trace in sorted(traces, key=lambda trace: trace.start_ns):
        if trace.rank is None:  # Traces that do not name their ranks form one pipeline.
            ordered = tuple(sorted(traces, key=_first_forward_ns))
            if all(trace.device is not None for trace in traces):
                ordered = tuple(sorted(traces, key=lambda trace: trace.device or 0))
            return [PipelineRanks(tuple(trace.rank for trace in ordered), ordered)]
        earlier = by_rank[trace.rank].steps if trace.rank in by_rank else ()
        by_rank[trace.rank] = replace(by_rank.get(trace.rank, trace), steps=(*earlier, *trace.steps))
    orders = [_order_stages(ranks, by_rank) for ranks in _find_groups(by_rank)]
    if not orders:
        raise MissingInput("the traces do not show which ranks form a pipeline: no process group is described as one")
    found = [PipelineRanks(tuple(ranks), tuple(by_rank.get(rank) for rank in ranks)) for ranks in orders]
    return [pipeline for pipeline in found if pipeline.traced]


def _find_groups(by_rank: Mapping[int, RankPasses]) -> list[tuple[int, ...]]:
    groups = {(rank, group) for rank, trace in by_rank.items() for group in trace.groups if len(group.ranks) > 1}
    described = {
        group.ranks
        for rank, group in groups
        if rank in group.ranks and _PIPELINE.search(group.description) and not _NOT_PIPELINE.search(group.description)
    }
    if described:
        return sorted(described)
    marked = {group.ranks for _, group in groups if _is_marked([by_rank.get(rank) for rank in group.ranks])}
    if marked:
        return sorted(marked)
    # Where no group suggests a further kind of parallelism, each has a single rank or all of them.
    world_size = next((trace.world_size for trace in by_rank.values() if trace.world_size is not None), None)
    sizes = {len(group.ranks) for trace in by_rank.values() for group in trace.groups}
    marked_lengths = {trace.devices for trace in by_rank.values() if trace.devices is not None}
    if world_size is None or world_size > MOST_RANKS:
        return []
    return [tuple(range(world_size))] if sizes <= {0, 1, world_size} or marked_lengths == {world_size} else []


def _is_marked(members: Sequence[RankPasses | None]) -> bool:
    devices = {member.device for member in members if member is not None}
    lengths = {member.devices for member in members if member is not None}
    return devices == set(range(len(members))) and lengths == {len(members)}


def _order_stages(ranks: Sequence[int], by_rank: Mapping[int, RankPasses]) -> list[int]:
    if any(rank not in by_rank for rank in ranks):
        return sorted(ranks)
    positions = {rank: by_rank[rank].position for rank in ranks}
    if None not in positions.values():
        return sorted(ranks, key=lambda rank: positions[rank] or 0)
    return sorted(ranks, key=lambda rank: _warmup_order(by_rank[rank]))


def _warmup_order(trace: RankPasses) -> tuple[int, int]:
    """A sort key: a later stage has at most as many warm-up forward passes, and begins its first one later.

    The number of passes needs no clock; where it ties (GPipe runs all forward passes first) the time decides.
    """
    first_step = next(step for step in trace.steps if step.passes)
    warmup = sum(1 for _ in takewhile(lambda measured: measured.kind is PassKind.FORWARD, first_step.passes))
    return -warmup, _first_forward_ns(trace)


def _first_forward_ns(trace: RankPasses) -> int:
    """When the first forward pass of the last step began; in the first step each rank waits for its own profiler."""
    passes = [step.passes for step in trace.steps if step.passes][-1]
    return min(
        (measured.start_ns for measured in passes if measured.kind is PassKind.FORWARD), default=passes[0].start_ns
    )
