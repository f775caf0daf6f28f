"""Events of Chrome's trace format as they are written, and where each rank stands in a merged timeline.

Times are microseconds with three decimals, from one origin. Traces of ranks on one host share ids of processes, of
threads and of arrows. In the merged file every rank has numbers of its own, in the order of the ranks, so that viewers
sort and name it, and join nothing by accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

import msgspec

from perfscope.analyzers.timeline import STATES, JobTracks, JoinedOperation, RankTracks
from perfscope.constants import NS_PER_US
from perfscope.tables.run import Run
from perfscope.tables.trace import ABSENT

_DECIMALS = 3
NOTHING = msgspec.Raw(b"")


class TraceEvent(msgspec.Struct, omit_defaults=True):
    """Any event; what need not be understood to move it to another clock stays as it was written."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    id: msgspec.Raw = NOTHING
    bp: str = ""
    s: str = ""
    args: msgspec.Raw = NOTHING
    id2: msgspec.Raw = NOTHING
    bind_id: msgspec.Raw = NOTHING
    scope: str = ""
    tts: msgspec.Raw = NOTHING
    tdur: msgspec.Raw = NOTHING
    flow_in: bool = False
    flow_out: bool = False
    cname: str = ""


def to_ns(text: bytes) -> int:
    """Nanoseconds of a number of microseconds, as a trace writes it. Raises ValueError: it is no number.

    >>> to_ns(b"4454887821519.163"), to_ns(b'"-1.5"'), to_ns(b"2e3")
    (4454887821519163, -1500, 2000000)
    """
    whole, point, fraction = text.strip(b'"').partition(b".")
    if len(fraction) <= _DECIMALS and whole.isdigit() and (fraction.isdigit() or not point):
        return int(whole + fraction.ljust(_DECIMALS, b"0"))
    try:
        number = Decimal(text.strip(b'"').decode()) * NS_PER_US
        return int(number.to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, UnicodeDecodeError):
        raise ValueError(text) from None


def to_us(time_ns: int) -> msgspec.Raw:
    """Nanoseconds as a number of microseconds with three decimals.

    >>> bytes(to_us(1234567)), bytes(to_us(-5))
    (b'1234.567', b'-0.005')
    """
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return msgspec.Raw(f"{sign}{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03}".encode())


def name_track(process: int, name: str, order: int, thread: int | None = None) -> list[TraceEvent]:
    """Events that name a process or one of its threads, and say where it stands."""
    kind = "process" if thread is None else "thread"
    return [
        TraceEvent("M", "", f"{kind}_name", process, thread or 0, to_us(0), args=to_json({"name": name})),
        TraceEvent("M", "", f"{kind}_sort_index", process, thread or 0, to_us(0), args=to_json({"sort_index": order})),
    ]


def to_json(value: object) -> msgspec.Raw:
    """A value that stands in an event."""
    return msgspec.Raw(msgspec.json.encode(value))


def to_text(events: list[TraceEvent]) -> bytes:
    """Events as they stand in a list, one a line, without the list's brackets."""
    return b",\n".join(map(msgspec.json.encode, events))


#: The process that holds the tracks of all ranks.
OVERVIEW = 1
_NUMBERS_PER_RANK = 10_000
_ARROWS_PER_TRACE = 1 << 32


@dataclass(frozen=True, slots=True)
class Slot:
    """A rank's place, or of a trace whose rank is not known: ``position`` from 1, ``label`` as ``rank 3 (dp 1, pp 0)``.

    ``process`` is the id of the process that was profiled, or ABSENT.
    """

    position: int
    label: str
    host: str
    process: int

    @property
    def host_process(self) -> int:
        """The number of its process on the host."""
        return self.position * _NUMBERS_PER_RANK

    def other_process(self, index: int) -> int:
        """The number of a device, or of whatever else its trace lists as a process."""
        return self.host_process + 1 + index

    def name_process(self, owner: int | str, process: int) -> str:
        """What viewers call its own process on the host, or another one that its trace lists."""
        if process != self.host_process:
            return f"{self.label}: {f'process {owner}' if isinstance(owner, int) else owner or 'profiler'}"
        where = f" {self.host}" if self.host else ""
        return f"{self.label}: host{where}" + ("" if self.process == ABSENT else f", process {self.process}")


def arrow_id(trace: int, arrow: int) -> int:
    """The id of an arrow of a trace; exact in a double for two million traces."""
    return (trace + 1) * _ARROWS_PER_TRACE + arrow % _ARROWS_PER_TRACE


def assign_slots(tracks: Sequence[RankTracks], run: Run | None) -> dict[str, Slot]:
    """The slot of each trace; ``tracks`` are in the order of the ranks."""
    coordinates = {rank.rank: rank.parallel for rank in run.ranks} if run else {}
    positions: dict[int | str, int] = {}
    slots = {}
    for rank in tracks:
        owner = rank.trace if rank.rank is None else rank.rank
        position = positions.setdefault(owner, len(positions) + 1)
        label = _label(rank.rank, coordinates.get(rank.rank, {}) if rank.rank is not None else {})
        slots[rank.trace] = Slot(position, label, rank.host, rank.process)
    return slots


def _label(rank: int | None, coordinates: Mapping[str, int]) -> str:
    if rank is None:
        return "unknown rank"
    axes = ", ".join(f"{axis} {index}" for axis, index in coordinates.items())
    return f"rank {rank} ({axes})" if axes else f"rank {rank}"


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
