"""The time of a step, from the ends of the device's work: it is what a step takes while the host runs ahead, too.

The work of a job's marked steps lasts from the end of what was launched before them to the end of their own, on the
rank where each is last; the time of a step is the median of three or more, else the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.replay.job_graph import JobGraph
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.errors import MissingInput
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT

#: Of fewer steps nobody can say which one was disturbed.
_FEWEST_FOR_MEDIAN = 3


class StepSpan(Struct, frozen=True):
    """The marked steps of a job on the first rank's clock.

    Attributes:
        start_ns: The end of what was launched before them, on the last rank.
        end_ns: The end of their own work, on the last rank.
        last_rank: The position of that rank.
        last_event: Its last event.
        steps: How many steps they are.
        edges_ns: When the work of each of them ended, on the last rank.
    """

    start_ns: int
    end_ns: int
    last_rank: int
    last_event: int
    steps: int
    edges_ns: tuple[int, ...] = ()

    @property
    def _lengths_ns(self) -> Int64:
        return np.diff((self.start_ns, *self.edges_ns))

    @property
    def step_ns(self) -> float:
        """The time of one step: of three or more the median, because one may have been disturbed; else the mean."""
        lengths = self._lengths_ns
        if len(lengths) < _FEWEST_FOR_MEDIAN:
            return (self.end_ns - self.start_ns) / self.steps
        return float(np.median(lengths))

    @property
    def standard_error_ns(self) -> float:
        """That of the time of a step, from how much the steps differ; 0 where there is one step alone."""
        lengths = self._lengths_ns
        return float(np.std(lengths, ddof=1) / math.sqrt(len(lengths))) if len(lengths) > 1 else 0.0


def measured_ends(job: JobGraph) -> tuple[Int64, ...]:
    """When each event of each rank ended, on the first rank's clock."""
    return tuple(graph.end_ns + offset_ns for graph, offset_ns in zip(job.ranks, job.offset_ns, strict=True))


def span_of_steps(job: JobGraph, ends_ns: Sequence[Int64]) -> StepSpan:
    """The marked steps, where events end at these times.

    Raises:
        MissingInput: No rank marked a step, or the ranks marked different ones.
    """
    marks = {graph.marks for graph in job.ranks}
    if len(marks) != 1:
        raise MissingInput("the ranks marked different steps, which one replay cannot join")
    steps = len(marks.pop())
    if not steps:
        raise MissingInput("no step is marked: a replay needs ProfilerStep#N, as torch.profiler's step() marks them")
    begins, ends, lasts = [], [], []
    for graph, end_ns, offset_ns in zip(job.ranks, ends_ns, job.offset_ns, strict=True):
        own = np.flatnonzero(graph.step != ABSENT)
        if not len(own):
            raise MissingInput("no event of the device was launched in a marked step")
        before = launched_before(graph)
        begins.append(int(end_ns[before].max()) if before.any() else _first_moment(graph, own) + int(offset_ns))
        last = int(own[np.argmax(end_ns[own])])
        lasts.append(last)
        ends.append(int(end_ns[last]))
    last_rank = int(np.argmax(ends))
    return StepSpan(max(begins), ends[last_rank], last_rank, lasts[last_rank], steps, _edges_of_steps(job, ends_ns))


def _first_moment(graph: RankGraph, events: Int64) -> int:
    """When the steps of a rank begin whose trace shows nothing before them: the host waited for the device then."""
    first_ns = int(graph.start_ns[events].min())
    return first_ns if graph.first_mark_ns is None else min(first_ns, graph.first_mark_ns)


def _edges_of_steps(job: JobGraph, ends_ns: Sequence[Int64]) -> tuple[int, ...]:
    """When each marked step ended, on the rank where it ended last."""
    edges = []
    for step in job.ranks[0].marks:
        ends = [
            int(end_ns[graph.step == step].max())
            for graph, end_ns in zip(job.ranks, ends_ns, strict=True)
            if (graph.step == step).any()
        ]
        edges += [max(ends)] if ends else []
    return tuple(edges)


def launched_before(graph: RankGraph) -> Bool:
    """Which events of a rank were launched before its first marked step."""
    in_steps = graph.step != ABSENT
    first, begin_ns = graph.launch[in_steps].min(), graph.start_ns[in_steps].min()
    before = np.where(graph.launch == ABSENT, graph.start_ns < begin_ns, graph.launch < first)
    return np.asarray(~in_steps & before)
