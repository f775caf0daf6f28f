"""Which axis of parallelism a rank waited in: by the process groups whose work it waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfscope.analyzers.communication.process_groups import role_of
from perfscope.analyzers.late_ranks.parts import Part, StepParts, find_rows
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps
from perfscope.wire.axes import FACTORS


def axes_of_groups(run: Run) -> dict[int, tuple[str, ...]]:
    """By rank, the axis of each of its process groups, as ``TP``; empty for a group that serves none or several."""
    lines = _find_lines(run)
    return {
        rank.rank: tuple(
            role_of(group.description, "", group.ranks, lines.get(min(group.ranks, default=-1), {}))
            for group in rank.groups
        )
        for rank in run.ranks
        if rank.groups
    }


def _find_lines(run: Run) -> dict[int, dict[str, Sequence[int]]]:
    """By rank and axis, the ranks that share all other axes with it; experts stand over those of data parallelism."""
    coordinates = {rank.rank: rank.parallel for rank in run.ranks}
    if not all(coordinates.values()):
        return {}  # a rank that states no coordinates may differ from the others on any axis
    used = [axis for axis in FACTORS if len({own.get(axis, 0) for own in coordinates.values()}) > 1]
    lines: dict[int, dict[str, Sequence[int]]] = {rank: {} for rank in coordinates}
    for axis in used:
        crossing = [crossed for crossed in used if crossed != axis]
        shared: dict[tuple[int, ...], list[int]] = {}
        for rank, own in coordinates.items():
            shared.setdefault(tuple(own.get(crossed, 0) for crossed in crossing), []).append(rank)
        for ranks in shared.values():
            for rank in ranks:
                lines[rank][axis] = ranks
    for rank, own in coordinates.items():
        if "ep" in own and "dp" in used:
            lines[rank]["ep"] = lines[rank]["dp"]
    return lines


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
