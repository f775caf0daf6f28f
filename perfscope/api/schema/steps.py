"""The steps of a run, and what profiling and checkpoint saves cost."""

from typing import TypedDict


class WindowCostData(TypedDict):
    """What one window cost.

    Attributes:
        first_step: Its first training step.
        last_step: Its last one.
        activities: What it recorded: ``operators`` or ``light``; None where the run does not say so.
        profiled_s: Median of its steps.
        slower: By which share they took longer than undisturbed steps.
        start_s: How long starting the profiler stalled the rank that was stalled longest.
        stop_s: Stopping it, likewise.
        export_s: Writing the trace, likewise.
        release_s: Releasing its memory, likewise.
        trace_bytes: Size of all its traces before compression.
        memory_bytes: Growth of the host memory of the process that grew most.
        held_s: How long it stalled training.
        distorted: Whether the shares of its trace are not those of training; None where unknown.
    """

    first_step: int
    last_step: int
    activities: str | None
    profiled_s: float | None
    slower: float | None
    start_s: float
    stop_s: float
    export_s: float
    release_s: float | None
    trace_bytes: int
    memory_bytes: int | None
    held_s: float
    distorted: bool | None


class CostData(TypedDict):
    """``results.cost``: the overhead of perfscope itself.

    Attributes:
        before_s: Median undisturbed step before the first window.
        after_s: Median undisturbed step after it.
        undisturbed_s: Median of the undisturbed steps.
        hooks_s: Median time that the hooks took in an undisturbed step and at its boundary.
        windows: Every window, in order.
        cupti_detached: Whether CUPTI was detached at the end of every window; None where unknown.
        cupti_attached_because: Why it was not.
    """

    before_s: float | None
    after_s: float | None
    undisturbed_s: float | None
    hooks_s: float | None
    windows: list[WindowCostData]
    cupti_detached: bool | None
    cupti_attached_because: list[str]
