"""What a timeline shows of one rank: its steps, what its device did at every moment, its calls and its passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.communication.calls import calls_by_group
from perfscope.analyzers.communication.rank_calls import RankCalls, measure_device
from perfscope.analyzers.pipelines.extraction import extract_passes
from perfscope.analyzers.pipelines.rank_passes import RankPasses
from perfscope.analyzers.shared.idle_gaps import gaps_of_device
from perfscope.analyzers.shared.intervals import Intervals, covered
from perfscope.analyzers.shared.marked_steps import step_number, step_numbers
from perfscope.analyzers.shared.parts import CAUSES
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

_BUSY = ("compute", "compute beside communication", "exposed communication", "exposed copy")
#: What a device does at a moment; while it is idle, what it waits for.
STATES = (*_BUSY, *(f"idle: {cause.replace('_', ' ')}" for cause in CAUSES))


@dataclass(frozen=True, slots=True)
class TrackStep:
    """One marked step, in nanoseconds on the wall clock of its host.

    Attributes:
        number: Its number.
        start_ns, end_ns: When the host was in it.
        device_end_ns: When the last work ended that was launched in it; absent where it launched none.
    """

    number: int
    start_ns: int
    end_ns: int
    device_end_ns: int | None

    @property
    def last_ns(self) -> int:
        """When host and device were done with it."""
        return max(self.end_ns, self.device_end_ns or self.end_ns)


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """What a device did, without gaps, from its first event to its last one; times on the wall clock of its host.

    Attributes:
        start_ns: When each state began, ascending.
        end_ns: When it ended, which is when the next one begins.
        state: For each an index into STATES.
    """

    start_ns: Int64
    end_ns: Int64
    state: Int64


@dataclass(frozen=True, slots=True, eq=False)
class RankTracks:
    """What a timeline shows of one device of one rank in one window, or of a rank without a device.

    Attributes:
        trace: The file.
        rank: The rank; absent where nothing states it.
        host: The machine; ``""`` where not stated.
        process: The id of the profiled process, or ABSENT.
        device: Index of its GPU; absent without one.
        base_ns: What the trace adds to its times to get those of the wall clock.
        steps: Its marked steps.
        states: What the device did; absent without one.
        calls: Its communication; absent without a device.
        passes: Its passes of micro-batches; absent without a pipeline.
    """

    trace: str
    rank: int | None
    host: str
    process: int
    device: int | None
    base_ns: int
    steps: tuple[TrackStep, ...]
    states: States | None
    calls: RankCalls | None
    passes: RankPasses | None


def measure_tracks(trace: Trace) -> tuple[RankTracks, ...]:
    """The tracks of each device that ran something; one without a device where none did."""
    passes = extract_passes(trace)
    devices: list[int | None] = [*distinct(trace.device.device)] or [None]
    return tuple(_measure(trace, device, passes if index == 0 else None) for index, device in enumerate(devices))


def _measure(trace: Trace, device: int | None, passes: RankPasses | None) -> RankTracks:
    rows = trace.device.device == (ABSENT if device is None else device)
    return RankTracks(
        trace=trace.path,
        rank=trace.rank,
        host=trace.host,
        process=trace.process,
        device=device,
        base_ns=trace.base_ns,
        steps=tuple(_list_steps(trace, rows)),
        states=None if device is None else _find_states(trace, device, rows),
        calls=None if device is None else _list_calls(trace, device, rows),
        passes=passes,
    )


def _list_steps(trace: Trace, rows: Bool) -> Iterator[TrackStep]:
    numbers, ends = step_numbers(trace)[rows], trace.device.end_ns[rows]
    marks = trace.steps
    for name, start_ns, end_ns in zip(marks.name.tolist(), marks.start_ns.tolist(), marks.end_ns.tolist(), strict=True):
        number = step_number(trace.names[name])
        of_step = ends[numbers == number]
        device_end_ns = trace.base_ns + int(of_step.max()) if len(of_step) and number != ABSENT else None
        yield TrackStep(number, trace.base_ns + start_ns, trace.base_ns + end_ns, device_end_ns)


def _list_calls(trace: Trace, device: int, rows: Bool) -> RankCalls:
    """The communication of a device, with the ends of all operations."""
    compute = covered(trace.device, rows & trace.device.is_work(Work.COMPUTE, Work.FUSED))
    groups = calls_by_group(trace, device, compute, most_ends=len(rows))
    return replace(measure_device(trace, device), groups=groups)


def _find_states(trace: Trace, device: int, rows: Bool) -> States:
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
    return _in_order(sets, state, trace.base_ns)


def _in_order(sets: tuple[Intervals, ...], state: Int64, base_ns: int) -> States:
    start = np.concatenate([moments.start for moments in sets])
    end = np.concatenate([moments.end for moments in sets])
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    assert (start[1:] == end[:-1]).all(), "the states of a device leave nothing out"
    return States(start + base_ns, end + base_ns, state[order])
