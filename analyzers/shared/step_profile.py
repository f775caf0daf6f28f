"""What a rank did in each marked step, in parts that add up to it, to say what the rank that came last did longer.

Ranks that wait for each other take equally long for a step; the rank that the others wait for spends in computing, or
on its host, what they spend in waiting. So what it did longer than they did is why it came last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct

from perfscope.analyzers.shared.device_parts import split
from perfscope.analyzers.shared.idle_gaps import CAUSES, gaps_of_steps
from perfscope.constants import NS_PER_US
from perfscope.report import Json, percent
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Trace, distinct

_HOST = ("cuda_call", "operator", "between_operators", "host_launch")
#: Communication is where the others wait; it is no reason to come last.
PARTS = ("compute", "copy", "data_loading", "synchronisation", "host", "not_shown", "device", "communication")
_REASONS = {
    "copy": "its device copied longer",
    "data_loading": "its host loaded data",
    "synchronisation": "its host waited in a synchronisation",
    "host": "its host was late (operators, Python, calls): launch-bound",
    "not_shown": "its host did what the trace does not show (a sleep, Python, data)",
    "device": "its device waited between events that had been launched",
}
#: The share of the excess that makes a part the reason.
_DECISIVE = 0.5
#: Smaller differences in pace or work explain nothing.
_NOTICEABLE = 0.01


class StepProfile(Struct, frozen=True, eq=False, array_like=True):
    """The marked steps of one device.

    Attributes:
        steps: Their numbers; ABSENT alone where none is marked, for the whole window.
        parts: Nanoseconds: one row for each of PARTS, one column a step; a column adds up to the step's window.
    """

    steps: tuple[int, ...]
    parts: Int64


class Reason(Struct, frozen=True):
    """Why a rank came last, by what it did longer than the others.

    Attributes:
        text: In words; absent where the trace does not show it.
        excess: How much longer than the mean of the others, by part, in nanoseconds; negative where shorter.
    """

    text: str | None
    excess: Mapping[str, float]

    def data(self) -> dict[str, Json]:
        """``reason`` and ``excess_us`` of a rank."""
        return {"reason": self.text, "excess_us": {f"{part}": ns / NS_PER_US for part, ns in self.excess.items()}}


def join_profiles(earlier: StepProfile | None, later: StepProfile | None) -> StepProfile | None:
    """The steps of two windows of one rank."""
    if earlier is None or later is None:
        return earlier or later
    return StepProfile(earlier.steps + later.steps, np.concatenate([earlier.parts, later.parts], axis=1))


def parts_of(profiles: Sequence[StepProfile], steps: Sequence[int]) -> Int64:
    """The parts of each profile over some of its steps: one row a profile, one column for each of PARTS."""
    rows = np.empty((len(profiles), len(PARTS)), np.int64)
    begin = 0
    for of_profile, neighbours in groupby(profiles, lambda profile: profile.steps):  # most ranks marked the same
        alike = np.stack([profile.parts for profile in neighbours])
        rows[begin : begin + len(alike)] = alike[:, :, np.isin(of_profile, steps)].sum(axis=2)
        begin += len(alike)
    return rows


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


def reason_of(own: Int64, others: Int64, slower: float, more_work: float, significant: float) -> Reason:
    """Why a rank came last.

    Args:
        own: Its PARTS, in nanoseconds.
        others: Those of the other ranks, one row a rank.
        slower: By which share the same kernels take longer on it than on the others.
        more_work: By which share it has more to compute.
        significant: A part that is longer by less explains nothing, in nanoseconds.
    """
    excess = dict(zip(PARTS, (own - np.mean(others, axis=0)).tolist(), strict=True))
    candidates = {part: ns for part, ns in excess.items() if part != "communication" and ns > 0}
    total = sum(candidates.values())
    part = max(candidates, key=lambda name: candidates[name], default=None)
    if part is None or candidates[part] < max(_DECISIVE * total, significant):
        return Reason(None, excess)
    if part != "compute":
        return Reason(_REASONS[part], excess)
    if max(more_work, slower) < _NOTICEABLE:
        return Reason("its device computed longer, though the compared kernels are as many and as fast", excess)
    if more_work > slower:
        return Reason(f"its device computed longer: {percent(more_work):.0f} % more work", excess)
    return Reason(f"its device computed longer: slower (the same kernels take {percent(slower):.0f} % longer)", excess)
