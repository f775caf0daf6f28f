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
