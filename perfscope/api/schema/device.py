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


class IdleCausesData(TypedDict):
    """Idle time by what the device waited for; the parts add up to the idle time exactly.

    Attributes:
        data_loading_us: A data loader was fetching, on any thread.
        synchronisation_us: The host was in a call that waits for the device.
        cuda_call_us: It was in another call of the CUDA runtime: a launch, an allocation, a module that is loaded.
        operator_us: It was inside an operator of the framework.
        between_operators_us: None of these for less than a millisecond: Python between two operators.
        not_shown_us: None of these for a millisecond or more: Python, a sleep, reading of data, another process.
        host_launch_us: The last three together, where the trace has no operators.
        launch_latency_us: The launch of the next event was under way.
        launch_gap_us: The next event was launched before a gap that is shorter than 5 us.
        dependency_us: It was launched before, but waited for an event, another stream or another device.
        graph_us: Inside a launched CUDA graph.
        unknown_us: The trace does not contain its launch.
    """

    data_loading_us: float
    synchronisation_us: float
    cuda_call_us: float
    operator_us: float
    between_operators_us: float
    not_shown_us: float
    host_launch_us: float
    launch_latency_us: float
    launch_gap_us: float
    dependency_us: float
    graph_us: float
    unknown_us: float


class GapData(TypedDict):
    """A long stretch of idle time.

    Attributes:
        start_us: When it began, from the first device event on.
        duration_us: How long it lasted.
        cause: What the largest part of it waited for.
        cause_us: How long that part is.
        before: The device event that ended last before it.
        after: The device event that ended it.
    """

    start_us: float
    duration_us: float
    cause: str
    cause_us: float
    before: str
    after: str


class RankIdleData(TypedDict):
    """The idle time of one device.

    Attributes:
        rank: The rank.
        device: Index of its GPU.
        trace: The file.
        window_us: From the first to the last device event.
        idle_us: Idle time in it.
        causes: The same by cause.
        marked: That of the marked steps.
        gaps: How many gaps there are.
        unknown_reason: Why the cause of some is unknown.
        longest: The longest of them.
    """

    rank: int | None
    device: int
    trace: str
    window_us: float
    idle_us: float
    causes: IdleCausesData
    marked: IdleCausesData | None
    gaps: int
    unknown_reason: str | None
    longest: list[GapData]


class IdleData(Windowed):
    """``results.idle``: why devices were idle.

    Attributes:
        ranks: Each device.
    """

    ranks: list[RankIdleData]


class TimesData(TypedDict):
    """How often something ran, and how long.

    Attributes:
        name: Its name.
        calls: How often, over all ranks.
        total_us: How long; kernels that run at once are each counted in full.
        fraction: ``total_us`` over that of all kernels.
        mean_us: ``total_us / calls``.
        min_us: The shortest one.
        max_us: The longest one.
    """

    name: str
    calls: int
    total_us: float
    fraction: float
    mean_us: float
    min_us: float
    max_us: float


class KernelData(TimesData):
    """A kernel, copy or fill by name.

    Attributes:
        work: ``compute``, ``communication`` or ``copy``.
    """

    work: str


class KernelsData(Windowed):
    """``results.kernels``: kernels by name and by the operator that launched them.

    Attributes:
        total_us: Time of all of them.
        names: By name, the most expensive first.
        operators: By the innermost operator that launched them; None where operators were not read.
        doubtful_us: Time in kernels that count as compute although their names suggest communication.
        unknown: Kernels that ran on streams of communication alone, and count as compute because no pattern knows them.
    """

    total_us: float
    names: list[KernelData]
    operators: list[TimesData] | None
    doubtful_us: float
    unknown: list[str]


class OptimizerData(TypedDict):
    """The optimizer of one device; means of a marked step.

    Attributes:
        rank: The rank.
        device: Index of its GPU.
        name: The optimizer's class.
        steps: How many steps are marked.
        kernels: Kernels that it launches.
        device_us: Their time.
        idle_us: How long the device stood still between the first and the last of them.
        way: ``fused``, ``foreach`` or ``loop``.
    """

    rank: int | None
    device: int
    name: str
    steps: int
    kernels: float
    device_us: float
    idle_us: float
    way: str


class OptimizerTimeData(Windowed):
    """``results.optimizer``: what the optimizer's step costs the device.

    Attributes:
        ranks: Each optimizer of each device.
    """

    ranks: list[OptimizerData]


class BlockingCallsData(TypedDict):
    """Calls of one kind in a mean marked step.

    Attributes:
        calls: How many.
        blocked_us: How long they took.
        regained_us: Idle time that the step would not have without them.
    """

    calls: float
    blocked_us: float
    regained_us: float


class PageableCallsData(BlockingCallsData):
    """Copies of memory that is not pinned.

    Attributes:
        bytes: What they copy.
    """

    bytes: float


class CallerData(TypedDict):
    """Calls of one kind by one caller, in a mean marked step.

    Attributes:
        kind: ``synchronisation``, ``pageable`` or ``allocation``.
        operator: The outermost operator that may wait.
        function: The function of the script; None without stacks.
        calls: How many.
        blocked_us: How long they took.
        idle_us: Idle time from each call's beginning to the next one's.
        regained_us: Idle time that the step would not have without them.
    """

    kind: str
    operator: str | None
    function: str | None
    calls: float
    blocked_us: float
    idle_us: float
    regained_us: float


class RankCallsData(TypedDict):
    """The calls of one device's host.

    Attributes:
        rank: The rank.
        device: Index of its GPU.
        steps: How many steps are marked.
        synchronisation: Waits for the device.
        pageable: Copies of memory that is not pinned.
        allocation: Requests of memory from the driver.
        callers: By caller, what a step loses most by first.
    """

    rank: int | None
    device: int
    steps: int
    synchronisation: BlockingCallsData
    pageable: PageableCallsData
    allocation: BlockingCallsData
    callers: list[CallerData]


class CallsData(Windowed):
    """``results.calls``: calls of CUDA that hold the host up.

    Attributes:
        ranks: Each device.
    """

    ranks: list[RankCallsData]
