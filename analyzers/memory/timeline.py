"""The allocated bytes by category over a window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfscope.analyzers.memory.categories import CATEGORY_NAMES, Category, Purposes
from perfscope.analyzers.memory.lifetimes import Lifetimes
from perfscope.report import Json
from perfscope.tables.memory import AllocatorHistory

#: Points of a timeline; each shows the moment of its stretch at which most was allocated.
POINTS = 240


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes at some moments, in the order of time.

    Attributes:
        times_us: When, from the first event on; the number of the event where times were not recorded.
        is_timed: Whether these are times.
        categories: The bytes of each category at each moment, in the order of ``Category``.
        reserved: What the allocator held.
        steps: Where each training step begins, as an index of a moment, and its number.
    """

    times_us: tuple[int, ...]
    is_timed: bool
    categories: tuple[tuple[int, ...], ...]
    reserved: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]

    def data(self) -> dict[str, Json]:
        """Its value in JSON."""
        return {
            "times_us": list(self.times_us),
            "is_timed": self.is_timed,
            "categories": {CATEGORY_NAMES[category]: list(self.categories[category]) for category in Category},
            "reserved_bytes": list(self.reserved),
            "steps": [list(step) for step in self.steps],
        }


def draw_timeline(history: AllocatorHistory, lifetimes: Lifetimes, purposes: Purposes) -> Timeline:
    """Sum the categories at the highest moment of each of some stretches of the window."""
    count = len(history.events)
    edges = np.unique(np.linspace(0, count, min(POINTS, count) + 1).astype(np.int64))
    highest = [first + int(np.argmax(lifetimes.allocated[first:last])) for first, last in pairwise(edges.tolist())]
    moments = np.array(highest, np.int64)
    sums = []
    for category in Category:
        rows = purposes.categories == category
        deltas = np.zeros(count + 1, np.int64)
        begins, ends, sizes = lifetimes.begins[rows], lifetimes.ends[rows], lifetimes.rounded[rows]
        np.add.at(deltas, np.maximum(begins, 0), sizes)
        np.subtract.at(deltas, ends, sizes)
        sums.append(tuple(np.cumsum(deltas)[moments].tolist()))
    times = history.events.times_us
    is_timed = bool(len(times)) and bool((times > 0).all())
    return Timeline(
        times_us=tuple((times[moments] - times[0]).tolist() if is_timed else moments.tolist()),
        is_timed=is_timed,
        categories=tuple(sums),
        reserved=tuple(lifetimes.reserved[moments].tolist()),
        steps=tuple((int(np.searchsorted(moments, event)), step) for event, step in purposes.steps),
    )
