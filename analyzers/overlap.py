"""How much communication hides behind computation, by the axis of parallelism that it serves.

1.0 means that a group's communication is free, 0.0 that every moment of it stalls the device. A process group's time is
the time that any of its kernels covers; what of it no compute kernel covers is exposed. Where groups are exposed at the
same time the time is given to the most urgent one (PP, TP, EP, CP, DP, then groups of all ranks), so that the groups'
exposed times add up to the exposed communication of ``breakdown``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analyzers.breakdown import covered
from perfscope.analyzers.communication.process_groups import PRIORITY, is_point_to_point, is_transfer, role_of
from perfscope.analyzers.shared.rank_labels import rank_labels
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section
from perfscope.tables.trace import ABSENT, Trace, Work, distinct

_MOST_ROWS = 64


@dataclass(frozen=True, slots=True)
class GroupOverlap:
    """The communication of one process group on one device of one rank, in nanoseconds.

    Attributes:
        rank: The rank; absent where nothing tells.
        device: Index of its GPU.
        process: The id of the profiled process; absent where the trace does not tell.
        group: The group's name; ``""`` where the trace does not say whose communication it is.
        is_point_to_point: Its sends and receives, which are told apart from its collectives.
        description: What the framework calls the group.
        role: The axis of parallelism that it serves; ``""`` where nothing tells.
        size: Ranks in it; absent where not stated.
        communication: The time that it covers.
        hidden: How much of that compute covers too.
        exposed: What is not hidden, and not given to a more urgent group.
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

    @property
    def key(self) -> tuple[bool, int, int, int, str, bool]:
        """What tells it from others, and its place among them."""
        process = -1 if self.process is None else self.process
        return self.rank is None, self.rank or 0, self.device, process, self.group, self.is_point_to_point

    @property
    def overlap_fraction(self) -> float | None:
        """The share of the communication that compute hides; absent without communication."""
        return self.hidden / self.communication if self.communication else None

    def plus(self, other: GroupOverlap) -> GroupOverlap:
        """The time of both, as this group's."""
        return replace(
            self,
            communication=self.communication + other.communication,
            hidden=self.hidden + other.hidden,
            exposed=self.exposed + other.exposed,
        )

    def times(self) -> dict[str, Json]:
        """The times as microseconds."""
        return {
            "communication_us": self.communication / NS_PER_US,
            "hidden_us": self.hidden / NS_PER_US,
            "exposed_us": self.exposed / NS_PER_US,
            "overlap_fraction": self.overlap_fraction,
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
        overlap = self.overlap_fraction
        hidden = None if overlap is None else 100 * overlap
        return self.communication / NS_PER_MS, self.exposed / NS_PER_MS, hidden


@dataclass(frozen=True, slots=True)
class Overlap:
    """Every process group's communication.

    Attributes:
        groups: One entry a rank, device and group.
        axes: The groups of each axis added up over ranks, in the order of urgency.
    """

    groups: tuple[GroupOverlap, ...]
    axes: tuple[GroupOverlap, ...]

    def data(self) -> Json:
        """``results.overlap``."""
        return {
            "axes": [{"axis": axis.role or None, **axis.times()} for axis in self.axes],
            "groups": [group.data() for group in self.groups],
        }

    def sections(self) -> tuple[Section, ...]:
        """A table of axes and one of groups."""
        times = (Column("Comm. (ms)", 2), Column("Exposed (ms)", 2), Column("Hidden (%)"))
        axes = tuple((axis.role or "not stated", *axis.cells()) for axis in self.axes)
        urgency = " > ".join(role for role in PRIORITY if role)
        note = f"Summed over ranks. Where axes are exposed at once, the time is given to the first of {urgency}."
        labels = rank_labels([(group.rank, group.device) for group in self.groups])
        groups = tuple(
            (
                label,
                group.role or "not stated",
                _named(group),
                group.size,
                *group.cells(),
            )
            for label, group in zip(labels, self.groups, strict=True)
        )
        left_out = len(groups) - _MOST_ROWS
        notes = (f"{left_out} more rows are in --format json.",) if left_out > 0 else ()
        columns = (Column("Rank"), Column("Axis"), Column("Group"), Column("Ranks"), *times)
        return (
            Section("Overlap by axis of parallelism", (Column("Axis"), *times), axes, (note,)),
            Section("Overlap by process group", columns, groups[:_MOST_ROWS], notes),
        )


def measure(trace: Trace) -> tuple[GroupOverlap, ...] | None:
    """The process groups of each device of one trace; None where the trace holds no device events."""
    if not len(trace.device):
        return None
    return tuple(group for device in distinct(trace.device.device) for group in _measure_device(trace, device))


def analyze(partials: Sequence[tuple[GroupOverlap, ...]]) -> Overlap:
    """Put the groups of all traces in order and add up their axes.

    Raises:
        MissingInput: No trace holds device events, or none communicates.
    """
    if not partials:
        raise MissingInput("the traces hold no GPU events")
    groups = _added([group for partial in partials for group in partial])
    if not groups:
        raise MissingInput("nothing communicates on a device")
    axes: dict[str, GroupOverlap] = {}
    for group in groups:
        axes[group.role] = axes[group.role].plus(group) if group.role in axes else group
    return Overlap(groups, tuple(axes[role] for role in PRIORITY if role in axes))


def _measure_device(trace: Trace, device: int) -> list[GroupOverlap]:
    events = trace.device
    rows = events.device == device
    compute = covered(events, rows & events.is_work(Work.COMPUTE, Work.FUSED))
    communicates = rows & events.is_work(Work.COMMUNICATION, Work.FUSED)
    kinds = [(one.group, is_point_to_point(one.operation)) for one in trace.collectives] + [("", False)]
    numbers = {kind: number for number, kind in enumerate(sorted({*kinds, ("", True)}))}
    number_of = np.array([numbers[kind] for kind in kinds])[events.collective]  # ABSENT takes the last
    # Transfers that a framework batches carry no metadata; their kernel's name is all that tells them.
    transfers = np.array([is_transfer(name) for name in trace.names], np.bool_)
    number_of[(events.collective == ABSENT) & transfers[events.name]] = numbers["", True]
    present = [(kind, communicates & (number_of == number)) for kind, number in numbers.items()]
    described = [_describe(trace, device, *kind, events.collective[members]) for kind, members in present]
    found = []
    given = compute
    for index in sorted(range(len(present)), key=lambda index: PRIORITY.index(described[index].role)):
        communication = covered(events, present[index][1])
        if len(communication):
            found.append(
                replace(
                    described[index],
                    communication=communication.measure,
                    hidden=(communication & compute).measure,
                    exposed=(communication - given).measure,
                )
            )
        given = given | communication
    return found


def _describe(trace: Trace, device: int, group: str, point_to_point: bool, collectives: np.ndarray) -> GroupOverlap:  # noqa: FBT001 - half of a key
    operations = {trace.collectives[index].operation for index in distinct(collectives) if index != ABSENT}
    known = trace.groups.get(group)
    description, size = (known.description, known.size) if known else ("", None)
    return GroupOverlap(
        rank=trace.rank,
        device=device,
        process=None if trace.process == ABSENT else trace.process,
        group=group,
        is_point_to_point=point_to_point,
        description=description,
        role=_role(trace, description, operations, size, batched=point_to_point and not group),
        size=size,
        communication=0,
        hidden=0,
        exposed=0,
    )


def _role(trace: Trace, description: str, operations: set[str], size: int | None, *, batched: bool) -> str:
    """The axis of a group; batched transfers are a pipeline's where the rank is in one by its groups' descriptions."""
    pipelines = (one for one in trace.groups.values() if one.size > 1 and role_of(one.description, (), 0, 0) == "PP")
    if batched and any(pipelines):
        return "PP"
    return role_of(description, operations, size, trace.world_size)


def _added(groups: Iterable[GroupOverlap]) -> tuple[GroupOverlap, ...]:
    """The windows of one process added up."""
    added: dict[tuple[bool, int, int, int, str, bool], GroupOverlap] = {}
    for group in groups:
        added[group.key] = added[group.key].plus(group) if group.key in added else group
    return tuple(added[key] for key in sorted(added))


def _named(group: GroupOverlap) -> str:
    name = group.group or "not stated"
    described = f"{name} ({group.description})" if group.description not in ("", "undefined") else name
    return f"{described}, sends and receives" if group.is_point_to_point else described
