"""What filled the memory of devices at their peaks."""

from typing import TypedDict


class PeakPartData(TypedDict):
    """A part of a peak.

    Attributes:
        name: A category, or a module.
        bytes: Its bytes.
        allocations: How many allocations it consists of.
    """

    name: str
    bytes: int
    allocations: int


class AllocationData(TypedDict):
    """One of the largest allocations of a peak; equal ones are one.

    Attributes:
        category: What it is for.
        bytes: Its bytes.
        allocations: How many such allocations there are.
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


class SavingData(TypedDict):
    """A change that lowers the peak.

    Attributes:
        change: What to change, and how.
        saved_bytes: How much lower the peak of the window is.
        price: What it costs, in words.
        time_share: Additional operations of a step as a share of its present ones.
    """

    change: str
    saved_bytes: int
    price: str
    time_share: float


class MemoryTimelineData(TypedDict):
    """Bytes at some moments of a window, in the order of time.

    Attributes:
        times_us: When, from the first event on; the number of the event where times were not recorded.
        is_timed: Whether these are times.
        categories: The bytes of each category at each moment.
        reserved_bytes: What the allocator held.
        steps: Where each training step begins, as an index of a moment, and its number.
    """

    times_us: list[int]
    is_timed: bool
    categories: dict[str, list[int]]
    reserved_bytes: list[int]
    steps: list[list[int]]


class DevicePeakData(TypedDict):
    """The peak of one device.

    Attributes:
        path: The file.
        rank: None where unknown.
        device: Index of the device.
        cause: ``window``, ``out of memory`` or ``snapshot``.
        step: The training step of the peak; None where unknown.
        events: Events of the history.
        peak_bytes: The most that was allocated, with the rounding of each request.
        reserved_bytes: What the allocator held of the device then.
        process_peak_bytes: The most since the process started, by torch's counter; None where unknown.
        request_bytes: What could not be allocated; None where memory did not run out.
        device_bytes: The memory of the device; None where unknown.
        outside_bytes: Memory of the device that is not this allocator's; None where unknown.
        requested_bytes: What tensors asked for.
        unused_bytes: Reserved beyond what was allocated.
        attributed: Share of the peak whose category is known.
        categories: The parts of ``peak_bytes``.
        modules: Activations by module, largest first.
        allocations: The largest allocations.
        savings: What would lower the peak, best first.
        timeline: Bytes by category over the window.
        notes: What a reader must know.
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
    requested_bytes: int
    unused_bytes: int
    attributed: float | None
    categories: list[PeakPartData]
    modules: list[PeakPartData]
    allocations: list[AllocationData]
    savings: list[SavingData]
    timeline: MemoryTimelineData
    notes: list[str]


class MemoryData(TypedDict):
    """``results.memory``: what filled the memory of each device at its peak. See docs/memory.md.

    Attributes:
        devices: Each device.
        fullest: Position of the fullest one in ``devices``.
        notes: What a reader must know.
    """

    devices: list[DevicePeakData]
    fullest: int
    notes: list[str]
