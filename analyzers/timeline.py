"""What every device did at every moment, on one clock: the time in each state, and what a picture of it needs.

In traces without a GPU it is what the host did. The states leave nothing out: they add up to the window exactly. A
picture of many ranks joins short states to their neighbours, and shows some ranks of a very large job; the times here
are always those of all states.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.clock import analyze as align_clocks
from perfscope.analyzers.collectives.calls import GroupKey, OperationKind, calls_by_group
from perfscope.analyzers.collectives.matching import match
from perfscope.analyzers.collectives.rank_calls import RankCalls, calls_of_groups, measure_device
from perfscope.analyzers.host import find_activity, find_window, outermost_operators
from perfscope.analyzers.pipeline_bubble.extraction import extract_passes
from perfscope.analyzers.pipeline_bubble.layout import find_pipelines
from perfscope.analyzers.pipeline_bubble.rank_passes import RankPasses
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.measures.idle_gaps import gaps_of_device
from perfscope.measures.marked_steps import step_number, step_numbers
from perfscope.measures.parts import CAUSES
from perfscope.report import MOST_ROWS, Cell, Column, Section, long_table, percent_of
from perfscope.result import Doc, Figures, Result, figure
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.intervals import Intervals, covered, union
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

_BUSY = ("compute", "compute beside communication", "exposed communication", "exposed copy")
#: What a device does at a moment; while it is idle, what it waits for.
STATES = (*_BUSY, *(f"idle: {cause.replace('_', ' ')}" for cause in CAUSES), "data loading", "outside of operators")
#: What a host does, in the order of ``_find_host_states``.
_OF_HOST = tuple(map(STATES.index, ("compute", "exposed communication", "data loading", "outside of operators")))


class TrackStep(Struct, frozen=True):
    """One marked step, in nanoseconds on the wall clock of its host; at ``last_ns`` host and device were done."""

    number: int
    start_ns: int
    end_ns: int
    last_ns: int


class StateRuns(Struct, frozen=True, eq=False):
    """What a device did, without gaps, as indexes into STATES; times on the wall clock of its host."""

    start_ns: Int64
    end_ns: Int64
    state: Int64


class RankTracks(Struct, frozen=True, eq=False):
    """What a timeline shows of one device of one rank, or of a rank without one; base_ns is added to its times."""

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
    of_gaps = len(_BUSY) + gaps.parts.argmax(axis=0)
    sets = (
        compute - communication,
        compute & communication,
        communication - compute,
        copies - (compute | communication),
        gaps.gaps,
    )
    states = [*(np.full(len(moments), index) for index, moments in enumerate(sets[:-1])), of_gaps]
    return _in_order(trace, sets, states)


def _find_host_states(trace: Trace) -> StateRuns:
    start_ns, end_ns = find_window(trace)
    compute, communication, loading = (moments.clip(start_ns, end_ns) for moments in find_activity(trace))
    rest = (compute | communication | loading).gaps(start_ns, end_ns)
    sets = (compute, communication - compute, loading, rest)
    states = [np.full(len(moments), state) for state, moments in zip(_OF_HOST, sets, strict=True)]
    return _in_order(trace, sets, states)


def _in_order(trace: Trace, sets: Sequence[Intervals], states: Sequence[Int64]) -> StateRuns:
    """Sets of moments with the states of each, as runs."""
    state = np.concatenate(states)
    start, end = (np.concatenate([getattr(moments, edge) for moments in sets]) for edge in ("start", "end"))
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    assert (start[1:] == end[:-1]).all(), "the states of a device leave nothing out"
    return StateRuns(start + trace.base_ns, end + trace.base_ns, state[order])


class ClockShift(Struct, frozen=True):
    """What a rank's clock is ahead of the common one, and how far that may be wrong; None without a collective."""

    offset_ns: int = 0
    residual_ns: int | None = None


class JoinedOperation(Struct, frozen=True):
    """An operation that several ranks made together, in nanoseconds on the common clock; ranks are as they arrived."""

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
    """The tracks of a job, by rank, then by time; without a reference no collective connects two ranks."""

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


def join_tracks(tracks: Sequence[RankTracks], shown: Sequence[RankTracks] | None = None) -> JobTracks:
    """The tracks that are shown, by default all, on the clock that all ranks have in common."""
    clock, notes, ranks = None, [], {rank.rank for rank in tracks}
    try:
        clock = align_clocks([(rank.calls,) for rank in sorted(tracks, key=_place) if rank.calls is not None])
    except MissingInput:
        if len(ranks) > 1:
            notes.append("No collective on GPUs connects the ranks: the clocks of their hosts are taken as they are.")
    clocks = {
        rank.rank: ClockShift(round(rank.offset_ns), round(rank.residual_ns or 0))
        for rank in (clock.ranks if clock else ())
        if rank.offset_ns is not None
    }
    alone = sorted(rank for rank in ranks if rank is not None and rank not in clocks) if clock else []
    if alone:
        listed = ", ".join(map(str, alone))
        notes.append(f"No collective connects these ranks with the others, their host's clock counts: {listed}.")
    ordered = tuple(sorted(tracks if shown is None else shown, key=_place))
    operations = tuple(_join_operations([(rank.calls,) for rank in ordered if rank.calls is not None], clocks))
    reference = None if clock is None else clock.reference_rank
    return JobTracks(ordered, clocks, reference, operations, tuple(_find_bubbles(ordered, clocks)), tuple(notes))


def _place(tracks: RankTracks) -> tuple[bool, int, int, str, int]:
    begin_ns = tracks.steps[0].start_ns if tracks.steps else tracks.base_ns
    return tracks.rank is None, tracks.rank or 0, begin_ns, tracks.trace, tracks.device or 0


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


class LongestEvents(Struct, frozen=True, eq=False):
    """Some of a device's ``total`` events, in the order of their start; times on the wall clock of its host."""

    names: tuple[str, ...]
    name: Int64
    start_ns: Int64
    end_ns: Int64
    total: int


def find_longest(trace: Trace, device: int | None, most: int) -> LongestEvents:
    """The longest events of a device; without one the longest operators that are in no other one."""
    events = trace.operators if device is None else trace.device
    is_shown = trace.device.device == device
    if device is None:
        start_ns, end_ns = find_window(trace)
        is_shown = outermost_operators(trace) & (events.start_ns >= start_ns) & (events.end_ns <= end_ns)
    rows = np.flatnonzero(is_shown)
    total = len(rows)
    if total > most:
        rows = rows[np.sort(np.argpartition(-events.duration_ns[rows], most)[:most])]
    used, name = np.unique(events.name[rows], return_inverse=True)
    return LongestEvents(
        tuple(trace.names[index] for index in used.tolist()),
        np.asarray(name, np.int64),
        trace.base_ns + events.start_ns[rows],
        trace.base_ns + events.end_ns[rows],
        total,
    )


def simplify(states: StateRuns, most: int) -> tuple[StateRuns, int]:
    """Join neighbours that are shorter than ever longer times, until no more than ``most`` pieces are left."""
    if len(states.state) <= most:
        return states, 0
    span_ns = int(states.end_ns[-1] - states.start_ns[0])
    shortest_ns = max(1, span_ns // (4 * most))
    while True:
        joined = _join(states, shortest_ns)
        if len(joined.state) <= max(most, 1):
            return joined, shortest_ns
        shortest_ns *= 2


def _join(states: StateRuns, shortest_ns: int) -> StateRuns:
    """Each run of short states within one stretch of ``shortest_ns`` is one piece."""
    is_short = states.end_ns - states.start_ns < shortest_ns
    stretch = (states.start_ns - states.start_ns[0]) // shortest_ns
    begins = np.ones(len(is_short), np.bool_)
    begins[1:] = ~is_short[1:] | ~is_short[:-1] | (stretch[1:] != stretch[:-1])
    first = np.flatnonzero(begins)
    state = sum_states(states, np.cumsum(begins) - 1, len(first)).argmax(axis=1)
    changes = np.flatnonzero(np.diff(state, prepend=-1))  # neighbours of the same state are one
    starts = states.start_ns[first[changes]]
    return StateRuns(starts, np.append(starts[1:], states.end_ns[-1]), np.asarray(state[changes], np.int64))


def sum_states(states: StateRuns, piece: Int64, pieces: int) -> Int64:
    """The time in each state: one row a piece, one column a state, in nanoseconds."""
    time_ns = np.zeros((pieces, len(STATES)), np.int64)
    np.add.at(time_ns, (piece, states.state), states.end_ns - states.start_ns)
    return time_ns


#: Over all ranks of a job.
_MOST_STATES, _FEWEST_STATES = 320_000, 600
_MOST_EVENTS = 40_000
#: A job of more ranks is shown by this many of them.
MOST_SHOWN = 128
_BINS = 480


class DeviceTimeline(Struct, frozen=True, eq=False):
    """What one device of one rank did; ``time_ns`` has each of STATES; those shorter than ``joined_ns`` are joined."""

    tracks: RankTracks
    longest: LongestEvents
    time_ns: tuple[int, ...]
    joined_ns: int


class DeviceStates(Figures, frozen=True):
    """What one device did."""

    rank: Annotated[int | None, Doc("Its rank.")]
    device: Annotated[int | None, Doc("Index of the GPU; None of a host.")]
    window_us: Annotated[float, Doc("The whole window.")]
    states: Annotated[Mapping[str, float], Doc("The time of each state that occurs; they add up to the window.")]


class JobTimeline(Result, frozen=True, eq=False):
    """``results.timeline``: what every device did at every moment, on one clock.

    Attributes:
        shown: The positions in ``devices`` of those that a picture shows, in its order; ``job`` has their tracks.
        why_shown: For each of these why, where it shows some; empty where it shows all.
        shares: The nanoseconds of all devices, one row a stretch of equal length, one column a state.
    """

    devices: tuple[DeviceTimeline, ...]
    job: JobTracks
    shown: tuple[int, ...]
    why_shown: tuple[str, ...]
    start_ns: Annotated[int, Doc("Where it begins, on the wall clock.")]
    end_ns: Annotated[int, Doc("Where it ends.")]
    shares: Int64

    @figure
    def reference_rank(self) -> int | None:
        """The rank whose clock it is on; None where the hosts' clocks are taken as they are."""
        return self.job.reference

    @figure
    def ranks(self) -> tuple[DeviceStates, ...]:
        """Each device."""
        return tuple(
            DeviceStates(
                device.tracks.rank,
                device.tracks.device,
                sum(device.time_ns) / NS_PER_US,
                {name: ns / NS_PER_US for name, ns in zip(STATES, device.time_ns, strict=True) if ns},
            )
            for device in self.devices
        )

    @figure
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        return self.job.notes

    def sections(self) -> tuple[Section, ...]:
        """A row for each device, a column for each state that occurs."""
        used = [index for index in range(len(STATES)) if any(device.time_ns[index] for device in self.devices)]
        columns = (
            Column("Rank"),
            Column("Device"),
            Column("Window (ms)", 2),
            *(Column(f"{STATES[index].capitalize()} (%)") for index in used),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                device.tracks.rank,
                device.tracks.device,
                sum(device.time_ns) / NS_PER_MS,
                *(percent_of(device.time_ns[index], sum(device.time_ns)) for index in used),
            )
            for device in self.devices
        ]
        notes = ["The states leave nothing out; an idle moment is of the cause that takes most of its gap."]
        return (long_table("Timeline", columns, rows, (*notes, *self.notes), most=MOST_ROWS),)


def measure(trace: Trace) -> tuple[DeviceTimeline, ...] | None:
    """The timeline of each device in one trace, or of its host; None where neither is recorded."""
    ranks = max(trace.world_size or 1, 1)
    most = max(_MOST_STATES // ranks, _FEWEST_STATES)
    timelines = []
    for tracks in measure_tracks(trace):
        every = tracks.states
        if every is None and len(trace.operators):
            every = _find_host_states(trace)
        if every is not None:
            states, joined_ns = simplify(every, most)
            longest = find_longest(trace, tracks.device, _MOST_EVENTS // ranks)
            time_ns = sum_states(every, np.zeros(len(every.state), np.int64), 1)[0]
            shown = replace(tracks, states=states)
            timelines.append(DeviceTimeline(shown, longest, tuple(time_ns.tolist()), joined_ns))
    return tuple(timelines) or None


def analyze(partials: Sequence[tuple[DeviceTimeline, ...]]) -> JobTimeline:
    """Put all devices, or else all hosts, on one clock; MissingInput without events of a device and operators."""
    tracked = sorted((device for partial in partials for device in partial), key=_place_of)
    devices = [device for device in tracked if device.tracks.device is not None] or tracked
    if not devices:
        raise MissingInput("the traces contain neither GPU events nor operators")
    shown, why_shown = _choose(devices)
    job = join_tracks([device.tracks for device in devices], [devices[index].tracks for index in shown])
    start_ns, end_ns, shares = _sum_stretches(devices, job)
    return JobTimeline(tuple(devices), job, shown, why_shown, start_ns, end_ns, shares)


def _place_of(device: DeviceTimeline) -> tuple[bool, int, int, str]:
    tracks = device.tracks
    return tracks.rank is None, tracks.rank or 0, tracks.device or 0, tracks.trace


def _choose(devices: Sequence[DeviceTimeline]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """All devices, or of very many those that stand out by their time in a state, and every so many-th by computing."""
    if len(devices) <= MOST_SHOWN:
        return tuple(range(len(devices))), ()
    time_ns = np.array([device.time_ns for device in devices], np.float64)
    share = time_ns / np.maximum(time_ns.sum(axis=1, keepdims=True), 1)
    reasons: dict[int, str] = {}
    spread = share.std(axis=0)
    for state in np.argsort(-spread, kind="stable").tolist():
        order = np.argsort(share[:, state], kind="stable")
        if spread[state] > 0 and len(reasons) < MOST_SHOWN // 2:
            reasons.setdefault(int(order[-1]), f"most {STATES[state]}")
            reasons.setdefault(int(order[0]), f"least {STATES[state]}")
    busiest = np.argsort(share[:, 0], kind="stable")
    quantiles = np.linspace(0, 1, MOST_SHOWN - len(reasons))
    for quantile in quantiles.tolist():
        position = int(busiest[round(quantile * (len(devices) - 1))])
        reasons.setdefault(position, f"{quantile:.0%} of the ranks compute less")
    shown = sorted(reasons)
    return tuple(shown), tuple(reasons[index] for index in shown)


def _sum_stretches(devices: Sequence[DeviceTimeline], job: JobTracks) -> tuple[int, int, Int64]:
    moved = []
    for device in devices:
        states, offset_ns = device.tracks.states, job.clock_of(device.tracks.rank).offset_ns
        assert states is not None
        moved.append(StateRuns(states.start_ns - offset_ns, states.end_ns - offset_ns, states.state))
    start_ns = min(int(states.start_ns[0]) for states in moved)
    end_ns = max(int(states.end_ns[-1]) for states in moved)
    edges = np.linspace(start_ns, end_ns, _BINS + 1).astype(np.int64)
    shares = np.zeros((_BINS, len(STATES)), np.int64)
    for states in moved:
        cuts = np.unique(np.concatenate((states.start_ns, states.end_ns[-1:], edges)))
        cuts = cuts[(cuts >= states.start_ns[0]) & (cuts <= states.end_ns[-1])]
        row = np.searchsorted(states.start_ns, cuts[:-1], side="right") - 1
        stretch = np.clip(np.searchsorted(edges, cuts[:-1], side="right") - 1, 0, _BINS - 1)
        np.add.at(shares, (stretch, states.state[row]), np.diff(cuts))
    return start_ns, end_ns, shares
