"""The peak of one device's memory, and what it consists of: parts that add up to what the allocator held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from perfscope.analyzers.memory.categories import CATEGORY_NAMES, Category, Purposes, find_purposes, fold_layers
from perfscope.analyzers.memory.lifetimes import BEFORE, Lifetimes, follow
from perfscope.analyzers.memory.savings import Saving, find_savings
from perfscope.charts.grammar import Area, Chart, Line, Mark, Values
from perfscope.charts.palette import Colour
from perfscope.constants import GB, US_PER_S
from perfscope.report import Json
from perfscope.tables.columns import Int64
from perfscope.tables.memory import AllocatorHistory
from perfscope.wire.memory import ACTIONS, OUT_OF_MEMORY

#: Points of a timeline; each shows the moment of its stretch at which most was allocated.
POINTS = 240


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes at some moments, in the order of time.

    Attributes:
        times_us: When, from the first event on; the number of the event where times were not recorded.
        is_timed: Whether these are times.
        categories: The bytes of each category at each moment, in the order of ``Category``.
        reserved: What the allocator held.
        steps: Where each training step begins, as an index of a moment, and its number.
    """

    times_us: tuple[int, ...]
    is_timed: bool
    categories: tuple[tuple[int, ...], ...]
    reserved: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]

    def data(self) -> dict[str, Json]:
        """Its value in JSON."""
        return {
            "times_us": list(self.times_us),
            "is_timed": self.is_timed,
            "categories": {CATEGORY_NAMES[category]: list(self.categories[category]) for category in Category},
            "reserved_bytes": list(self.reserved),
            "steps": [list(step) for step in self.steps],
        }


def draw_timeline(history: AllocatorHistory, lifetimes: Lifetimes, purposes: Purposes) -> Timeline:
    """Sum the categories at the highest moment of each of some stretches of the window."""
    count = len(history.events)
    edges = np.unique(np.linspace(0, count, min(POINTS, count) + 1).astype(np.int64))
    highest = [first + int(np.argmax(lifetimes.allocated[first:last])) for first, last in pairwise(edges.tolist())]
    moments = np.array(highest, np.int64)
    sums = []
    for category in Category:
        rows = purposes.categories == category
        deltas = np.zeros(count + 1, np.int64)
        begins, ends, sizes = lifetimes.begins[rows], lifetimes.ends[rows], lifetimes.rounded[rows]
        np.add.at(deltas, np.maximum(begins, 0), sizes)
        np.subtract.at(deltas, ends, sizes)
        sums.append(tuple(np.cumsum(deltas)[moments].tolist()))
    times = history.events.times_us
    is_timed = bool(len(times)) and bool((times > 0).all())
    return Timeline(
        times_us=tuple((times[moments] - times[0]).tolist() if is_timed else moments.tolist()),
        is_timed=is_timed,
        categories=tuple(sums),
        reserved=tuple(lifetimes.reserved[moments].tolist()),
        steps=tuple((int(np.searchsorted(moments, event)), step) for event, step in purposes.steps),
    )


_OUT_OF_MEMORY = ACTIONS["oom"].encode()
OUTSIDE = "outside of modules"
_MOST_ALLOCATIONS = 20


class Part(NamedTuple):
    """A part of the peak.

    Attributes:
        name: A category, or a module.
        bytes: Its bytes.
        allocations: How many allocations it consists of.
    """

    name: str
    bytes: int
    allocations: int


class Allocation(NamedTuple):
    """One of the largest allocations of the peak.

    Attributes:
        category: What it is for.
        bytes: Its bytes.
        allocations: How many such allocations there are: of one category and place.
        module: The module, with repeated layers folded; empty outside of modules.
        name: The parameter; empty for others.
        place: The line of the script that allocated it; empty where no stack was recorded.
        operation: The innermost frame.
    """

    category: str
    bytes: int
    allocations: int
    module: str
    name: str
    place: str
    operation: str


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The peak of one device.

    Attributes:
        path: The file.
        rank, device: The rank, None where unknown, and its device.
        cause: ``window``, ``out of memory`` or ``snapshot``.
        step: The training step of the peak; None where unknown.
        events: Events of the history.
        peak_bytes: The most that was allocated, with the rounding of each request.
        reserved_bytes: What the allocator held of the device then.
        process_peak_bytes: The most that was allocated since the process started, by torch's counter.
        request_bytes: What could not be allocated; None where memory did not run out.
        device_bytes: The memory of the device; None where unknown.
        outside_bytes: Memory of the device that is not this allocator's, at the end: CUDA context, NCCL, other
            processes; None where unknown.
        categories: The parts of ``peak_bytes``, in a fixed order.
        requested_bytes: What tensors asked for.
        unused_bytes: Reserved beyond what was allocated: fragmentation and cache.
        modules: Activations by module, largest first; repeated layers are one row.
        allocations: The largest allocations, equal ones folded.
        savings: What would lower the peak, best first.
        timeline: Bytes by category over the window.
        attributed: Share of the peak in a category other than ``not attributed``.
        notes: What a reader must know.
        damage: What could not be read.
    """

    path: str
    rank: int | None
    device: int
    cause: str
    step: int | None
    events: int
    peak_bytes: int
    reserved_bytes: int
    process_peak_bytes: int | None
    request_bytes: int | None
    device_bytes: int | None
    outside_bytes: int | None
    categories: tuple[Part, ...]
    requested_bytes: int
    unused_bytes: int
    modules: tuple[Part, ...]
    allocations: tuple[Allocation, ...]
    savings: tuple[Saving, ...]
    timeline: Timeline
    attributed: float
    notes: tuple[str, ...]
    damage: tuple[str, ...]

    def category_bytes(self, category: Category) -> int:
        """The bytes of a category."""
        return self.categories[category].bytes

    def data(self) -> Mapping[str, Json]:
        """Its value in JSON."""
        return {
            "path": self.path,
            "rank": self.rank,
            "device": self.device,
            "cause": self.cause,
            "step": self.step,
            "events": self.events,
            "peak_bytes": self.peak_bytes,
            "reserved_bytes": self.reserved_bytes,
            "process_peak_bytes": self.process_peak_bytes,
            "request_bytes": self.request_bytes,
            "device_bytes": self.device_bytes,
            "outside_bytes": self.outside_bytes,
            "requested_bytes": self.requested_bytes,
            "unused_bytes": self.unused_bytes,
            "attributed": self.attributed,
            "categories": [part._asdict() for part in self.categories],
            "modules": [part._asdict() for part in self.modules],
            "allocations": [allocation._asdict() for allocation in self.allocations],
            "savings": [saving.data() for saving in self.savings],
            "timeline": self.timeline.data(),
            "notes": list(self.notes),
        }


def find_peak(history: AllocatorHistory, *, replicas: int = 1) -> DevicePeak:
    """Follow a history to its peak, and say what that consists of.

    Args:
        history: The history.
        replicas: Data-parallel ranks that hold the same states, as far as they are known.
    """
    lifetimes = follow(history)
    purposes = find_purposes(history, lifetimes)
    event = _find_moment(history, lifetimes)
    rows = np.flatnonzero(lifetimes.alive_behind(event))
    header = history.header
    peak = int(lifetimes.allocated[event]) if event > BEFORE else lifetimes.initial
    reserved = int(lifetimes.reserved[event]) if event > BEFORE else lifetimes.initial_reserved
    categories = _sum_categories(lifetimes, purposes, rows)
    if sum(part.bytes for part in categories) != peak:
        raise AssertionError(f"{history.path}: the parts of the peak do not add up to it")
    return DevicePeak(
        path=history.path,
        rank=None if header is None else header.rank,
        device=history.device,
        cause="snapshot" if header is None else header.cause,
        step=_find_step(purposes, event),
        events=len(history.events),
        peak_bytes=peak,
        reserved_bytes=reserved,
        process_peak_bytes=None if header is None else header.peak_allocated_bytes,
        request_bytes=None if header is None else header.request_bytes,
        device_bytes=None if header is None else header.device_total_bytes,
        outside_bytes=_outside(history),
        categories=categories,
        requested_bytes=int(lifetimes.sizes[rows].sum()),
        unused_bytes=reserved - peak,
        modules=_sum_modules(lifetimes, purposes, rows),
        allocations=_largest(lifetimes, purposes, rows),
        savings=find_savings(lifetimes, purposes, event, replicas=replicas),
        timeline=draw_timeline(history, lifetimes, purposes),
        attributed=1 - categories[Category.OTHER].bytes / peak if peak else 1.0,
        notes=_notes(history, lifetimes),
        damage=tuple(f"{history.path}: {text}" for text in history.damage),
    )


def _find_moment(history: AllocatorHistory, lifetimes: Lifetimes) -> int:
    """The event of the peak; of a history that was written as memory ran out, that error."""
    errors = np.flatnonzero(history.events.actions == _OUT_OF_MEMORY)
    is_error = history.header is not None and history.header.cause == OUT_OF_MEMORY
    return int(errors[-1]) if is_error and len(errors) else lifetimes.peak


def _find_step(purposes: Purposes, event: int) -> int | None:
    steps = [step for begin, step in purposes.steps if begin <= event]
    return steps[-1] if steps else None


def _outside(history: AllocatorHistory) -> int | None:
    header = history.header
    if header is None:
        return None
    return header.device_total_bytes - header.device_free_bytes - history.reserved_bytes


def _sum_categories(lifetimes: Lifetimes, purposes: Purposes, rows: Int64) -> tuple[Part, ...]:
    kinds, sizes = purposes.categories[rows], lifetimes.rounded[rows]
    return tuple(
        Part(CATEGORY_NAMES[category], int(sizes[kinds == category].sum()), int((kinds == category).sum()))
        for category in Category
    )


def _sum_modules(lifetimes: Lifetimes, purposes: Purposes, rows: Int64) -> tuple[Part, ...]:
    """Activations by module, repeated layers as one."""
    sums: dict[str, list[int]] = {}
    for row in rows[purposes.categories[rows] == Category.ACTIVATIONS]:
        total = sums.setdefault(_module(purposes, int(row)) or _find_line(lifetimes, purposes, int(row)), [0, 0])
        total[0] += int(lifetimes.rounded[row])
        total[1] += 1
    parts = (Part(name, size, count) for name, (size, count) in sums.items())
    return tuple(sorted(parts, key=lambda part: (-part.bytes, part.name)))


def _module(purposes: Purposes, row: int) -> str:
    number = int(purposes.modules[row])
    return fold_layers(purposes.module_names[number]) if number >= 0 else ""


def _find_line(lifetimes: Lifetimes, purposes: Purposes, row: int) -> str:
    """What stands in place of a module: the line of the script, where no module was marked."""
    fact = None if purposes.module_names else purposes.place(int(lifetimes.stacks[row]))
    return OUTSIDE if fact is None or not fact.place else fact.place


def _largest(lifetimes: Lifetimes, purposes: Purposes, rows: Int64) -> tuple[Allocation, ...]:
    folded: dict[tuple[str, str, str, str, str], list[int]] = {}
    for row in rows:
        fact = purposes.place(int(lifetimes.stacks[row]))
        name = fold_layers(purposes.names.get(int(row), ""))
        place, operation = ("", "") if fact is None else (fact.place, fact.operation)
        category = CATEGORY_NAMES[Category(purposes.categories[row])]
        entry = folded.setdefault((category, _module(purposes, int(row)), name, place, operation), [0, 0])
        entry[0] += int(lifetimes.rounded[row])
        entry[1] += 1
    allocations = [
        Allocation(category, size, count, module, name, place, operation)
        for (category, module, name, place, operation), (size, count) in folded.items()
    ]
    return tuple(sorted(allocations, key=lambda allocation: -allocation.bytes)[:_MOST_ALLOCATIONS])


def _notes(history: AllocatorHistory, lifetimes: Lifetimes) -> tuple[str, ...]:
    notes = list(history.damage)
    header = history.header
    if not history.stacks:
        notes.append("The history has no stacks: allocations inside the window cannot be told apart.")
    if header is not None and len(history.events) >= header.limit:
        notes.append(f"The allocator kept its last {header.limit:,} events only: the begin of the window is missing.")
    if lifetimes.lost:
        notes.append(f"{lifetimes.lost:,} events contradict each other, as in a history that is cut off.")
    if header is None and not len(history.events):
        notes.append("The snapshot has no events: it shows its last moment, not the peak.")
    return tuple(notes)


_MS_PER_US = 1000 / US_PER_S
_COLOURS = {
    Category.WEIGHTS: Colour.COMPUTE,
    Category.GRADIENTS: Colour.BACKWARD,
    Category.OPTIMIZER: Colour.BESIDE,
    Category.ACTIVATIONS: Colour.SYNCHRONISATION,
    Category.COMMUNICATION: Colour.COMMUNICATION,
    Category.WORKSPACE: Colour.COPY,
    Category.BEFORE: Colour.IDLE,
    Category.OTHER: Colour.UNKNOWN,
}
#: Lowest in the chart is what never changes.
_ORDER = (
    Category.WEIGHTS, Category.OPTIMIZER, Category.BEFORE, Category.OTHER, Category.COMMUNICATION,
    Category.GRADIENTS, Category.ACTIVATIONS, Category.WORKSPACE,
)  # fmt: skip


def chart_memory(peak: DevicePeak) -> Chart:
    """Bytes by category over the window, and what the allocator held."""
    timeline = peak.timeline
    times = [time * _MS_PER_US if timeline.is_timed else float(time) for time in timeline.times_us]
    lower = [0] * len(times)
    marks: list[Mark] = []
    for category in _ORDER:
        sizes = timeline.categories[category]
        if any(sizes):
            upper = [low + size for low, size in zip(lower, sizes, strict=True)]
            points = tuple((x, low / GB, high / GB) for x, low, high in zip(times, lower, upper, strict=True))
            marks.append(Area(CATEGORY_NAMES[category], _COLOURS[category], points))
            lower = upper
    reserved = tuple((x, size / GB) for x, size in zip(times, timeline.reserved, strict=True))
    marks.append(Line("reserved by the allocator", Colour.QUIET, reserved, is_dashed=True))
    who = "the device" if peak.rank is None else f"rank {peak.rank}"
    return Chart(
        f"Memory of {who}: at most {peak.peak_bytes / GB:.2f} GB",
        f"What tensors of {who} held over the window, by what they are for.",
        Values("time (ms)" if timeline.is_timed else "event"),
        Values("GB", low=0),
        tuple(marks),
    )
