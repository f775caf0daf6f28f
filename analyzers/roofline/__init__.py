"""Analyzer: how far each operator is from what the GPU can do, by the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.roofline.measurement import RankWork, measure_work
from perfscope.analyzers.roofline.result import Roofline
from perfscope.errors import NoDevice
from perfscope.tables.trace import Trace


def measure(trace: Trace) -> RankWork | None:
    """The operators of one trace; None without device events."""
    return measure_work(trace)


def analyze(partials: Sequence[RankWork]) -> Roofline:
    """Put the ranks in order.

    Raises:
        NoDevice: No trace has device events.
    """
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    return Roofline(tuple(sorted(partials, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.path))))
