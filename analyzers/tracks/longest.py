"""The longest kernels and copies of a device, by name, for a picture that cannot show them all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.tables.columns import Int64
from perfscope.tables.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class LongestEvents:
    """Some of a device's events, in the order of their start; times on the wall clock of its host.

    Attributes:
        names: The distinct names.
        name: For each event an index into ``names``.
        start_ns, end_ns: When it ran.
        total: How many events the device had.
    """

    names: tuple[str, ...]
    name: Int64
    start_ns: Int64
    end_ns: Int64
    total: int


def find_longest(trace: Trace, device: int, most: int) -> LongestEvents:
    """The longest events of a device."""
    rows = np.flatnonzero(trace.device.device == device)
    total = len(rows)
    if total > most:
        longest = np.argpartition(-trace.device.duration_ns[rows], most)[:most] if most else rows[:0]
        rows = rows[np.sort(longest)] if most else rows[:0]
    used, name = np.unique(trace.device.name[rows], return_inverse=True)
    return LongestEvents(
        tuple(trace.names[index] for index in used.tolist()),
        np.asarray(name, np.int64),
        trace.base_ns + trace.device.start_ns[rows],
        trace.base_ns + trace.device.end_ns[rows],
        total,
    )
