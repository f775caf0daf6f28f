"""What a timeline shows of all ranks on one clock: steps, states of devices, calls, passes, collectives and bubbles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.clock import ClockOffsets
from perfscope.analyzers.clock import analyze as align_clocks
from perfscope.analyzers.collectives.calls import GroupKey, OperationKind, calls_by_group
from perfscope.analyzers.collectives.matching import match
from perfscope.analyzers.collectives.rank_calls import RankCalls, calls_of_groups, measure_device
from perfscope.analyzers.pipeline_bubble.extraction import extract_passes
from perfscope.analyzers.pipeline_bubble.layout import find_pipelines
from perfscope.analyzers.pipeline_bubble.rank_passes import RankPasses
from perfscope.analyzers.shared.idle_gaps import gaps_of_device
from perfscope.analyzers.shared.intervals import Intervals, covered, union
from perfscope.analyzers.shared.marked_steps import step_number, step_numbers
from perfscope.analyzers.shared.parts import CAUSES
from perfscope.errors import MissingInput
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

_BUSY = ("compute", "compute beside communication", "exposed communication", "exposed copy")
#: What a device does at a moment; while it is idle, what it waits for.
STATES = (*_BUSY, *(f"idle: {cause.replace('_', ' ')}" for cause in CAUSES))


class TrackStep(Struct, frozen=True):
    """One marked step, in nanoseconds on the wall clock of its host; at ``last_ns`` host and device were done."""

    number: int
    start_ns: int
    end_ns: int
    last_ns: int


class StateRuns(Struct, frozen=True, eq=False):
    """What a device did, without gaps, from its first event to its last one; times on the wall clock of its host.

    ``state`` has for each an index into STATES.
    """

    start_ns: Int64
    end_ns: Int64
    state: Int64


class RankTracks(Struct, frozen=True, eq=False):
    """What a timeline shows of one device of one rank in one window, or of a rank without a device.

    Times become those of the wall clock by ``base_ns``; an unknown host is ``""``, an unknown process ABSENT.
    """

    trace: str
    rank: int | None
    host: str
    process: int
    device: int | None
    base_ns: int
    steps: tuple[TrackStep, ...]
    states: StateRuns | None
    calls: RankCalls | None
    passes: RankPasses | None


def measure_tracks(trace: Trace) -> tuple[RankTracks, ...]:
    """The tracks of each device that ran something; one without a device where none did."""
    passes = extract_passes(trace)
    tracks = []
    for index, device in enumerate(distinct(trace.device.device) or [None]):
        rows = trace.device.device == (ABSENT if device is None else device)
        tracks.append(
            RankTracks(
                trace=trace.path,
                rank=trace.rank,
                host=trace.host,
                process=trace.process,
                device=device,
                base_ns=trace.base_ns,
                steps=tuple(_list_steps(trace, rows)),
                states=None if device is None else _find_states(trace, device, rows),
                calls=None if device is None else _list_calls(trace, device, rows),
                passes=None if index else passes,
            )
        )
    return tuple(tracks)


def _list_steps(trace: Trace, rows: Bool) -> Iterator[TrackStep]:
    numbers, ends = step_numbers(trace)[rows], trace.base_ns + trace.device.end_ns[rows]
    marks = trace.steps
    for name, start_ns, end_ns in zip(marks.name.tolist(), marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True):
        number, end = step_number(trace.names[name]), trace.base_ns + end_ns
        last_ns = int(ends[numbers == number].max(initial=end)) if number != ABSENT else end
        yield TrackStep(number, trace.base_ns + start_ns, end, last_ns)


def _list_calls(trace: Trace, device: int, rows: Bool) -> RankCalls:
    compute = covered(trace.device, rows & trace.device.is_work(Work.COMPUTE, Work.FUSED))
    groups = calls_by_group(trace, device, compute, most_ends=len(rows))
    return replace(measure_device(trace, device), groups=groups)


def _find_states(trace: Trace, device: int, rows: Bool) -> StateRuns:
    """Split a device's window into states; a gap with several causes is of the one that takes most of it."""
    events = trace.device
    compute, communication, copies = (
        covered(events, rows & events.is_work(*kinds))
        for kinds in ((Work.COMPUTE, Work.FUSED), (Work.COMMUNICATION, Work.FUSED), (Work.COPY,))
    )
    gaps = gaps_of_device(trace, device)
    sets = (
        compute - communication,
        compute & communication,
        communication - compute,
        copies - (compute | communication),
        gaps.gaps,
    )
    of_gaps = len(_BUSY) + gaps.parts.argmax(axis=0)
    state = np.concatenate([*(np.full(len(moments), index) for index, moments in enumerate(sets[:-1])), of_gaps])
    start, end = (np.concatenate([getattr(moments, edge) for moments in sets]) for edge in ("start", "end"))
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    assert (start[1:] == end[:-1]).all(), "the states of a device leave nothing out"
    return StateRuns(start + trace.base_ns, end + trace.base_ns, state[order])


class ClockShift(Struct, frozen=True):
    """What a rank's clock is ahead of the common one, and how far that may be wrong.

    Without a residual no collective connects the rank with the others, and its host's clock counts as it is.
    """

    offset_ns: int = 0
    residual_ns: int | None = None


class JoinedOperation(Struct, frozen=True):
    """A communication operation that several ranks made together, in nanoseconds on the common clock.

    Ranks are in the order in which they arrived; the transfer is the shortest duration on any rank.
    """

    group: GroupKey
    kind: OperationKind
    ranks: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    transfer_ns: int

    def among(self, ranks: Collection[int]) -> JoinedOperation:
        """The operation as some of its ranks saw it."""
        rows = [row for row, rank in enumerate(self.ranks) if rank in ranks]
        own = [tuple(column[row] for row in rows) for column in (self.ranks, self.start_ns, self.end_ns)]
        return replace(self, ranks=own[0], start_ns=own[1], end_ns=own[2])


class Bubble(Struct, frozen=True):
    """A time in which a stage of a pipeline ran no pass while another one did, on the common clock."""

    rank: int
    step: str
    start_ns: int
    end_ns: int


class JobTracks(Struct, frozen=True, eq=False):
    """The tracks of a job, by rank, then by time; those without a rank last.

    ``reference`` is the rank whose clock is the common one; absent where no collective connects two ranks.
    """

    ranks: tuple[RankTracks, ...]
    clocks: dict[int, ClockShift]
    reference: int | None
    operations: tuple[JoinedOperation, ...]
    bubbles: tuple[Bubble, ...]
    notes: tuple[str, ...]

    def clock_of(self, rank: int | None) -> ClockShift:
        """The clock of a rank."""
        return ClockShift() if rank is None else self.clocks.get(rank, ClockShift())

    def window(self) -> tuple[int, int]:
        """From the first thing that the tracks show to the last one, on the common clock."""
        moments = []
        for rank in self.ranks:
            shown = [moment for step in rank.steps for moment in (step.start_ns, step.last_ns)]
            if rank.states is not None:
                shown += [int(rank.states.start_ns[0]), int(rank.states.end_ns[-1])]
            moments += [moment - self.clock_of(rank.rank).offset_ns for moment in shown or [rank.base_ns]]
        return min(moments), max(moments)

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
    clocks = clocks_of(clock)
    alone = sorted({rank.rank for rank in ordered if rank.rank is not None} - set(clocks)) if clock else []
    if alone:
        ranks = ", ".join(map(str, alone))
        notes.append(f"No collective connects these ranks with the others, their host's clock counts: {ranks}.")
    operations = tuple(_join_operations(partials, clocks))
    reference = None if clock is None else clock.reference_rank
    return JobTracks(ordered, clocks, reference, operations, tuple(_find_bubbles(ordered, clocks)), tuple(notes))


def _place(tracks: RankTracks) -> tuple[bool, int, int, str, int]:
    begin_ns = tracks.steps[0].start_ns if tracks.steps else tracks.base_ns
    return tracks.rank is None, tracks.rank or 0, begin_ns, tracks.trace, tracks.device or 0


def clocks_of(clock: ClockOffsets | None) -> dict[int, ClockShift]:
    """The clock of each rank that collectives connect with others."""
    return {
        rank.rank: ClockShift(round(rank.offset_ns), round(rank.residual_ns or 0))
        for rank in (clock.ranks if clock else ())
        if rank.offset_ns is not None
    }


def _join_operations(
    partials: Sequence[tuple[RankCalls, ...]], clocks: dict[int, ClockShift]
) -> Iterator[JoinedOperation]:
    for key, members in calls_of_groups(partials).items():
        numbered = {rank: calls for rank, calls in members.items() if rank >= 0}
        if len(numbered) <= 1:
            continue
        matched = match(numbered, with_ends=True)
        offsets = np.array([clocks.get(rank, ClockShift()).offset_ns for rank in matched.ranks], np.int64)
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


def _find_bubbles(tracks: Sequence[RankTracks], clocks: dict[int, ClockShift]) -> Iterator[Bubble]:
    """Between the first pass of a step on any stage and the last one, where a stage runs none.

    A bubble that is shorter than the error of the clocks may be none.
    """
    traced = [rank.passes for rank in tracks if rank.passes is not None and rank.passes.rank is not None]
    try:
        pipelines = find_pipelines(traced) if traced else []
    except MissingInput:
        return
    for pipeline in pipelines:
        own = {stage.rank: clocks.get(stage.rank or 0, ClockShift()) for stage in pipeline.traced}
        error_ns = max(clock.residual_ns or 0 for clock in own.values())
        covered_by: dict[str, dict[int, Intervals]] = {}
        for stage in pipeline.traced:
            for step in stage.steps:
                spans = [(measured.start_ns, measured.end_ns) for measured in step.passes]
                starts, ends = np.array(spans, np.int64).reshape(-1, 2).T - own[stage.rank].offset_ns
                of_step = covered_by.setdefault(step.label, {})
                if spans and stage.rank is not None:
                    of_step[stage.rank] = of_step.get(stage.rank, Intervals()) | union(starts, ends)
        for label, of_ranks in covered_by.items():
            begin = min((int(moments.start[0]) for moments in of_ranks.values()), default=0)
            end = max((int(moments.end[-1]) for moments in of_ranks.values()), default=0)
            for rank, moments in of_ranks.items():
                gaps = moments.gaps(begin, end)
                for start_ns, end_ns in zip(gaps.start.tolist(), gaps.end.tolist(), strict=True):
                    if end_ns - start_ns > error_ns:
                        yield Bubble(rank, label, start_ns, end_ns)
