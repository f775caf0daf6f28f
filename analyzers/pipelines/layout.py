"""Which ranks make one pipeline, and in which order they are its stages.

In the order of trust: a layout that the user gives, marks of the hooks, process groups that are described as pipelines,
the peers of sends and receives, and, where a job has no other process group, all its ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.pipelines.launches import is_pipeline_group
from perfscope.analyzers.pipelines.pieces import RankPieces
from perfscope.errors import MissingInput, UsageError
from perfscope.schedules.orders import Kind


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks are laid out: tensor parallelism innermost, then data parallelism, pipeline stages outermost."""

    tensor: int
    pipeline: int
    data: int

    def pipelines(self, world_size: int) -> list[list[int]]:
        """The ranks of each pipeline in the order of stages.

        Raises:
            UsageError: The sizes do not make the job's size.
        """
        inner = self.tensor * self.data
        if inner * self.pipeline != world_size:
            raise UsageError(
                f"--tp {self.tensor} --pp {self.pipeline} --dp {self.data} make {inner * self.pipeline} ranks, "
                f"but the job has {world_size}"
            )
        return [[first + stage * inner for stage in range(self.pipeline)] for first in range(inner)]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline.

    Attributes:
        ranks: Its ranks in the order of stages; None for a rank that no trace tells.
        pieces: What is known of each stage; None where the trace is missing.
    """

    ranks: tuple[int | None, ...]
    pieces: tuple[RankPieces | None, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Stages without a trace."""
        return tuple(stage for stage, piece in enumerate(self.pieces) if piece is None)


def find_pipelines(partials: Sequence[RankPieces], given: Sequence[Sequence[int]] = ()) -> list[Pipeline]:
    """Sort ranks into pipelines.

    Args:
        partials: What each rank's trace tells.
        given: The ranks of each pipeline in the order of stages, where the user or the run tells.

    Raises:
        MissingInput: The traces do not tell which ranks make a pipeline.
    """
    known = {one.rank: one for one in partials if one.rank is not None}
    if len(known) < len(partials):
        return [_without_ranks(partials)]
    world_size = next((one.world_size for one in partials if one.world_size is not None), None)
    if given:
        return _with_traces([Pipeline(tuple(ranks), _of(ranks, known)) for ranks in given])
    for find in (_by_groups, _by_marks, _by_peers, _by_world):
        groups = find(known, world_size)
        if groups:
            return _with_traces([_in_order(ranks, known) for ranks in groups])
    raise MissingInput(
        "the traces do not tell which ranks make a pipeline: no process group is described as one, and the transfers "
        "name no peer; give the layout to `perfscope bubble` with --tp, --pp and --dp"
    )


def _with_traces(pipelines: list[Pipeline]) -> list[Pipeline]:
    return [one for one in pipelines if any(one.pieces)]


def _without_ranks(partials: Sequence[RankPieces]) -> Pipeline:
    """Traces that do not tell their ranks are taken as one pipeline, its stages in the order of their first forward."""
    ordered = tuple(sorted(partials, key=_first_forward_ns))
    if all(one.device is not None for one in partials):
        ordered = tuple(sorted(partials, key=lambda one: one.device or 0))
    return Pipeline(tuple(one.rank for one in ordered), ordered)


def _of(ranks: Sequence[int], known: dict[int, RankPieces]) -> tuple[RankPieces | None, ...]:
    return tuple(known.get(rank) for rank in ranks)


def _by_groups(known: dict[int, RankPieces], _world_size: int | None) -> list[list[int]]:
    found = {
        group.ranks
        for one in known.values()
        for group in one.groups
        if len(group.ranks) > 1 and is_pipeline_group(group.description) and one.rank in group.ranks
    }
    return [list(ranks) for ranks in sorted(found)]


def _by_marks(known: dict[int, RankPieces], _world_size: int | None) -> list[list[int]]:
    """Groups of any description whose ranks the hooks marked as all the places of one pipeline."""
    found = set()
    for ranks in {group.ranks for one in known.values() for group in one.groups}:
        members = [known[rank] for rank in ranks if rank in known]
        places = {one.device for one in members}
        if len(members) == len(ranks) > 1 and places == set(range(len(ranks))) and members[0].devices == len(ranks):
            found.add(ranks)
    return [list(ranks) for ranks in sorted(found)]


def _by_peers(known: dict[int, RankPieces], world_size: int | None) -> list[list[int]]:
    """Ranks that send to each other, where the numbers of peers are those of the whole job."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for rank, one in known.items():
        for transfer in (transfer for step in one.steps for transfer in step.transfers):
            if transfer.peer is not None and transfer.peer != rank and transfer.peer < (world_size or 0):
                neighbours[rank].add(transfer.peer)
                neighbours[transfer.peer].add(rank)
    groups: list[list[int]] = []
    left = set(neighbours)
    while left:
        group, border = set[int](), {min(left)}
        while border:
            group |= border
            border = {near for rank in border for near in neighbours[rank]} - group
        left -= group
        groups.append(sorted(group))
    return groups


def _by_world(known: dict[int, RankPieces], world_size: int | None) -> list[list[int]]:
    """All ranks, where nothing speaks of another kind of parallelism: every group has one rank or all of them."""
    sizes = {len(group.ranks) for one in known.values() for group in one.groups}
    told = {one.devices for one in known.values() if one.devices is not None}
    if world_size is None or not (sizes <= {0, 1, world_size} or told == {world_size}):
        return []
    return [list(range(world_size))]


def _in_order(ranks: Sequence[int], known: dict[int, RankPieces]) -> Pipeline:
    """Put stages in order: by marks, else by their first forward pass where every trace is there, else by rank."""
    present = [known[rank] for rank in ranks if rank in known]
    if len(present) < len(ranks):
        ordered = sorted(ranks)
    elif all(_place(one) is not None for one in present):
        ordered = sorted(ranks, key=lambda rank: _place(known[rank]) or 0)
    else:
        ordered = sorted(ranks, key=lambda rank: _who_waits(known[rank]))
    return Pipeline(tuple(ordered), _of(ordered, known))


def _place(one: RankPieces) -> int | None:
    if one.device is not None:
        return one.device
    stages = {piece.stage for step in one.steps for piece in step.pieces}
    return None if None in stages else min((stage for stage in stages if stage is not None), default=None)


def _who_waits(one: RankPieces) -> tuple[int, int]:
    """A stage further on waits longer for its first forward pass, and makes no more of them before its first backward.

    The number needs no clock; where it ties (GPipe makes all of them first) the time decides.
    """
    first_step = next(step for step in one.steps if step.pieces)
    forwards = 0
    for piece in first_step.pieces:
        if piece.kind is not Kind.FORWARD:
            break
        forwards += 1
    return -forwards, _first_forward_ns(one)


def _first_forward_ns(one: RankPieces) -> int:
    """When the first forward pass of the last step began: in the first one each rank waits for its own profiler."""
    last = [step for step in one.steps if step.pieces][-1]
    return min((piece.start_ns for piece in last.pieces if piece.kind is Kind.FORWARD), default=last.pieces[0].start_ns)
