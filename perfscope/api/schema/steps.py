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


class SaveData(TypedDict):
    """One checkpoint over all ranks, with all of its files.

    Attributes:
        step: The training step after which it was saved.
        ranks: How many ranks timed it; 0 for a log.
        blocked_s: How long it stalled the slowest rank.
        blocked_share: Share of the run in which it stalled any rank and no save before it did.
        slowest_rank: The rank that it stalled longest.
        background_s: From when training could go on until all was on disk.
        staged_s: Time until the state was copied beside training.
        drained_s: Time until all was on disk.
        files: Number of files.
        bytes: Size of all files.
        gb_per_s: Speed over all files, in 10**9 bytes a second.
        asynchronous: Whether training continued while files were written.
        source: What measured the time.
        path: The destination, as the first rank states it.
        writing_ranks: The ranks that are known to have written files.
        waiting_ranks: The ranks that took part and wrote nothing.
        absent_ranks: The ranks of the run that took no part.
    """

    step: int | None
    ranks: int
    blocked_s: float | None
    blocked_share: float | None
    slowest_rank: int | None
    background_s: float | None
    staged_s: float | None
    drained_s: float | None
    files: int | None
    bytes: int | None
    gb_per_s: float | None
    asynchronous: bool | None
    source: str
    path: str | None
    writing_ranks: list[int]
    waiting_ranks: list[int]
    absent_ranks: list[int]


class SavesData(TypedDict):
    """``results.saves``: the checkpoints of a run, and what saving them cost.

    Attributes:
        saves: Each save, in order.
        blocked_s: How long saves stalled training, moments of several ranks counted once.
        run_s: From the beginning of the first step to the end of the last step or save.
        blocked_share: ``blocked_s / run_s``.
    """

    saves: list[SaveData]
    blocked_s: float | None
    run_s: float | None
    blocked_share: float | None
