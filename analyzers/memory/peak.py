"""The peak of one device's memory, and what it consists of: parts that add up to what the allocator held."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated

import numpy as np

from perfscope.analyzers.memory.categories import CATEGORY_NAMES, Category, Purposes, find_purposes, fold_layers
from perfscope.analyzers.memory.lifetimes import BEFORE, Lifetimes, follow
from perfscope.analyzers.memory.savings import Saving, find_savings
from perfscope.charts.grammar import Area, Chart, Line, Mark, Values
from perfscope.charts.palette import Colour
from perfscope.constants import GB, US_PER_MS
from perfscope.report import MOST_ROWS
from perfscope.result import Doc, Figures
from perfscope.tables.columns import Int64
from perfscope.tables.memory import AllocatorHistory
from perfscope.wire.memory import ACTIONS, OUT_OF_MEMORY

#: Points of a timeline; each shows the moment of its stretch at which most was allocated.
POINTS = 240


class MemoryTimeline(Figures, frozen=True):
    """Bytes at some moments of a window, in the order of time."""

    times_us: Annotated[
        tuple[int, ...], Doc("When, from the first event on; the number of the event where times were not recorded.")
    ]
    is_timed: Annotated[bool, Doc("Whether these are times.")]
    categories: Annotated[Mapping[str, tuple[int, ...]], Doc("The bytes of each category at each moment.")]
    reserved_bytes: Annotated[tuple[int, ...], Doc("What the allocator held.")]
    steps: Annotated[
        tuple[tuple[int, int], ...], Doc("Where each training step begins, as an index of a moment, and its number.")
    ]


def draw_timeline(history: AllocatorHistory, lifetimes: Lifetimes, purposes: Purposes) -> MemoryTimeline:
    """Sum the categories at the highest moment of each of some stretches of the window."""
    count = len(history.events)
    edges = np.unique(np.linspace(0, count, min(POINTS, count) + 1).astype(np.int64))
    highest = [first + int(np.argmax(lifetimes.allocated[first:last])) for first, last in pairwise(edges.tolist())]
    moments = np.array(highest, np.int64)
    sums = {}
    for category in Category:
        rows = purposes.categories == category
        deltas = np.zeros(count + 1, np.int64)
        begins, ends, sizes = lifetimes.begins[rows], lifetimes.ends[rows], lifetimes.rounded[rows]
        np.add.at(deltas, np.maximum(begins, 0), sizes)
        np.subtract.at(deltas, ends, sizes)
        sums[CATEGORY_NAMES[category]] = tuple(np.cumsum(deltas)[moments].tolist())
    times = history.events.times_us
    is_timed = bool(len(times)) and bool((times > 0).all())
    return MemoryTimeline(
        times_us=tuple((times[moments] - times[0]).tolist() if is_timed else moments.tolist()),
        is_timed=is_timed,
        categories=sums,
        reserved_bytes=tuple(lifetimes.reserved[moments].tolist()),
        steps=tuple((int(np.searchsorted(moments, event)), step) for event, step in purposes.steps),
    )


_OUT_OF_MEMORY = ACTIONS["oom"].encode()
OUTSIDE = "outside of modules"


class PeakPart(Figures, frozen=True):
    """A part of a peak."""

    name: Annotated[str, Doc("A category, or a module.")]
    bytes: Annotated[int, Doc("Its bytes.")]
    allocations: Annotated[int, Doc("How many allocations it consists of.")]


class Allocation(Figures, frozen=True):
    """One of the largest allocations of a peak; equal ones are one."""

    category: Annotated[str, Doc("What it is for.")]
    bytes: Annotated[int, Doc("Its bytes.")]
    allocations: Annotated[int, Doc("How many such allocations there are: of one category and place.")]
    module: Annotated[str, Doc("The module, with repeated layers folded; empty outside of modules.")]
    name: Annotated[str, Doc("The parameter; empty for others.")]
    place: Annotated[str, Doc("The line of the script that allocated it; empty where no stack was recorded.")]
    operation: Annotated[str, Doc("The innermost frame.")]

    @property
    def owner(self) -> str | None:
        """The module or the parameter."""
        return self.module or self.name or None


class DevicePeak(Figures, frozen=True):
    """The peak of one device."""

    path: Annotated[str, Doc("The file.")]
    rank: Annotated[int | None, Doc("None where unknown.")]
    device: Annotated[int, Doc("Index of the device.")]
    cause: Annotated[str, Doc("``window``, ``out of memory`` or ``snapshot``.")]
    step: Annotated[int | None, Doc("The training step of the peak; None where unknown.")]
    events: Annotated[int, Doc("Events of the history.")]
    peak_bytes: Annotated[int, Doc("The most that was allocated, with the rounding of each request.")]
    reserved_bytes: Annotated[int, Doc("What the allocator held of the device then.")]
    process_peak_bytes: Annotated[
        int | None, Doc("The most since the process started, by torch's counter; None where unknown.")
    ]
    request_bytes: Annotated[int | None, Doc("What could not be allocated; None where memory did not run out.")]
    device_bytes: Annotated[int | None, Doc("The memory of the device; None where unknown.")]
    outside_bytes: Annotated[
        int | None,
        Doc("What is not this allocator's at the end: CUDA context, NCCL, other processes; None where unknown."),
    ]
    requested_bytes: Annotated[int, Doc("What tensors asked for.")]
    unused_bytes: Annotated[int, Doc("Reserved beyond what was allocated: fragmentation and cache.")]
    attributed: Annotated[float, Doc("Share of the peak whose category is known.")]
    categories: Annotated[tuple[PeakPart, ...], Doc("The parts of ``peak_bytes``, in a fixed order.")]
    modules: Annotated[tuple[PeakPart, ...], Doc("Activations by module, largest first; repeated layers are one.")]
    allocations: Annotated[tuple[Allocation, ...], Doc("The largest allocations.")]
    savings: Annotated[tuple[Saving, ...], Doc("What would lower the peak, best first.")]
    timeline: Annotated[MemoryTimeline, Doc("Bytes by category over the window.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")]
    damage: tuple[str, ...]

    @property
    def unused(self) -> float | None:
        """Share of what is reserved that no tensor holds."""
        return self.unused_bytes / self.reserved_bytes if self.reserved_bytes else None

    @property
    def who(self) -> str:
        """What people call it."""
        return "the device" if self.rank is None else f"rank {self.rank}"

    def category_bytes(self, category: Category) -> int:
        """The bytes of a category."""
        return self.categories[category].bytes


def find_peak(history: AllocatorHistory, *, replicas: int = 1) -> DevicePeak:
    """Follow a history to its peak; ``replicas`` is how many data-parallel ranks hold the same states."""
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


def _sum_categories(lifetimes: Lifetimes, purposes: Purposes, rows: Int64) -> tuple[PeakPart, ...]:
    kinds, sizes = purposes.categories[rows], lifetimes.rounded[rows]
    return tuple(
        PeakPart(CATEGORY_NAMES[category], int(sizes[kinds == category].sum()), int((kinds == category).sum()))
        for category in Category
    )


def _sum_modules(lifetimes: Lifetimes, purposes: Purposes, rows: Int64) -> tuple[PeakPart, ...]:
    """Activations by module, repeated layers as one."""
    sums: dict[str, list[int]] = {}
    for row in rows[purposes.categories[rows] == Category.ACTIVATIONS]:
        total = sums.setdefault(_module(purposes, int(row)) or _find_line(lifetimes, purposes, int(row)), [0, 0])
        total[0] += int(lifetimes.rounded[row])
        total[1] += 1
    parts = (PeakPart(name, size, count) for name, (size, count) in sums.items())
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
    return tuple(sorted(allocations, key=lambda allocation: -allocation.bytes)[:MOST_ROWS])


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
    times = [time / US_PER_MS if timeline.is_timed else float(time) for time in timeline.times_us]
    lower = [0] * len(times)
    marks: list[Mark] = []
    for category in _ORDER:
        sizes = timeline.categories[CATEGORY_NAMES[category]]
        if any(sizes):
            upper = [low + size for low, size in zip(lower, sizes, strict=True)]
            points = tuple((x, low / GB, high / GB) for x, low, high in zip(times, lower, upper, strict=True))
            marks.append(Area(CATEGORY_NAMES[category], _COLOURS[category], points))
            lower = upper
    reserved = tuple((x, size / GB) for x, size in zip(times, timeline.reserved_bytes, strict=True))
    marks.append(Line("reserved by the allocator", Colour.QUIET, reserved, is_dashed=True))
    return Chart(
        f"Memory of {peak.who}: at most {peak.peak_bytes / GB:.2f} GB",
        f"What tensors of {peak.who} held over the window, by what they are for.",
        Values("time (ms)" if timeline.is_timed else "event"),
        Values("GB", low=0),
        tuple(marks),
    )
