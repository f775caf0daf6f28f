"""Which axis of parallelism a rank waited in: by the process groups whose work it waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analyzers.communication.process_groups import role_of
from perfscope.analyzers.late_ranks.parts import Part, StepParts, find_rows
from perfscope.tables.run import ProcessGroup, Run
from perfscope.tables.steps import Steps

_COLLECTIVE = ("collective",)


def axes_of_groups(run: Run) -> dict[int, tuple[str, ...]]:
    """By rank, the axis of each of its process groups, as ``TP``; empty for a group that serves none or several."""
    places = {rank.rank: {**rank.parallel} for rank in run.ranks}
    return {
        rank.rank: tuple(_find_axis(group, places, rank.world_size) for group in rank.groups)
        for rank in run.ranks
        if rank.groups
    }


def _find_axis(group: ProcessGroup, places: Mapping[int, Mapping[str, int]], world_size: int) -> str:
    """By the group's description, or else the one axis on which its ranks have different places."""
    role = role_of(group.description, _COLLECTIVE, len(group.ranks), world_size)
    if role and role != "world":
        return role
    axes = {axis for rank in group.ranks for axis in places.get(rank, {})}
    used = [axis for axis in axes if len({places.get(rank, {}).get(axis) for rank in group.ranks}) > 1]
    return used[0].upper() if len(used) == 1 else ""


def split_waits(
    parts: StepParts, tables: Sequence[Steps], axes_by_rank: Mapping[int, tuple[str, ...]]
) -> tuple[dict[str, int], ...]:
    """For each rank, its waits in collectives by axis, over the compared steps; what no axis is known of is left out.

    Args:
        parts: The steps of the ranks.
        tables: The last process of each of these ranks, in their order.
        axes_by_rank: The axis of each group of a rank.
    """
    waits = []
    for row, table in enumerate(tables):
        remaining = parts.parts_ns[Part.EXCHANGE][row] - parts.transfers_ns[row]
        by_axis: dict[str, int] = {}
        columns = () if table.host is None else table.host.groups_ns
        for axis, column in zip(axes_by_rank.get(table.rank, ()), columns, strict=False):
            if axis:
                taken = np.clip(np.ma.filled(column, 0)[find_rows(table.step, parts.step)], 0, remaining)
                remaining = remaining - taken
                by_axis[axis] = by_axis.get(axis, 0) + int(taken.sum())
        waits.append(by_axis)
    return tuple(waits)
