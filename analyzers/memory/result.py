"""What filled the memory of all ranks: their peaks beside each other, and the fullest one in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfscope.analyzers.memory.categories import CATEGORY_NAMES, Category
from perfscope.analyzers.memory.peak import DevicePeak, find_peak
from perfscope.constants import GB
from perfscope.errors import NotApplicable
from perfscope.report import Column, Json, Row, Section, in_unit, percent, percent_of
from perfscope.tables.memory import AllocatorHistory

_MOST_ROWS = 16
_MOST_MODULES = 12
_WINDOW = "window"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The peaks of all devices.

    Attributes:
        peaks: One a history, by rank, device and file.
        notes: What a reader must know of all of them.
    """

    peaks: tuple[DevicePeak, ...]
    notes: tuple[str, ...] = ()

    @property
    def fullest(self) -> DevicePeak:
        """The device that held most; one that ran out of memory comes first."""
        return max(self.peaks, key=lambda peak: (peak.request_bytes is not None, peak.peak_bytes))

    def data(self) -> Json:
        """Its value in JSON."""
        return {
            "devices": [peak.data() for peak in self.peaks],
            "fullest": self.peaks.index(self.fullest),
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """The peaks, and of the fullest device activations by module, allocations and what would save most."""
        return tuple(self._sections())

    def _sections(self) -> Iterator[Section]:
        yield self._peaks()
        fullest = self.fullest
        if fullest.category_bytes(Category.ACTIVATIONS):
            yield _modules(fullest)
        yield _allocations(fullest)
        if fullest.savings:
            yield _savings(fullest)

    def _peaks(self) -> Section:
        used = [category for category in Category if any(peak.category_bytes(category) for peak in self.peaks)]
        headings = [CATEGORY_NAMES[category].capitalize() for category in used]
        rows = tuple(_peak_row(peak, used) for peak in self.peaks[:_MOST_ROWS])
        return Section(
            "Peak memory",
            columns=(
                Column("Rank", 0),
                Column("Device", 0),
                Column("Step", 0),
                Column("Peak (GB)", 3),
                *(Column(f"{heading} (GB)", 3) for heading in headings),
                Column("Reserved (GB)", 3),
                Column("Unused (%)"),
                Column("Attributed (%)", 2),
            ),
            rows=rows,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        yield "Peak: the most bytes that tensors held; the columns up to Reserved add up to it."
        yield (
            "Workspace: temporary tensors, which one pass allocates and frees. "
            "Unused: reserved by the allocator, but held by no tensor then (fragmentation and cache)."
        )
        if len(self.peaks) > _MOST_ROWS:
            yield f"{len(self.peaks) - _MOST_ROWS} more devices are in --format json."
        if len(self.peaks) > 1:
            least = min(peak.peak_bytes for peak in self.peaks)
            most = max(peak.peak_bytes for peak in self.peaks)
            yield f"The peaks of the devices differ by {percent_of(most - least, most) or 0:.1f} %."
        for peak in self.peaks:
            where = "" if peak.rank is None else f"Rank {peak.rank}: "
            if peak.request_bytes is not None:
                yield f"{where}memory ran out: {peak.request_bytes / GB:.3f} GB more were asked for. {_outside(peak)}"
            yield from (f"{where}{note}" for note in peak.notes)
        yield from self.notes


def _peak_row(peak: DevicePeak, categories: Sequence[Category]) -> Row:
    return (
        peak.rank,
        peak.device,
        peak.step,
        in_unit(peak.peak_bytes, GB),
        *(in_unit(peak.category_bytes(category), GB) for category in categories),
        in_unit(peak.reserved_bytes, GB),
        percent_of(peak.unused_bytes, peak.reserved_bytes),
        percent(peak.attributed),
    )


def _outside(peak: DevicePeak) -> str:
    """What else is in the device's memory."""
    if peak.outside_bytes is None or peak.device_bytes is None:
        return ""
    return (
        f"Of the device's {peak.device_bytes / GB:.1f} GB, {peak.outside_bytes / GB:.2f} GB are not the allocator's: "
        "CUDA context, NCCL, other processes."
    )


def _name(peak: DevicePeak) -> str:
    return "the device" if peak.rank is None else f"rank {peak.rank}"


def _modules(peak: DevicePeak) -> Section:
    rows: tuple[Row, ...] = tuple(
        (part.name, in_unit(part.bytes, GB), percent_of(part.bytes, peak.peak_bytes), part.allocations)
        for part in peak.modules[:_MOST_MODULES]
    )
    left_out = len(peak.modules) - _MOST_MODULES
    notes = (f"Of {_name(peak)}. Repeated layers are one row; a module's row is without the modules inside it.",)
    return Section(
        "Activations at the peak",
        columns=(Column("Module"), Column("Bytes (GB)", 3), Column("Of the peak (%)"), Column("Allocations", 0)),
        rows=rows,
        notes=(*notes, *((f"{left_out} more modules are in --format json.",) if left_out > 0 else ())),
    )


def _allocations(peak: DevicePeak) -> Section:
    rows: tuple[Row, ...] = tuple(
        (
            allocation.category,
            in_unit(allocation.bytes, GB),
            allocation.allocations,
            allocation.module or allocation.name or None,
            allocation.place or None,
            allocation.operation or None,
        )
        for allocation in peak.allocations[:_MOST_MODULES]
    )
    return Section(
        "Largest allocations at the peak",
        columns=(
            Column("Category"),
            Column("Bytes (GB)", 3),
            Column("Allocations", 0),
            Column("Module or parameter"),
            Column("Line of the script"),
            Column("Innermost frame"),
        ),
        rows=rows,
        notes=(f"Of {_name(peak)}; allocations of one category, module and line are one row.",),
    )


def _savings(peak: DevicePeak) -> Section:
    rows: tuple[Row, ...] = tuple(
        (
            saving.change,
            in_unit(saving.saved_bytes, GB),
            percent_of(saving.saved_bytes, peak.peak_bytes),
            percent(saving.time_share) if saving.time_share else None,
            saving.price,
        )
        for saving in peak.savings
    )
    return Section(
        "What would lower the peak",
        columns=(
            Column("Change"),
            Column("Lower by (GB)", 3),
            Column("Of the peak (%)"),
            Column("More operations (%)"),
            Column("Price"),
        ),
        rows=rows,
        notes=(
            f"Of {_name(peak)}. Each change by itself: the window is replayed with it, because the peak moves.",
            "More operations: of a step, as an estimate from the activations of the layers; what they take on the "
            "clock depends on what the step waits for.",
        ),
    )


def describe_memory(histories: Sequence[AllocatorHistory], *, replicas: int = 1) -> MemoryUse:
    """Find the peak of each history.

    Raises:
        NotApplicable: There is none.
    """
    if not histories:
        raise NotApplicable("no allocator's history was recorded: `perfscope profile --memory` records it on GPUs")
    peaks = (find_peak(history, replicas=replicas) for history in histories)
    return MemoryUse(tuple(sorted(peaks, key=lambda peak: (peak.rank or 0, peak.device, peak.path))))
