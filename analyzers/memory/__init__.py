"""What filled the memory of each device: the allocator's history of each window, followed to its peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from perfscope.analyzers.memory.categories import CATEGORY_NAMES, Category
from perfscope.analyzers.memory.peak import DevicePeak, find_peak
from perfscope.constants import GB
from perfscope.errors import NotApplicable
from perfscope.report import MOST_ROWS, Cell, Section, in_unit, percent_of
from perfscope.result import GIGABYTES, PERCENT, Column, Doc, Result, Table, figure
from perfscope.tables.memory import AllocatorHistory
from perfscope.tables.run import Run

#: So much more outside of the window is worth a note, as a share of the window's peak. Torch's counter has up to 0.5 %
#: more than the history: blocks whose rest is too small to be split off.
_NOTEWORTHY = 0.01


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
            note = f"Of {peak.who}. Repeated layers are one row; a module's row is without the modules inside it."
            sections.append(modules.section([(peak, part) for part in peak.modules], [note], most=MOST_ROWS))
        note = f"Of {peak.who}; allocations of one category, module and line are one row."
        sections.append(allocations.section(peak.allocations, [note]))
        if peak.savings:
            note = f"Of {peak.who}. Each change by itself: the window is replayed with it, because the peak moves."
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

    Raises:
        NotApplicable: There is no history.
    """
    if not histories:
        raise NotApplicable("no allocator's history was recorded: `perfscope profile --memory` records it on GPUs")
    peaks = (find_peak(history, replicas=replicas) for history in histories)
    devices = tuple(sorted(peaks, key=lambda peak: (peak.rank or 0, peak.device, peak.path)))
    return MemoryUse(devices, tuple(note for peak in devices for note in _describe_higher_peak(peak)))


def analyze(run: Run) -> MemoryUse:
    """The peaks of all ranks of a run.

    Raises:
        NotApplicable: The run has no allocator's history.
    """
    return describe_memory(run.read_memory(), replicas=_count_replicas(run))


def _describe_higher_peak(peak: DevicePeak) -> tuple[str, ...]:
    """That the process held more outside of the window."""
    excess = 0 if peak.process_peak_bytes is None else peak.process_peak_bytes - peak.peak_bytes
    if peak.process_peak_bytes is None or excess < _NOTEWORTHY * peak.peak_bytes:
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
