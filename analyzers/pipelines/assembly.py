"""Puts the traces of the ranks of pipelines together, and measures their bubbles."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.pipelines.bubble_report import BubbleReport
from perfscope.analyzers.pipelines.layout import find_pipelines
from perfscope.analyzers.pipelines.measurement import measure_pipelines
from perfscope.analyzers.pipelines.rank_passes import RankPasses


def assemble_pipelines(partials: Sequence[RankPasses], pipelines: Sequence[Sequence[int]]) -> BubbleReport:
    """The bubble of every pipeline.

    Args:
        partials: The passes in each trace, at least one.
        pipelines: The ranks of each pipeline in the order of stages, where they are known; empty otherwise.

    Raises:
        MissingInput: The traces do not show which ranks form a pipeline.
    """
    return BubbleReport(measure_pipelines(find_pipelines(_join_windows(partials), pipelines)))


def _join_windows(partials: Sequence[RankPasses]) -> list[RankPasses]:
    """The traces of each rank as one, in the order of time: a run has a trace for every profiler window."""
    by_rank: dict[object, RankPasses] = {}
    for partial in sorted(partials, key=lambda partial: partial.start_ns):
        key = partial.rank if partial.rank is not None else object()
        earlier = by_rank.get(key)
        by_rank[key] = partial if earlier is None else earlier.followed_by(partial)
    return list(by_rank.values())
