"""How much communication hides behind computation, by the axis of parallelism that it serves.

The overlap fraction of a process group is the share of its communication time during which compute runs on the same
device. Hidden is not free: communication slows the compute kernels beside it, by the multiprocessors and the memory
bandwidth that it uses, so that a step without it would be shorter by more than its exposed time. On two H200 a step of
data-parallel training whose communication is exposed for 1.2 % of its time is 6.5 % faster without communication
(measured). 0.0 means that the device computes nothing meanwhile.

A group's communication time is the time that any of its kernels covers; the part of it that no compute kernel covers is
exposed. Where several groups are exposed at the same time, that time counts for the most urgent one (PP, TP, EP, CP,
DP, then groups of all ranks), so that the groups' exposed times add up to the exposed communication of ``breakdown``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain, groupby
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.communication.process_groups import (
    PRIORITY,
    described_role,
    is_point_to_point,
    is_transfer,
    roles_in,
)
from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.rank_labels import rank_labels
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput, NoDevice
from perfscope.report import Cell, Column, Json, Section, long_table, percent
from perfscope.tables.columns import Bool
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

_MOST_ROWS = 64
#: A group's name, whether these are its sends and receives, and the axis that they serve.
_Kind: TypeAlias = tuple[str, bool, str]


class GroupOverlap(Struct, frozen=True, array_like=True):
    """The communication of one process group for one axis on one device of one rank, in nanoseconds.

    Attributes:
        rank: The rank; absent where nothing states it.
        device: Index of its GPU.
        process: The id of the profiled process; absent where the trace does not state it.
        group: The group's name; ``""`` where the trace does not state it.
        is_point_to_point: Whether these are its sends and receives, which are kept apart from its collectives.
        description: What the framework calls the group.
        role: The axis of parallelism that it serves; ``""`` where it is unknown.
        size: Ranks in it; absent where not stated.
        communication: The time that it covers.
        hidden: The part of it during which compute runs.
        exposed: The part that is not hidden, and not counted for a more urgent group.
        marked: The same three times over the marked steps; absent where no step is marked.
    """

    rank: int | None
    device: int
    process: int | None
    group: str
    is_point_to_point: bool
    description: str
    role: str
    size: int | None
    communication: int
    hidden: int
    exposed: int
    marked: tuple[int, int, int] | None

    @property
    def row(self) -> tuple[int, int, int]:
        """The times that tables show: of the marked steps, or of the window where there are none."""
        return self.marked or (self.communication, self.hidden, self.exposed)

    @property
    def key(self) -> tuple[bool, int, int, int, str, bool, str]:
        """Identifies it, and sorts."""
        process = -1 if self.process is None else self.process
        return self.rank is None, self.rank or 0, self.device, process, self.group, self.is_point_to_point, self.role

    def plus(self, addend: GroupOverlap) -> GroupOverlap:
        """This group with the times of another entry added."""
        return replace(
            self,
            communication=self.communication + addend.communication,
            hidden=self.hidden + addend.hidden,
            exposed=self.exposed + addend.exposed,
            marked=_sums(self.marked, addend.marked) if self.marked and addend.marked else None,
        )

    def times(self) -> dict[str, Json]:
        """The times as microseconds."""
        return {
            **_in_microseconds(self.communication, self.hidden, self.exposed),
            "marked": _in_microseconds(*self.marked) if self.marked else None,
        }

    def data(self) -> dict[str, Json]:
        """One entry of ``results.overlap.groups``."""
        return {
            "rank": self.rank,
            "device": self.device,
            "process": self.process,
            "axis": self.role or None,
            "group": self.group or None,
            "point_to_point": self.is_point_to_point,
            "description": self.description or None,
            "size": self.size,
            **self.times(),
        }

    def cells(self) -> tuple[Cell, ...]:
        """The times as cells of a table."""
        communication, hidden, exposed = self.row
        fraction = hidden / communication if communication else None
        return communication / NS_PER_MS, exposed / NS_PER_MS, percent(fraction)


class Overlap(Struct, frozen=True):
    """Every process group's communication.

    Attributes:
        groups: One entry a rank, device and group.
        axes: The groups of each axis added up over ranks, in the order of urgency.
    """

    groups: Sequence[GroupOverlap]
    axes: tuple[GroupOverlap, ...]

    def data(self) -> Json:
        """``results.overlap``."""
        return {
            "axes": [{"axis": axis.role or None, **axis.times()} for axis in self.axes],
            "groups": [item.data() for item in self.groups],
        }

    def sections(self) -> tuple[Section, ...]:
        """A table of axes and one of groups."""
        times = (Column("Comm. (ms)", 2), Column("Exposed (ms)", 2), Column("Hidden (%)"))
        axes = tuple((axis.role or "not stated", *axis.cells()) for axis in self.axes if axis.row[0])
        urgency = " > ".join(role for role in PRIORITY if role)
        notes = (
            f"Over marked steps, summed over ranks. Time in which several axes are exposed counts for the first of "
            f"{urgency}.",
            "Hidden is not free: communication slows the kernels that run beside it. Exposed time is therefore neither "
            "the cost of communication nor what a step would gain without it.",
        )
        labels = rank_labels([(group.rank, group.device) for group in self.groups])
        groups = tuple(
            (label, group.role or "not stated", _title(group), group.size, *group.cells())
            for label, group in zip(labels, self.groups, strict=True)
            if group.row[0]
        )
        columns = (Column("Rank"), Column("Axis"), Column("Group"), Column("Ranks"), *times)
        return (
            Section("Overlap by axis of parallelism", (Column("Axis"), *times), axes, notes),
            long_table("Overlap by process group", columns, groups, most=_MOST_ROWS),
        )


def measure(trace: Trace) -> tuple[GroupOverlap, ...] | None:
    """The process groups of each device of one trace; None where the trace contains no device events."""
    if not len(trace.device):
        return None
    return tuple(group for device in distinct(trace.device.device) for group in _measure_device(trace, device))


def analyze(partials: Sequence[tuple[GroupOverlap, ...]]) -> Overlap:
    """Put the groups of all traces in order and add up their axes.

    Raises:
        MissingInput: No trace holds device events, or none communicates.
    """
    if not partials:
        raise NoDevice("the traces contain no GPU events")
    groups = tuple(_add_windows(chain.from_iterable(partials)))
    if not groups:
        raise MissingInput("no communication ran on a device")
    axes: dict[str, GroupOverlap] = {}
    for group in groups:
        axes[group.role] = axes[group.role].plus(group) if group.role in axes else group
    return Overlap(groups, tuple(axes[role] for role in PRIORITY if role in axes))


def members_by_group(trace: Trace, device: int) -> list[tuple[GroupOverlap, Bool]]:
    """The process groups of a device, the most urgent first, without times; and which device events are theirs."""
    events = trace.device
    rows = events.device == device
    communicates = rows & events.is_work(Work.COMMUNICATION, Work.FUSED)
    if not communicates.any():
        return []
    find_role = roles_in(trace)
    transferred = "", True, "PP" if _is_in_pipeline(trace) else ""
    kinds = [
        (call.group, is_point_to_point(call.operation), find_role(call.group, call.operation))
        for call in trace.collectives
    ] + [("", False, "")]
    numbers = {kind: number for number, kind in enumerate(sorted({*kinds, transferred}))}
    number_of = np.array([numbers[kind] for kind in kinds])[events.collective]  # ABSENT takes the last
    # Transfers that a framework batches carry no metadata; only their kernel's name identifies them.
    transfers = np.array([is_transfer(name) for name in trace.names], np.bool_)
    number_of[(events.collective == ABSENT) & transfers[events.name]] = numbers[transferred]
    groups = []
    for kind, number in numbers.items():
        members = communicates & (number_of == number)
        groups.append((_describe(trace, device, kind), members))
    return sorted(groups, key=lambda group: PRIORITY.index(group[0].role))


def _measure_device(trace: Trace, device: int) -> list[GroupOverlap]:
    groups = members_by_group(trace, device)
    if not groups:
        return []
    rows = trace.device.device == device
    members = [of_group for _, of_group in groups]
    step_of = np.where(rows, trace.step, ABSENT)
    steps = distinct(step_of[step_of != ABSENT])
    marked = [_measure_rows(trace, members, step_of == step) for step in steps]
    overlaps = []
    times = _measure_rows(trace, members, rows)
    for position, ((group, _), (communication, hidden, exposed)) in enumerate(zip(groups, times, strict=True)):
        if communication:
            of_steps = _sums(*(of_step[position] for of_step in marked)) if steps else None
            entry = replace(group, communication=communication, hidden=hidden, exposed=exposed)
            overlaps.append(replace(entry, marked=of_steps))
    return overlaps


def _measure_rows(trace: Trace, members: Sequence[Bool], rows: Bool) -> list[tuple[int, int, int]]:
    """Communication, its hidden and its exposed time among some events, by group, the most urgent first."""
    events = trace.device
    compute = covered(events, rows & events.is_work(Work.COMPUTE, Work.FUSED))
    accounted, times = compute, []
    for of_group in members:
        communication = covered(events, rows & of_group)
        hidden, exposed = (communication & compute).measure, (communication - accounted).measure
        times.append((communication.measure, hidden, exposed))
        accounted = accounted | communication
    return times


def _sums(*times: tuple[int, int, int]) -> tuple[int, int, int]:
    communication, hidden, exposed = (sum(column) for column in zip(*times, strict=True))
    return communication, hidden, exposed


def _in_microseconds(communication: int, hidden: int, exposed: int) -> dict[str, Json]:
    """Times of a group in JSON."""
    return {
        "communication_us": communication / NS_PER_US,
        "hidden_us": hidden / NS_PER_US,
        "exposed_us": exposed / NS_PER_US,
        "overlap_fraction": hidden / communication if communication else None,
    }


def _describe(trace: Trace, device: int, kind: _Kind) -> GroupOverlap:
    """An entry without its times."""
    group, is_pair, role = kind
    stated = trace.groups.get(group)
    description, size = (stated.description, stated.size) if stated else ("", None)
    return GroupOverlap(
        rank=trace.rank,
        device=device,
        process=None if trace.process == ABSENT else trace.process,
        group=group,
        is_point_to_point=is_pair,
        description=description,
        role=role,
        size=size,
        communication=0,
        hidden=0,
        exposed=0,
        marked=None,
    )


def _is_in_pipeline(trace: Trace) -> bool:
    """Whether the rank is in a pipeline, whose transfers may be batched."""
    stated = any(group.size > 1 and described_role(group.description) == "PP" for group in trace.groups.values())
    return stated or "pp" in trace.axes


def _add_windows(groups: Iterable[GroupOverlap]) -> Iterator[GroupOverlap]:
    """Add up the windows of each process."""
    key = attrgetter("key")
    return (reduce(GroupOverlap.plus, windows) for _, windows in groupby(tuple(sorted(groups, key=key)), key))


def _title(group: GroupOverlap) -> str:
    name = group.group or "not stated"
    described = f"{name} ({group.description})" if group.description not in ("", "undefined") else name
    return f"{described}, sends and receives" if group.is_point_to_point else described
