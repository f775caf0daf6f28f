"""What devices and hosts did in the profiled steps."""

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


class PartsData(TypedDict):
    """Where a window went: ``compute + exposed_communication + exposed_copy + idle = window`` exactly.

    Attributes:
        window_us: From the first to the last device event.
        compute_us: A compute kernel runs.
        communication_us: Communication runs, also beside compute.
        copy_us: A copy or a fill runs, also beside others.
        exposed_communication_us: Communication runs and no compute does.
        exposed_copy_us: A copy runs, and neither compute nor communication does.
        idle_us: Nothing runs.
        overlap_fraction: Share of ``communication_us`` during which compute runs; None without communication.
    """

    window_us: float
    compute_us: float
    communication_us: float
    copy_us: float
    exposed_communication_us: float
    exposed_copy_us: float
    idle_us: float
    overlap_fraction: float | None


class StepPartsData(PartsData):
    """Where one step went.

    Attributes:
        name: The step.
        host_us: How long the host was in it.
    """

    name: str
    host_us: float


class OutsideData(TypedDict):
    """What a device did in a window besides its marked steps.

    Attributes:
        before_us: From the first device event to the first one of a marked step.
        after_us: From the last event of a marked step to the last one of the window.
        between_us: Between the windows of steps.
        busy_us: Time that events cover which were launched in no marked step.
        device_events: How many they are.
        steps: How many steps' kernels they are; None where no kernel tells it.
    """

    before_us: float
    after_us: float
    between_us: float
    busy_us: float
    device_events: int
    steps: float | None


class DevicePartsData(PartsData):
    """One device of one rank.

    Attributes:
        rank: The rank; None where nothing states it.
        device: Index of its GPU.
        process: The profiled process.
        trace: The file.
        between_steps_us: Between the windows of marked steps; None where no step is marked.
        device_events: Kernels, copies and fills.
        damaged: Whether a part of the trace is lost.
        marked: The marked steps added up; None where there are none.
        outside: What else ran; likewise.
        steps: Each marked step.
    """

    rank: int | None
    device: int
    process: int | None
    trace: str
    between_steps_us: float | None
    device_events: int
    damaged: bool
    marked: PartsData | None
    outside: OutsideData | None
    steps: list[StepPartsData]


class BreakdownData(Windowed):
    """``results.breakdown``: where the device's time went.

    Attributes:
        ranks: Each device.
        all: All devices added up.
        all_marked: Their marked steps added up; None where a device has none.
        notes: What a reader must know.
    """

    ranks: list[DevicePartsData]
    all: PartsData
    all_marked: PartsData | None
    notes: list[str]
