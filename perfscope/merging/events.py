"""Events of Chrome's trace format as they are written, and where each rank stands in a merged timeline.

Times are microseconds with three decimals, from one origin. Traces of ranks on one host share ids of processes, of
threads and of arrows. In the merged file every rank has numbers of its own, in the order of the ranks, so that viewers
sort and name it, and join nothing by accident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

import msgspec

from perfscope.analyzers.timeline import RankTracks
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
