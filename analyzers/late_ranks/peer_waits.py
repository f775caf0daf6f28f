"""Which blocked times are waits for a late rank, where devices wait for each other and hosts for their devices.

A rank that waits for a late one waits on its device. Its host goes on, and is blocked when it is so far ahead that it
needs a result of the device: in the same step, or a few later. That is no lateness of its own, by as much as the other
rank was late before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.late_ranks.parts import Part
from perfscope.tables.columns import Float64, Int64

#: How many steps a host runs ahead of its device.
_MOST_AHEAD = 3
#: In a step of which a rank is blocked for longer than usual by this share of a median step, it is looked why.
_LONG = 0.05


def without_peer_waits(excess: dict[Part, Float64], counted: Sequence[Part], step: Int64, median_ns: float) -> Float64:
    """By how much ranks are blocked longer than the others, without what another rank was late by, by rank and step.

    What is there in every step is compared with what is there in every step; single steps are taken in their order,
    because a wait for a wait is one as well.

    Args:
        excess: By how much ranks are later in each part.
        counted: The parts that make a rank late.
        step: The numbers of the steps.
        median_ns: How long a step takes.
    """
    blocked = excess[Part.BLOCKED]
    other = np.zeros(blocked.shape)
    for part in counted:
        if part is not Part.BLOCKED:
            other += np.maximum(excess[part], 0)
    usual, usual_other = np.maximum(np.median(blocked, axis=1), 0), np.median(other, axis=1)
    waits = np.minimum(usual, _most_of_others(usual_other[:, None])[:, 0])
    own = blocked - waits[:, None]
    beyond, beyond_other = own - (usual - waits)[:, None], other - usual_other[:, None]
    for column in np.flatnonzero(beyond.max(axis=0) > _LONG * median_ns).tolist():
        first = max(0, int(np.searchsorted(step[: column + 1], step[column] - _MOST_AHEAD)))
        late = beyond_other[:, first : column + 1].max(axis=1)
        if first < column:
            before = np.maximum(beyond[:, first:column], 0) + np.maximum(beyond_other[:, first:column], 0)
            late = np.maximum(late, before.max(axis=1))
        waited = np.clip(_most_of_others(np.maximum(late, 0)[:, None])[:, 0], 0, np.maximum(beyond[:, column], 0))
        beyond[:, column] -= waited
        own[:, column] -= waited
    return np.asarray(own, np.float64)


def _most_of_others(values: Float64) -> Float64:
    """For each rank the largest value of another rank, by rank and column."""
    ordered = np.sort(values, axis=0)
    return np.asarray(np.where(values == ordered[-1], ordered[-2], ordered[-1]), np.float64)
