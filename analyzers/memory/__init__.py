"""What filled the memory of each device: the allocator's history of each window, followed to its peak."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated

import numpy as np

from perfscope.analyzers.memory.categories import (
    BEFORE,
    CATEGORY_NAMES,
    Category,
    Lifetimes,
    Purposes,
    add_up_living,
    find_purposes,
    fold_layers,
    follow,
)
from perfscope.charts.grammar import Area, Chart, Line, Mark, Values
from perfscope.charts.palette import Colour
from perfscope.constants import GB, US_PER_MS
from perfscope.errors import NotApplicable
from perfscope.report import MOST_ROWS, NEGLIGIBLE, Cell, Section, in_unit, percent_of
from perfscope.result import GIGABYTES, PERCENT, Column, Doc, Figures, Result, Table, figure
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.memory import AllocatorHistory
from perfscope.tables.run import Run
from perfscope.wire.memory import ACTIONS, OUT_OF_MEMORY

_CHUNKS = 8
_LAYER = re.compile(r"^(?P<stack>(?:[^.]+\.)*?)(?P<number>\d+)(?:\.|$)")
_LOSS = ("cross_entropy", "log_softmax", "nll_loss")


class Saving(Figures, frozen=True):
    """A change that lowers the peak."""

    change: Annotated[str, Doc("What to change, and how.")]
    saved_bytes: Annotated[int, Doc("How much lower the peak of the window is.")]
    price: Annotated[str, Doc("What it costs, in words.")]


def find_savings(lifetimes: Lifetimes, purposes: Purposes, peak: int, *, replicas: int = 1) -> tuple[Saving, ...]:
    """The changes that lower the peak by a percent or more, the most effective first."""
    present = int(lifetimes.allocated[peak]) if peak > BEFORE else lifetimes.initial
    savings = [*_recompute_layers(lifetimes, purposes, present), *_chunk_loss(lifetimes, purposes, present)]
    if replicas > 1:
        savings += _shard_states(lifetimes, purposes, present, replicas)
    worthwhile = (saving for saving in savings if saving.saved_bytes >= NEGLIGIBLE * present)
    return tuple(sorted(worthwhile, key=lambda saving: -saving.saved_bytes))


def _peak_without(lifetimes: Lifetimes, saved: Int64) -> int:
    return int((lifetimes.allocated - saved).max()) if len(saved) else lifetimes.initial


def _share_of(lifetimes: Lifetimes, rows: Bool, share: float = 1.0) -> Int64:
    """The bytes of a share of some allocations after each event."""
    sizes = (lifetimes.rounded[rows] * share).astype(np.int64)
    return add_up_living(lifetimes.begins[rows], lifetimes.ends[rows], sizes, len(lifetimes.allocated))[0]


def _recompute_layers(lifetimes: Lifetimes, purposes: Purposes, present: int) -> Iterator[Saving]:
    """Keep the output of each repeated layer alone until its backward pass begins, which makes the rest again."""
    for stack, layers in _find_layers(lifetimes, purposes).items():
        saved = np.zeros_like(lifetimes.allocated)
        for rows in layers:
            begins, ends = lifetimes.begins[rows], lifetimes.ends[rows]
            is_freed = ends > begins.max()
            is_freed[np.argmax(begins)] = False
            saved[begins.max() : ends.min()] += int(lifetimes.rounded[rows][is_freed].sum())
        names = filter(None, map(_LAYER.match, purposes.module_names))
        count = len({match["number"] for match in names if match["stack"].rstrip(".") == stack})
        yield Saving(
            f"recompute each of the {count} layers of {f'`{stack}`' if stack else 'the model'} "
            "in the backward pass (activation checkpointing)",
            present - _peak_without(lifetimes, saved),
            "their forward pass runs once more: up to a third more operations",
        )


def _find_layers(lifetimes: Lifetimes, purposes: Purposes) -> dict[str, list[Int64]]:
    """The kept activations of each repeated layer in each step, by the path of the layers' container."""
    is_kept = purposes.is_forward & (purposes.categories == Category.ACTIVATIONS) & (purposes.modules >= 0)
    boundaries = np.array([event for event, _ in purposes.steps], np.int64)
    names = [_LAYER.match(name) for name in purposes.module_names]
    groups: dict[str, dict[tuple[str, int], list[int]]] = {}
    for row in np.flatnonzero(is_kept):
        match = names[purposes.modules[row]]
        if match is not None:
            step = int(np.searchsorted(boundaries, lifetimes.begins[row], side="right"))
            layer = groups.setdefault(match["stack"].rstrip("."), {})
            layer.setdefault((match["number"], step), []).append(int(row))
    return {
        stack: [np.array(rows, np.int64) for rows in layers.values()]
        for stack, layers in groups.items()
        if len({number for number, _ in layers}) > 1
    }


def _chunk_loss(lifetimes: Lifetimes, purposes: Purposes, present: int) -> Iterator[Saving]:
    """The logits, what the cross entropy makes of them, and their gradients: tensors of one number of elements."""
    is_loss = [any(name in fact.operation for name in _LOSS) for fact in purposes.stack_facts]
    rows = np.flatnonzero(np.array([*is_loss, False])[lifetimes.stacks] & (lifetimes.begins > BEFORE))
    if not len(rows):
        return
    sizes, largest = lifetimes.rounded, int(lifetimes.rounded[rows].max())
    temporary = np.isin(purposes.categories, (Category.ACTIVATIONS, Category.WORKSPACE)) & (lifetimes.begins > BEFORE)
    chunked = temporary & ((sizes == largest) | (2 * sizes == largest))
    yield Saving(
        f"compute the output layer and the loss in {_CHUNKS} chunks of the tokens, or by a fused cross entropy",
        present - _peak_without(lifetimes, _share_of(lifetimes, chunked, 1 - 1 / _CHUNKS)),
        "the output layer runs once more in the backward pass; a fused kernel needs no more operations",
    )


def _shard_states(lifetimes: Lifetimes, purposes: Purposes, present: int, replicas: int) -> Iterator[Saving]:
    shared = [Category.OPTIMIZER]
    for stage, (word, category) in enumerate(
        (("optimizer states", Category.OPTIMIZER), ("gradients, too", Category.GRADIENTS)), start=1
    ):
        shared.append(category)
        saved = _share_of(lifetimes, np.isin(purposes.categories, shared), 1 - 1 / replicas)
        yield Saving(
            f"split the {word} over {replicas} ranks (ZeRO stage {stage})",
            present - _peak_without(lifetimes, saved),
            "none: as many bytes are sent",
        )


#: Points of a timeline; each shows the moment of its stretch at which most was allocated.
POINTS = 240


class MemoryTimeline(Figures, frozen=True):
    """Bytes at some moments of a window, in the order of time."""

    times_us: Annotated[tuple[int, ...], Doc("When, from the first event on; its number where no times were recorded.")]
    is_timed: Annotated[bool, Doc("Whether these are times.")]
    categories: Annotated[Mapping[str, tuple[int, ...]], Doc("The bytes of each category at each moment.")]
    reserved_bytes: Annotated[tuple[int, ...], Doc("What the allocator held.")]
    steps: Annotated[tuple[tuple[int, int], ...], Doc("Each step's first moment, as an index, and its number.")]


def draw_timeline(history: AllocatorHistory, lifetimes: Lifetimes, purposes: Purposes) -> MemoryTimeline:
    """Sum the categories at the highest moment of each of some stretches of the window."""
    count = len(history.events)
    edges = np.unique(np.linspace(0, count, min(POINTS, count) + 1).astype(np.int64))
    highest = [first + int(np.argmax(lifetimes.allocated[first:last])) for first, last in pairwise(edges.tolist())]
    moments = np.array(highest, np.int64)
    sums = {
        CATEGORY_NAMES[category]: tuple(_share_of(lifetimes, purposes.categories == category)[moments].tolist())
        for category in Category
    }
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
    process_peak_bytes: Annotated[int | None, Doc("The most since the process started, by torch's counter.")]
    request_bytes: Annotated[int | None, Doc("What could not be allocated; None where memory did not run out.")]
    device_bytes: Annotated[int | None, Doc("The memory of the device; None where unknown.")]
    outside_bytes: Annotated[int | None, Doc("What CUDA's context, NCCL and other processes hold at the end.")]
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
    event, header = lifetimes.peak, history.header
    errors = np.flatnonzero(history.events.actions == _OUT_OF_MEMORY)
    if header is not None and header.cause == OUT_OF_MEMORY and len(errors):
        event = int(errors[-1])  # the history was written as memory ran out
    rows = np.flatnonzero((lifetimes.begins <= event) & (lifetimes.ends > event))
    peak = int(lifetimes.allocated[event]) if event > BEFORE else lifetimes.initial
    reserved = int(lifetimes.reserved[event]) if event > BEFORE else lifetimes.initial_reserved
    kinds, sizes = purposes.categories[rows], lifetimes.rounded[rows]
    categories = tuple(
        PeakPart(CATEGORY_NAMES[category], int(sizes[kinds == category].sum()), int((kinds == category).sum()))
        for category in Category
    )
    if sum(part.bytes for part in categories) != peak:
        raise AssertionError(f"{history.path}: the parts of the peak do not add up to it")
    return DevicePeak(
        path=history.path,
        rank=None if header is None else header.rank,
        device=history.device,
        cause="snapshot" if header is None else header.cause,
        step=next((step for begin, step in reversed(purposes.steps) if begin <= event), None),
        events=len(history.events),
        peak_bytes=peak,
        reserved_bytes=reserved,
        process_peak_bytes=None if header is None else header.peak_allocated_bytes,
        request_bytes=None if header is None else header.request_bytes,
        device_bytes=None if header is None else header.device_total_bytes,
        outside_bytes=None
        if header is None
        else header.device_total_bytes - header.device_free_bytes - history.reserved_bytes,
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
        notes.append("The history has no stacks: allocations inside the window have no module or line.")
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


def _size_of(category: Category) -> Callable[[DevicePeak], Cell]:
    return lambda peak: in_unit(peak.category_bytes(category), GB)


class MemoryUse(Result, frozen=True):
    """``results.memory``: what filled the memory of each device at its peak. See docs/memory.md."""

    devices: Annotated[tuple[DevicePeak, ...], Doc("Each device, by rank, device and file.")]
    notes: Annotated[tuple[str, ...], Doc("What a reader must know.")] = ()

    TABLES = (
        Table(
            "Activations at the peak",
            "",
            (
                Column("Module", lambda row: row[1].name),
                Column("Bytes (GB)", lambda row: row[1].bytes / GB, None, 3),
                Column("Of the peak (%)", lambda row: percent_of(row[1].bytes, row[0].peak_bytes)),
                Column("Allocations", lambda row: row[1].allocations, None, 0),
            ),
        ),
        Table(
            "Largest allocations at the peak",
            "",
            (
                Column("Category", "category"),
                Column("Bytes (GB)", "bytes", GIGABYTES, 3),
                Column("Allocations", "allocations", None, 0),
                Column("Module or parameter", "owner"),
                Column("Line of the script", lambda row: row.place or None),
                Column("Innermost frame", lambda row: row.operation or None),
            ),
        ),
        Table(
            "What would lower the peak",
            "",
            (
                Column("Change", lambda row: row[1].change),
                Column("Lower by (GB)", lambda row: row[1].saved_bytes / GB, None, 3),
                Column("Of the peak (%)", lambda row: percent_of(row[1].saved_bytes, row[0].peak_bytes)),
                Column("Price", lambda row: row[1].price),
            ),
        ),
    )

    @property
    def fullest_device(self) -> DevicePeak:
        """The device that held most; one that ran out of memory comes first."""
        return max(self.devices, key=lambda peak: (peak.request_bytes is not None, peak.peak_bytes))

    @property
    def damage(self) -> tuple[str, ...]:
        """What of the histories is missing or damaged, as sentences."""
        return tuple(note for peak in self.devices for note in peak.damage)

    def in_a_sentence(self) -> str:
        """The peak of the fullest device."""
        return f"The fullest device held {self.fullest_device.peak_bytes / GB:.2f} GB"

    @figure
    def fullest(self) -> int:
        """Position of the fullest one in ``devices``."""
        return self.devices.index(self.fullest_device)

    def sections(self) -> tuple[Section, ...]:
        """The peaks, and of the fullest device activations by module, allocations and what would save most."""
        modules, allocations, savings = self.TABLES
        peak = self.fullest_device
        sections = [self._peaks()]
        if peak.category_bytes(Category.ACTIVATIONS):
            note = f"On {peak.who}. Repeated layers are one row; a module's row is without the modules inside it."
            sections.append(modules.section([(peak, part) for part in peak.modules], [note], most=MOST_ROWS))
        note = f"On {peak.who}; allocations of one category, module and line are one row."
        sections.append(allocations.section(peak.allocations, [note]))
        if peak.savings:
            note = f"On {peak.who}. Each change by itself: the window is replayed with it, because the peak moves."
            sections.append(savings.section([(peak, saving) for saving in peak.savings], [note]))
        return tuple(sections)

    def _peaks(self) -> Section:
        used = [category for category in Category if any(peak.category_bytes(category) for peak in self.devices)]
        columns = (
            Column("Rank", "rank", None, 0),
            Column("Device", "device", None, 0),
            Column("Step", "step", None, 0),
            Column("Peak (GB)", "peak_bytes", GIGABYTES, 3),
            *(Column(f"{CATEGORY_NAMES[one].capitalize()} (GB)", _size_of(one), None, 3) for one in used),
            Column("Reserved (GB)", "reserved_bytes", GIGABYTES, 3),
            Column("Unused (%)", "unused", PERCENT),
            Column("Attributed (%)", "attributed", PERCENT, 2),
        )
        return Table("Peak memory", "devices", columns).section(self.devices, self._notes(), most=MOST_ROWS)

    def _notes(self) -> Iterator[str]:
        yield "Peak: the most bytes that tensors held; the columns up to Reserved add up to it."
        yield (
            "Workspace: temporary tensors, which one pass allocates and frees. "
            "Unused: reserved by the allocator, but held by no tensor then (fragmentation and cache)."
        )
        sizes = [peak.peak_bytes for peak in self.devices]
        if len(sizes) > 1:
            yield f"The peaks of the devices differ by {percent_of(max(sizes) - min(sizes), max(sizes)) or 0:.1f} %."
        for peak in self.devices:
            where = "" if peak.rank is None else f"Rank {peak.rank}: "
            if peak.request_bytes is not None:
                outside = ""
                if peak.outside_bytes is not None and peak.device_bytes is not None:
                    outside = (
                        f" Of the device's {peak.device_bytes / GB:.1f} GB, {peak.outside_bytes / GB:.2f} GB are not "
                        "the allocator's: CUDA context, NCCL, other processes."
                    )
                yield f"{where}memory ran out: {peak.request_bytes / GB:.3f} GB more were asked for.{outside}"
            yield from (f"{where}{note}" for note in peak.notes)
        yield from self.notes


def describe_memory(histories: Sequence[AllocatorHistory], *, replicas: int = 1) -> MemoryUse:
    """Find the peak of each history; ``replicas`` is how many data-parallel ranks hold the same states.

    NotApplicable where there is no history.
    """
    if not histories:
        raise NotApplicable("no allocator's history was recorded: `perfscope profile --memory` records it on GPUs")
    peaks = (find_peak(history, replicas=replicas) for history in histories)
    devices = tuple(sorted(peaks, key=lambda peak: (peak.rank or 0, peak.device, peak.path)))
    return MemoryUse(devices, tuple(note for peak in devices for note in _describe_higher_peak(peak)))


def analyze(run: Run) -> MemoryUse:
    """The peaks of all ranks of a run; NotApplicable where the run has no allocator's history."""
    return describe_memory(run.read_memory(), replicas=_count_replicas(run))


def _describe_higher_peak(peak: DevicePeak) -> tuple[str, ...]:
    """That the process held more outside of the window."""
    excess = 0 if peak.process_peak_bytes is None else peak.process_peak_bytes - peak.peak_bytes
    # Torch's counter has up to 0.5 % more than the history: blocks whose rest is too small to be split off.
    if peak.process_peak_bytes is None or excess < NEGLIGIBLE * peak.peak_bytes:
        return ()
    who = "" if peak.rank is None else f"Rank {peak.rank}: "
    held = f"the process held {peak.process_peak_bytes / GB:.3f} GB, {excess / GB:.3f} GB more"
    return (f"{who}outside of the window {held}.",)


def _count_replicas(run: Run) -> int:
    """Ranks that hold the same optimizer states, where nothing shards them; 1 where that is not certain."""
    world_size = max((rank.world_size for rank in run.ranks), default=1)
    is_split = any(index for rank in run.ranks for axis, index in rank.parallel.items() if axis != "dp")
    is_sharded = is_split or any(model.zero_stage for model in run.models)
    is_ddp = any(setup.ddp is not None for setup in run.setups.values())
    return world_size if is_ddp and not is_sharded else 1
