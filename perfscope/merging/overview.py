"""The tracks of all ranks: steps, what devices did, collectives with arrows, passes, bubbles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.timeline import STATES, JobTracks, JoinedOperation, RankTracks
from perfscope.constants import NS_PER_US
from perfscope.merging.events import OVERVIEW, Slot, TraceEvent, arrow_id, name_track, to_json, to_us
from perfscope.tables.trace import ABSENT

#: Where the tracks of each kind begin among the numbers of a rank.
_STEPS, _DEVICE, _PASSES, _BUBBLES, _COLLECTIVES = range(0, 5_000, 1_000)
_OPERATION_ARROW = "operation of several ranks"
#: Arrows of this module, whose ids lie below those of all traces.
_BEFORE_ALL_TRACES = -1


@dataclass(frozen=True, slots=True)
class _Slice:
    """Something that took a while, on the common clock."""

    name: str
    start_ns: int
    end_ns: int
    arguments: Mapping[str, object]


def draw_overview(
    tracks: JobTracks,
    slots: Mapping[str, Slot],
    origin_ns: int,
    within: tuple[int, int] | None,
) -> Iterator[TraceEvent]:
    """The tracks of all ranks; ``origin_ns`` on the common clock is written as 0.

    What does not overlap the moments ``within`` is left out.
    """
    yield from name_track(OVERVIEW, "all ranks (perfscope)", 0)
    lanes = _Lanes(origin_ns, within)
    for rank in tracks.ranks:
        slot, offset_ns = slots[rank.trace], tracks.clock_of(rank.rank).offset_ns
        first = slot.host_process
        yield from lanes.draw(first + _STEPS, f"{slot.label}: steps", _draw_steps(rank, offset_ns))
        name = f"{slot.label}: device {rank.device}"
        device = first + _DEVICE + (rank.device or 0) % (_PASSES - _DEVICE)
        yield from lanes.draw(device, name, _draw_states(rank, offset_ns))
        yield from lanes.draw(first + _PASSES, f"{slot.label}: passes", _draw_passes(rank, offset_ns))
    by_number = {rank.rank: slots[rank.trace] for rank in tracks.ranks if rank.rank is not None}
    for number, slot in by_number.items():
        first = slot.host_process
        bubbles = [
            _Slice("bubble", bubble.start_ns, bubble.end_ns, {"step": bubble.step})
            for bubble in tracks.bubbles
            if bubble.rank == number
        ]
        yield from lanes.draw(first + _BUBBLES, f"{slot.label}: bubbles", bubbles)
    yield from _draw_operations(tracks.operations, by_number, lanes)


class _Lanes:
    """Draws slices on as many tracks as it takes, so that those of one track never cross."""

    def __init__(self, origin_ns: int, within: tuple[int, int] | None) -> None:
        self._origin_ns = origin_ns
        self._within = within
        self._free_from: dict[int, list[int]] = {}

    def draw(self, track: int, name: str, slices: Iterable[_Slice]) -> Iterator[TraceEvent]:
        """The events of slices, in the order of their start, and the names of the tracks that they need."""
        for part in sorted(slices, key=lambda part: (part.start_ns, part.end_ns)):
            yield from self.draw_slice(track, name, part)[1]

    def draw_slice(self, track: int, name: str, part: _Slice) -> tuple[int | None, list[TraceEvent]]:
        """One slice: its track, and its events; no track where it is left out."""
        if self._within and not (part.start_ns <= self._within[1] and part.end_ns >= self._within[0]):
            return None, []
        free_from = self._free_from.setdefault(track, [])
        lane = next((lane for lane, moment in enumerate(free_from) if moment <= part.start_ns), len(free_from))
        events = []
        if lane == len(free_from):
            free_from.append(0)
            events += name_track(OVERVIEW, name if lane == 0 else f"{name} ({lane + 1})", track + lane, track + lane)
        free_from[lane] = part.end_ns
        events.append(
            TraceEvent(
                "X", "perfscope", part.name, OVERVIEW, track + lane, to_us(part.start_ns - self._origin_ns),
                to_us(part.end_ns - part.start_ns), args=to_json(part.arguments),
            )
        )  # fmt: skip
        return track + lane, events

    def point(self, phase: str, arrow: int, track: int, moment_ns: int) -> TraceEvent:
        """One end of an arrow, or a point that it passes."""
        return TraceEvent(
            phase, _OPERATION_ARROW, _OPERATION_ARROW, OVERVIEW, track, to_us(moment_ns - self._origin_ns),
            id=to_json(arrow_id(_BEFORE_ALL_TRACES, arrow)), bp="e" if phase == "f" else "",
        )  # fmt: skip


def _draw_steps(rank: RankTracks, offset_ns: int) -> Iterator[_Slice]:
    for step in rank.steps:
        name = "step" if step.number == ABSENT else f"step {step.number}"
        yield _Slice(name, step.start_ns - offset_ns, step.end_ns - offset_ns, {"trace": rank.trace})


def _draw_states(rank: RankTracks, offset_ns: int) -> Iterator[_Slice]:
    if rank.states is None:
        return
    starts, ends, states = (column.tolist() for column in (rank.states.start_ns, rank.states.end_ns, rank.states.state))
    for start_ns, end_ns, state in zip(starts, ends, states, strict=True):
        yield _Slice(STATES[state], start_ns - offset_ns, end_ns - offset_ns, {})


def _draw_passes(rank: RankTracks, offset_ns: int) -> Iterator[_Slice]:
    for step in rank.passes.steps if rank.passes else ():
        for measured in step.passes:
            number = "" if measured.microbatch is None else f" {measured.microbatch}"
            stage = {} if measured.stage is None else {"stage": measured.stage}
            kind = measured.kind.name.replace("_", " ").lower()
            arguments = {"step": step.label, "work_us": measured.work_ns / NS_PER_US, **stage}
            yield _Slice(f"{kind}{number}", measured.start_ns - offset_ns, measured.end_ns - offset_ns, arguments)


def _draw_operations(
    operations: Sequence[JoinedOperation], slots: Mapping[int, Slot], lanes: _Lanes
) -> Iterator[TraceEvent]:
    """Operations in the order of their first arrival, each with an arrow from the first rank to the last one."""
    for number, operation in enumerate(sorted(operations, key=lambda operation: operation.start_ns[0])):
        ends: list[tuple[int, int]] = []
        for rank, start_ns, end_ns in zip(operation.ranks, operation.start_ns, operation.end_ns, strict=True):
            slot = slots[rank]
            part = _Slice(_name(operation), start_ns, end_ns, _describe(operation, end_ns - start_ns))
            track = slot.host_process + _COLLECTIVES
            drawn_on, events = lanes.draw_slice(track, f"{slot.label}: collectives", part)
            yield from events
            if drawn_on is not None:
                ends.append((drawn_on, start_ns))
        for index, (track, start_ns) in enumerate(ends if len(ends) > 1 else ()):
            phase = "s" if index == 0 else "f" if index == len(ends) - 1 else "t"
            yield lanes.point(phase, number, track, start_ns)


def _name(operation: JoinedOperation) -> str:
    size = "" if operation.kind.bytes == ABSENT else f" {operation.kind.bytes:,} B"
    return f"{operation.kind.operation or 'communication'}{size}"


def _describe(operation: JoinedOperation, duration_ns: int) -> dict[str, object]:
    return {
        "group": operation.group.name,
        "dtype": operation.kind.dtype,
        "ranks": list(operation.ranks),
        "first_to_arrive": operation.ranks[0],
        "last_to_arrive": operation.ranks[-1],
        "transfer_us": operation.transfer_ns / NS_PER_US,
        "waiting_us": (duration_ns - operation.transfer_ns) / NS_PER_US,
    }
