"""The states of devices over time."""

from typing import TypedDict

from perfscope.api.schema.windowed import Windowed


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
