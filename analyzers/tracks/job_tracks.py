"""The tracks of all ranks on the clock of one of them, with their collectives matched and their bubbles found."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as replace_struct

from perfscope.analyzers.clock import Clock
from perfscope.analyzers.clock import analyze as align_clocks
from perfscope.analyzers.communication.calls import GroupKey, Kind
from perfscope.analyzers.communication.matching import match
from perfscope.analyzers.communication.rank_calls import RankCalls, calls_of_groups
from perfscope.analyzers.pipelines.layout import find_pipelines
from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.analyzers.shared.intervals import Intervals, union
from perfscope.analyzers.tracks.rank_tracks import RankTracks
from perfscope.errors import MissingInput

_FEWEST_RANKS = 2


@dataclass(frozen=True, slots=True)
class RankClock:
    """What a rank's clock is ahead of the common one.

    Attributes:
        offset_ns: Subtracted from its times.
        residual_ns: How far that may be wrong; absent where no collective connects the rank with the others: then its
            host's clock counts as it is.
    """

    offset_ns: int = 0
    residual_ns: int | None = None


@dataclass(frozen=True, slots=True)
class JoinedOperation:
    """A communication operation that several ranks made together, in nanoseconds on the common clock.

    Attributes:
        group: Its group.
        kind: Operation, element type and size.
        ranks: The ranks, in the order in which they arrived.
        start_ns, end_ns: For each when it began and when it ended there.
        transfer_ns: The shortest duration on any rank: the time from the arrival of the last one on.
    """

    group: GroupKey
    kind: Kind
    ranks: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    transfer_ns: int

    def among(self, ranks: Collection[int]) -> JoinedOperation:
        """The operation as some of its ranks saw it."""
        rows = [row for row, rank in enumerate(self.ranks) if rank in ranks]
        own = [tuple(column[row] for row in rows) for column in (self.ranks, self.start_ns, self.end_ns)]
        return replace(self, ranks=own[0], start_ns=own[1], end_ns=own[2])


@dataclass(frozen=True, slots=True)
class Bubble:
    """A time in which a stage of a pipeline ran no pass while another one did, on the common clock."""

    rank: int
    step: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class JobTracks:
    """The tracks of a job.

    Attributes:
        ranks: The tracks, by rank, then by time; those without a rank last.
        clocks: The clock of each rank that has one of its own.
        reference: The rank whose clock is the common one; absent where no collective connects two ranks.
        operations: The collectives and transfers that ranks made together.
        bubbles: The bubbles of pipelines.
        notes: What a reader must know, as sentences.
    """

    ranks: tuple[RankTracks, ...]
    clocks: dict[int, RankClock]
    reference: int | None
    operations: tuple[JoinedOperation, ...]
    bubbles: tuple[Bubble, ...]
    notes: tuple[str, ...]

    def clock_of(self, rank: int | None) -> RankClock:
        """The clock of a rank."""
        return RankClock() if rank is None else self.clocks.get(rank, RankClock())

    def window(self) -> tuple[int, int]:
        """From the first thing that the tracks show to the last one, on the common clock."""
        starts, ends = [], []
        for rank in self.ranks:
            offset_ns = self.clock_of(rank.rank).offset_ns
            starts += [step.start_ns - offset_ns for step in rank.steps]
            ends += [step.last_ns - offset_ns for step in rank.steps]
            if rank.states is not None:
                starts.append(int(rank.states.start_ns[0]) - offset_ns)
                ends.append(int(rank.states.end_ns[-1]) - offset_ns)
            if not rank.steps and rank.states is None:
                starts.append(rank.base_ns - offset_ns)
                ends.append(rank.base_ns - offset_ns)
        return min(starts), max(ends)

    def window_of(self, steps: Sequence[int]) -> tuple[int, int] | None:
        """From the first rank's beginning of some steps to the last rank's end, on the common clock."""
        spans = [
            (step.start_ns - offset_ns, step.last_ns - offset_ns)
            for tracks in self.ranks
            for offset_ns in (self.clock_of(tracks.rank).offset_ns,)
            for step in tracks.steps
            if step.number in steps
        ]
        return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


def join_tracks(tracks: Sequence[RankTracks]) -> JobTracks:
    """Put the tracks of all ranks on one clock."""
    ordered = tuple(sorted(tracks, key=_place))
    partials = [(rank.calls,) for rank in ordered if rank.calls is not None]
    clock, notes = None, []
    try:
        clock = align_clocks(partials)
    except MissingInput:
        if len({rank.rank for rank in ordered}) > 1:
            notes.append("No collective on GPUs connects the ranks: the clocks of their hosts are taken as they are.")
    clocks = _to_clocks(clock)
    notes += _describe_unaligned(ordered, clocks, clock)
    operations = tuple(_join_operations(partials, clocks))
    reference = None if clock is None else clock.reference_rank
    return JobTracks(ordered, clocks, reference, operations, tuple(_find_bubbles(ordered, clocks)), tuple(notes))


def _place(tracks: RankTracks) -> tuple[bool, int, int, str, int]:
    begin_ns = tracks.steps[0].start_ns if tracks.steps else tracks.base_ns
    return tracks.rank is None, tracks.rank or 0, begin_ns, tracks.trace, tracks.device or 0


def _to_clocks(clock: Clock | None) -> dict[int, RankClock]:
    return {
        rank.rank: RankClock(round(rank.offset_ns), round(rank.residual_ns or 0))
        for rank in (clock.ranks if clock else ())
        if rank.offset_ns is not None
    }


def _describe_unaligned(
    tracks: Sequence[RankTracks], clocks: dict[int, RankClock], clock: Clock | None
) -> Iterator[str]:
    alone = sorted({rank.rank for rank in tracks if rank.rank is not None} - set(clocks)) if clock else []
    if alone:
        ranks = ", ".join(map(str, alone))
        yield f"No collective connects these ranks with the others, their host's clock counts: {ranks}."


def _join_operations(
    partials: Sequence[tuple[RankCalls, ...]], clocks: dict[int, RankClock]
) -> Iterator[JoinedOperation]:
    for key, members in calls_of_groups(partials).items():
        numbered = {rank: calls for rank, calls in members.items() if rank >= 0}
        if len(numbered) < _FEWEST_RANKS:
            continue
        matched = match(numbered, with_ends=True)
        offsets = np.array([clocks.get(rank, RankClock()).offset_ns for rank in matched.ranks], np.int64)
        ends = matched.end_ns - offsets[:, np.newaxis]
        starts = ends - matched.duration_ns
        arrival = np.argsort(starts, axis=0, kind="stable")
        for column in range(len(matched.kind)):
            order = arrival[:, column]
            yield JoinedOperation(
                group=key,
                kind=matched.kinds[matched.kind[column]],
                ranks=tuple(matched.ranks[row] for row in order),
                start_ns=tuple(starts[order, column].tolist()),
                end_ns=tuple(ends[order, column].tolist()),
                transfer_ns=int(matched.transfer_ns[column]),
            )


def _find_bubbles(tracks: Sequence[RankTracks], clocks: dict[int, RankClock]) -> Iterator[Bubble]:
    """Between the first pass of a step on any stage and the last one, where a stage runs none.

    A bubble that is shorter than the error of the clocks may be none.
    """
    traced = [rank.passes for rank in tracks if rank.passes is not None and rank.passes.rank is not None]
    if not traced:
        return
    try:
        pipelines = find_pipelines(traced)
    except MissingInput:
        return
    for pipeline in pipelines:
        stages = [_shift(stage, clocks) for stage in pipeline.traced]
        error_ns = max(clocks.get(stage.rank or 0, RankClock()).residual_ns or 0 for stage in stages)
        for label in dict.fromkeys(step.label for stage in stages for step in stage.steps):
            bubbles = _bubbles_of_step(label, stages)
            yield from (bubble for bubble in bubbles if bubble.end_ns - bubble.start_ns > error_ns)


def _shift(stage: RankPasses, clocks: dict[int, RankClock]) -> RankPasses:
    offset_ns = clocks.get(stage.rank or 0, RankClock()).offset_ns
    return replace_struct(stage, steps=tuple(step.shifted(-offset_ns) for step in stage.steps))


def _bubbles_of_step(label: str, stages: Sequence[RankPasses]) -> Iterator[Bubble]:
    covered: dict[int, Intervals] = {}
    for stage in stages:
        passes = [measured for step in stage.steps if step.label == label for measured in step.passes]
        if passes and stage.rank is not None:
            starts = np.array([measured.start_ns for measured in passes], np.int64)
            ends = np.array([measured.end_ns for measured in passes], np.int64)
            covered[stage.rank] = union(starts, ends)
    if not covered:
        return
    begin = min(int(moments.start[0]) for moments in covered.values())
    end = max(int(moments.end[-1]) for moments in covered.values())
    for rank, moments in covered.items():
        gaps = moments.gaps(begin, end)
        for start_ns, end_ns in zip(gaps.start.tolist(), gaps.end.tolist(), strict=True):
            yield Bubble(rank, label, start_ns, end_ns)
