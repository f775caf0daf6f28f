"""The steps of a run, and what profiling and checkpoint saves cost."""

from typing import TypedDict


class StepMeansData(TypedDict):
    """Means over the steps of a rank: a wait of every tenth step is in no median.

    Attributes:
        data_wait_s: Waiting for data loaders in the undisturbed steps; None where no loader was detected.
        data_wait_low_s: The quarter of them with the shortest waits waits at most so long.
        data_wait_high_s: The quarter of them with the longest waits waits at least so long.
        garbage_s: Full collections of Python's garbage in them.
        garbage_steps: How many of them such a collection interrupted.
        compiled_steps: Steps behind the first five in which torch.compile compiled.
        compile_s: Its time in a step behind the first five, windows, saves and validations left out.
        compile_in_steps_s: Its time in an undisturbed step.
        device_allocs: Calls of cudaMalloc in a step behind those in which the optimizer allocates its state.
        alloc_retries: Emptied caches of the allocator in such a step.
        samples: Samples that the rank took in in an undisturbed step.
        tokens: Tokens likewise.
    """

    data_wait_s: float | None
    data_wait_low_s: float | None
    data_wait_high_s: float | None
    garbage_s: float | None
    garbage_steps: int
    compiled_steps: int
    compile_s: float | None
    compile_in_steps_s: float | None
    device_allocs: float | None
    alloc_retries: float | None
    samples: float | None
    tokens: float | None


class RankStepsData(TypedDict):
    """The steps of one rank.

    Attributes:
        rank: The rank.
        count: All completed steps.
        skipped: Steps that did not update the weights.
        undisturbed: Steps that no start-up, window, checkpoint save, validation or compilation affected; 0 where they
            are fewer than five, which give no figure.
        step_time_s: The sum of the undisturbed steps over their number, on the host's clock.
        median_s: Median of them.
        p95_s: 95th percentile of them.
        first_s: The first step, from when training could begin.
        profiled_s: Median of the steps inside windows.
        export_s: Median of the steps after an export, the export itself excluded.
        data_wait_s: Median wait for the data loader in an undisturbed step; None where no loader was detected.
        memory_peak_bytes: Peak device memory of tensors; None without a device.
        means: Means over steps.
    """

    rank: int
    count: int
    skipped: int
    undisturbed: int
    step_time_s: float | None
    median_s: float | None
    p95_s: float | None
    first_s: float | None
    profiled_s: float | None
    export_s: float | None
    data_wait_s: float | None
    memory_peak_bytes: int | None
    means: StepMeansData


class WindowEffectData(TypedDict):
    """Whether a window slowed the steps behind it: a block bootstrap of the difference of medians.

    Attributes:
        verdict: ``slower``, ``faster``, ``drift``, ``no difference found`` or ``untested``.
        before: Steps before the window that are compared.
        after: Steps behind it that are compared.
        before_s: Their median before it.
        after_s: Their median behind it.
        change: ``after_s / before_s - 1``.
        change_low: Lower end of its interval.
        change_high: Upper end of its interval.
        reason: Why it is untested.
    """

    verdict: str
    before: int
    after: int
    before_s: float | None
    after_s: float | None
    change: float | None
    change_low: float | None
    change_high: float | None
    reason: str | None


class StepsData(TypedDict):
    """``results.steps``: step times and throughput, measured on the host.

    Attributes:
        count: Completed training steps: the most that any rank completed.
        source: What detected that a step completed.
        step_time_s: The job's step time: the sum of its undisturbed steps over their number. A step lasts from
            its latest begin on a rank to its latest end. None of fewer than five steps.
        median_s: Median of the same steps.
        p95_s: 95th percentile of them.
        first_s: The first step of the slowest rank.
        profiled_s: Median of the profiled steps, of the job likewise.
        export_s: Median of the steps after an export, likewise.
        samples_per_step: Samples of a mean undisturbed step of all ranks.
        tokens_per_step: Tokens likewise.
        samples_per_s: ``samples_per_step`` over ``step_time_s``.
        tokens_per_s: ``tokens_per_step`` over ``step_time_s``.
        undisturbed_ns: The times that the step time is the mean of, in their order.
        micro_batches: Forward passes of a median step on a rank.
        window_effect: The steps before the first window and behind it; None without a window.
        unreached_windows: Which windows training ended too early for.
        ranks: Each rank.
        notes: What a reader must know.
    """

    count: int
    source: str
    step_time_s: float | None
    median_s: float | None
    p95_s: float | None
    first_s: float | None
    profiled_s: float | None
    export_s: float | None
    samples_per_step: float | None
    tokens_per_step: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    undisturbed_ns: list[int]
    micro_batches: float | None
    window_effect: WindowEffectData | None
    unreached_windows: list[str]
    ranks: list[RankStepsData]
    notes: list[str]


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
