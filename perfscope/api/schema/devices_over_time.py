"""Ranks that are late on their hosts, the pace of devices, and their states."""

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


class LateRankData(TypedDict):
    """A rank that was late, and why.

    Attributes:
        rank: The rank; None where it is another one from step to step.
        cause: What it did longer than the others.
        persistent: Whether it was late for that cause in most steps.
        steps: In how many steps.
        examples: Some of them.
        cost_ns: What it cost the job.
        cause_ns: How much longer the cause took on it.
        share: ``cost_ns`` over the time of the compared steps; None where that is 0.
        excess_ns: How much longer than the others it took, by part.
        detail: What else is known of the cause.
    """

    rank: int | None
    cause: str
    persistent: bool
    steps: int
    examples: list[int]
    cost_ns: int
    cause_ns: int
    share: float | None
    excess_ns: dict[str, int]
    detail: str | None


class LateStepData(TypedDict):
    """The rank that was latest in a step.

    Attributes:
        step: Its number.
        rank: The rank.
        later_ns: By how much, beyond the median of the others.
        part: The part that was longer on it by most.
        part_ns: By how much.
    """

    step: int
    rank: int
    later_ns: int
    part: str
    part_ns: int


class HostStepsData(TypedDict):
    """The steps of one rank on its host.

    Attributes:
        rank: The rank.
        total_ns: The time of the compared steps.
        parts_ns: The same by part; the parts add up to it.
        exchange_by_axis_ns: The part ``exchange`` by axis of parallelism: collectives by the axes of their process
            groups, ``collectives`` where that is not known, and transfers.
        faults: Page faults in them.
    """

    rank: int
    total_ns: int
    parts_ns: dict[str, int]
    exchange_by_axis_ns: dict[str, int]
    faults: int | None


class DevicePaceData(TypedDict):
    """A rank's device in the steps that were timed on it.

    Attributes:
        rank: The rank.
        probes: Probed steps, which are timed on the device.
        forward_ns: Median of the forward passes; None where their ends were not seen.
        backward_ns: The same of backward passes and exchanges.
        update_ns: The same of the optimizer.
        relative_forward: ``forward_ns`` without waits for the host over the median of the ranks that hold the same part
            of the model; None where it may hold an exchange, or the device may have waited for its host.
        relative_update: The same of the optimizer.
        sm_clock_mhz: Clock of its multiprocessors; None without samples.
    """

    rank: int
    probes: int
    forward_ns: int | None
    backward_ns: int
    update_ns: int
    relative_forward: float | None
    relative_update: float | None
    sm_clock_mhz: int | None


class LateRanksData(TypedDict):
    """``results.late_ranks``: which ranks are late, by what their hosts did in each step.

    Attributes:
        late: Each late rank and cause, what costs most first.
        late_steps: The steps in which a rank was later than the others by most.
        compared_steps: How many steps are compared.
        compared_ns: The time of these steps.
        waits_timed: Whether the waits for other ranks were timed; None where nothing is compared.
        ranks: Each rank.
        devices: How fast the devices of the ranks are.
    """

    late: list[LateRankData]
    late_steps: list[LateStepData]
    compared_steps: int
    compared_ns: int
    waits_timed: bool | None
    ranks: list[HostStepsData]
    devices: list[DevicePaceData]


class DeviceStatesData(TypedDict):
    """What one device did.

    Attributes:
        rank: Its rank.
        device: Index of the GPU.
        window_us: The whole window.
        states: The time of each state that occurs; they add up to the window.
    """

    rank: int | None
    device: int
    window_us: float
    states: dict[str, float]


class TimelineData(Windowed):
    """``results.timeline``: what every device did at every moment, on one clock.

    Attributes:
        start_ns: Where it begins, on the wall clock.
        end_ns: Where it ends.
        reference_rank: The rank whose clock it is on; None where the hosts' clocks are taken as they are.
        ranks: Each device.
        operations: Operations of several ranks.
        bubbles: Bubbles between the passes of a pipeline.
        notes: What a reader must know.
    """

    start_ns: int
    end_ns: int
    reference_rank: int | None
    ranks: list[DeviceStatesData]
    operations: int
    bubbles: int
    notes: list[str]
