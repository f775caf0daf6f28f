"""Findings, and the wall clock of a run."""

from typing import TypedDict


class EvidenceData(TypedDict):
    """What shows a finding.

    Attributes:
        text: One sentence.
        pointers: JSON pointers to the figures below ``results`` of the same document.
    """

    text: str
    pointers: list[str]


class RegainData(TypedDict):
    """What a replay of the profiled steps without the cause says.

    Attributes:
        scenario: The fix, as a scenario of ``perfscope whatif`` is written.
        step_us: The step that it is compared with; None where there is no answer.
        saved_us: What the fix saves of it, likewise.
        interval_us: Least and most that it saves, likewise.
        noise_us: How far the replayed step may be off whatever is changed, likewise.
        replay_error: How far the replay of the measured durations is from the measured step, as a share, likewise.
        assumptions: What the answer rests on.
        reason: Why there is no answer; None where there is one.
    """

    scenario: str
    step_us: float | None
    saved_us: float | None
    interval_us: list[float] | None
    noise_us: float | None
    replay_error: float | None
    assumptions: list[str]
    reason: str | None


class FindingData(TypedDict):
    """An entry of ``results.findings``: a cause that costs time, and what to try.

    Attributes:
        id: Its name, which never changes.
        title: What is wrong.
        cost_us: What a fix regains of a step.
        interval_us: Least and most that it regains.
        share_of_step: ``cost_us / step_us``.
        step_us: The step time of the run, and not shorter than what its device does in it.
        basis: ``measured``, ``bound`` (not more than that) or ``replay`` (by ``perfscope whatif``).
        ranks: Where it happens; empty where it is on all.
        evidence: What shows it.
        advice: What to try, in one sentence.
        confidence: ``high``, ``medium`` or ``low``.
        page: The page that explains it.
        replay: What a replay without the cause says; None where none was made.
        saved_bytes: What a fix regains of a GPU's memory, of a finding that costs memory and no time; else None.
    """

    id: str
    title: str
    cost_us: float
    interval_us: list[float]
    share_of_step: float
    step_us: float
    basis: str
    ranks: list[int]
    evidence: list[EvidenceData]
    advice: str
    confidence: str
    page: str
    replay: RegainData | None
    saved_bytes: int | None


class WallClockPartData(TypedDict):
    """A part of the wall time of the slowest rank.

    Attributes:
        part: Its key in ``parts_ns``.
        label: Its name for people.
        s: Its time.
        share: Its time over the rank's wall time; None where that is 0.
    """

    part: str
    label: str
    s: float
    share: float | None


class SlowStepData(TypedDict):
    """A step that took much longer than the median one.

    Attributes:
        step: Its number, from 1.
        rank: The rank on which it took longest.
        s: Its time with everything in it, the boundary before it included.
        over_median_s: By how much that exceeds the median step of the rank.
        cause: What explains more than half of that, or ``unexplained``.
        cause_s: How much of it that is; None where it is unexplained.
    """

    step: int
    rank: int
    s: float
    over_median_s: float
    cause: str
    cause_s: float | None


class LedgerPartsData(TypedDict):
    """All of a process's wall time in parts that add up to ``wall_ns`` exactly; None where a part was not recorded.

    Attributes:
        imports: Imports.
        set_up: Set-up before training.
        before_first_step: Before the first step.
        first_step: The first step.
        steps: Steps, without what is named below.
        data_wait: Waiting for the data loader.
        compilation: torch.compile.
        validation: Validation.
        validation_data_wait: Waiting for batches of validation.
        generation: Generation without gradients.
        saves: Checkpoint saves that stalled training.
        between_steps: Between steps.
        window_steps: Profiled steps.
        window_start: Starting the profiler.
        window_stop: Stopping the profiler.
        window_export: Writing the trace.
        hooks: perfscope's hooks.
        end: After the last step.
    """

    imports: int | None
    set_up: int | None
    before_first_step: int | None
    first_step: int | None
    steps: int | None
    data_wait: int | None
    compilation: int | None
    validation: int | None
    validation_data_wait: int | None
    generation: int | None
    saves: int | None
    between_steps: int | None
    window_steps: int | None
    window_start: int | None
    window_stop: int | None
    window_export: int | None
    hooks: int | None
    end: int | None


class LedgerData(TypedDict):
    """The wall time of one process.

    Attributes:
        rank: Its rank.
        attempt: 0 for the rank's first process, 1 after a restart.
        host: Its machine.
        wall_ns: All of its wall time, from its start to its end as far as both were recorded.
        start_recorded: Whether its start was recorded.
        end_recorded: Whether its end was recorded.
        parts_ns: Its parts, which add up to ``wall_ns`` exactly.
    """

    rank: int
    attempt: int
    host: str
    wall_ns: int
    start_recorded: bool
    end_recorded: bool
    parts_ns: LedgerPartsData


class WallClockData(TypedDict):
    """``results.wall_clock``: all of the wall time of a run.

    Attributes:
        wall_s: The longest wall time of a rank.
        rank: That rank.
        median_rank: The rank with the median wall time.
        parts: The parts of the longest one, the largest first.
        slowest_steps: The slowest steps, and why.
        ranks: Every process.
        notes: What a reader must know.
    """

    wall_s: float
    rank: int
    median_rank: int
    parts: list[WallClockPartData]
    slowest_steps: list[SlowStepData]
    ranks: list[LedgerData]
    notes: list[str]
