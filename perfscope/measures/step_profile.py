"""What a rank did in each marked step, in parts that add up to it, to say what the rank that came last did longer.

Ranks that wait for each other take equally long for a step. While the others wait, the rank that they wait for computes
or works on its host. So what it did longer than they did is why it came last.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.measures.idle_gaps import gaps_of_steps
from perfscope.measures.parts import CAUSES, split
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Trace, distinct

_HOST = ("cuda_call", "operator", "between_operators", "host_launch")
#: Communication is where the others wait; it is no reason to come last.
PARTS = ("compute", "copy", "data_loading", "synchronisation", "host", "not_shown", "device", "communication")


class StepProfile(Struct, frozen=True, eq=False, array_like=True):
    """The marked steps of one device; ABSENT alone where none is marked, for the whole window.

    ``parts`` are nanoseconds: one row for each of PARTS, one column a step, which adds up to the step's window.
    """

    steps: tuple[int, ...]
    parts: Int64


def join_profiles(earlier: StepProfile | None, later: StepProfile | None) -> StepProfile | None:
    """The steps of two windows of one rank."""
    if earlier is None or later is None:
        return earlier or later
    return StepProfile(earlier.steps + later.steps, np.concatenate([earlier.parts, later.parts], axis=1))


def measure_steps(trace: Trace, device: int, rows: Bool, numbers: Int64) -> StepProfile:
    """The marked steps of a device; ``numbers`` has the number of each device event's step, or ABSENT."""
    marked = np.where(rows, trace.step, ABSENT)
    steps = distinct(marked[marked != ABSENT])
    members = [np.flatnonzero(marked == step) for step in steps] or [np.flatnonzero(rows)]
    idle = gaps_of_steps(trace, device, members)
    columns = []
    for rows_of_step, causes in zip(members, idle.T, strict=True):
        parts = split(trace.device.take(rows_of_step))
        of_idle = dict(zip(CAUSES, causes.tolist(), strict=True))
        host = sum(of_idle[cause] for cause in _HOST)
        listed = of_idle["data_loading"] + of_idle["synchronisation"] + of_idle["not_shown"] + host
        columns.append(
            (
                parts.compute,
                parts.exposed_copy,
                of_idle["data_loading"],
                of_idle["synchronisation"],
                host,
                of_idle["not_shown"],
                parts.idle - listed,
                parts.exposed_communication,
            )
        )
    names = tuple(int(numbers[rows_of_step[0]]) for rows_of_step in members)
    return StepProfile(names, np.array(columns, np.int64).T)
