"""What every device did at every moment, on one clock: the time in each state, and what a picture of it needs.

The states of a device leave nothing out: they add up to its window exactly. A picture of many ranks joins short states
to their neighbours, and shows some ranks of a very large job; the times here are always those of all states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.clock import analyze as align_clocks
from perfscope.analyzers.timeline.tracks import (
    STATES,
    JobTracks,
    RankTracks,
    StateRuns,
    clocks_of,
    join_tracks,
    measure_tracks,
)
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.report import Cell, Column, Section, long_table, percent_of
from perfscope.result import Doc, Figures, Result, figure
from perfscope.tables.columns import Int64
from perfscope.tables.trace import Trace


class LongestEvents(Struct, frozen=True, eq=False):
    """Some of a device's ``total`` events, in the order of their start; times on the wall clock of its host."""

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
        rows = rows[np.sort(np.argpartition(-trace.device.duration_ns[rows], most)[:most])]
    used, name = np.unique(trace.device.name[rows], return_inverse=True)
    return LongestEvents(
        tuple(trace.names[index] for index in used.tolist()),
        np.asarray(name, np.int64),
        trace.base_ns + trace.device.start_ns[rows],
        trace.base_ns + trace.device.end_ns[rows],
        total,
    )


class Simplified(NamedTuple):
    """States in fewer pieces, without gaps; those shorter than ``shortest_ns`` are joined, 0 where none was."""

    states: StateRuns
    shortest_ns: int


def simplify(states: StateRuns, most: int) -> Simplified:
    """Join neighbours that are shorter than ever longer times, until no more than ``most`` pieces are left."""
    if len(states.state) <= most:
        return Simplified(states, 0)
    span_ns = int(states.end_ns[-1] - states.start_ns[0])
    shortest_ns = max(1, span_ns // (4 * most))
    while True:
        joined = _join(states, shortest_ns)
        if len(joined.state) <= max(most, 1):
            return Simplified(joined, shortest_ns)
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
#: A job of more ranks is shown by some of them.
MOST_ROWS = 256
_ROWS_OF_LARGE_JOB = 96
_BINS = 480
_MOST_TABLE_ROWS = 64


class DeviceTimeline(Struct, frozen=True, eq=False):
    """What one device of one rank did; ``time_ns`` has each of STATES; those shorter than ``joined_ns`` are joined."""

    tracks: RankTracks
    longest: LongestEvents
    time_ns: tuple[int, ...]
    joined_ns: int


class DeviceStates(Figures, frozen=True):
    """What one device did."""

    rank: Annotated[int | None, Doc("Its rank.")]
    device: Annotated[int, Doc("Index of the GPU.")]
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
                device.tracks.device or 0,
                sum(device.time_ns) / NS_PER_US,
                {name: ns / NS_PER_US for name, ns in zip(STATES, device.time_ns, strict=True) if ns},
            )
            for device in self.devices
        )

    @figure
    def operations(self) -> int:
        """Operations of several ranks."""
        return len(self.job.operations)

    @figure
    def bubbles(self) -> int:
        """Bubbles between the passes of a pipeline."""
        return len(self.job.bubbles)

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
        notes = ["The states of a device leave nothing out; an idle moment is of the cause that takes most of its gap."]
        return (long_table("Timeline", columns, rows, (*notes, *self.notes), most=_MOST_TABLE_ROWS),)


def measure(trace: Trace) -> tuple[DeviceTimeline, ...] | None:
    """The timeline of each device in one trace; None where nothing ran on one."""
    ranks = max(trace.world_size or 1, 1)
    most = max(_MOST_STATES // ranks, _FEWEST_STATES)
    timelines = []
    for tracks in measure_tracks(trace):
        if tracks.states is not None and tracks.device is not None:
            simplified = simplify(tracks.states, most)
            longest = find_longest(trace, tracks.device, _MOST_EVENTS // ranks)
            time_ns = sum_states(tracks.states, np.zeros(len(tracks.states.state), np.int64), 1)[0]
            shown = replace(tracks, states=simplified.states)
            timelines.append(DeviceTimeline(shown, longest, tuple(time_ns.tolist()), simplified.shortest_ns))
    return tuple(timelines) or None


def analyze(partials: Sequence[tuple[DeviceTimeline, ...]]) -> JobTimeline:
    """Put the devices of all ranks on one clock.

    Raises:
        MissingInput: No trace has events of a device.
    """
    devices = sorted((device for partial in partials for device in partial), key=_place)
    if not devices:
        raise NoDevice("the traces contain no GPU events")
    shown, why_shown = _choose(devices)
    job = join_tracks([devices[index].tracks for index in shown])
    try:  # nothing where no collective connects the ranks
        clocks = clocks_of(
            align_clocks([(device.tracks.calls,) for device in devices if device.tracks.calls is not None])
        )
    except MissingInput:
        clocks = {}
    offsets = {rank: clock.offset_ns for rank, clock in clocks.items()}
    start_ns, end_ns, shares = _sum_stretches(devices, offsets)
    return JobTimeline(tuple(devices), job, shown, why_shown, start_ns, end_ns, shares)


def _place(device: DeviceTimeline) -> tuple[bool, int, int, str]:
    tracks = device.tracks
    return tracks.rank is None, tracks.rank or 0, tracks.device or 0, tracks.trace


def _choose(devices: Sequence[DeviceTimeline]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """All devices, or of very many those that stand out by their time in a state, and every so many-th by computing."""
    if len(devices) <= MOST_ROWS:
        return tuple(range(len(devices))), ()
    time_ns = np.array([device.time_ns for device in devices], np.float64)
    share = time_ns / np.maximum(time_ns.sum(axis=1, keepdims=True), 1)
    reasons: dict[int, str] = {}
    spread = share.std(axis=0)
    for state in np.argsort(-spread, kind="stable").tolist():
        order = np.argsort(share[:, state], kind="stable")
        if spread[state] > 0 and len(reasons) < _ROWS_OF_LARGE_JOB // 2:
            reasons.setdefault(int(order[-1]), f"most {STATES[state]}")
            reasons.setdefault(int(order[0]), f"least {STATES[state]}")
    busiest = np.argsort(share[:, 0], kind="stable")
    quantiles = np.linspace(0, 1, _ROWS_OF_LARGE_JOB - len(reasons))
    for quantile in quantiles.tolist():
        position = int(busiest[round(quantile * (len(devices) - 1))])
        reasons.setdefault(position, f"{quantile:.0%} of the ranks compute less")
    shown = sorted(reasons)
    return tuple(shown), tuple(reasons[index] for index in shown)


def _sum_stretches(devices: Sequence[DeviceTimeline], offsets: dict[int, int]) -> tuple[int, int, Int64]:
    moved = []
    for device in devices:
        states, rank = device.tracks.states, device.tracks.rank
        assert states is not None
        offset_ns = 0 if rank is None else offsets.get(rank, 0)
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
