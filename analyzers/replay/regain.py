"""What fixes regain, for whoever proposes them: the answer of the replay, its interval, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfscope.analyzers.replay.measured import prepare
from perfscope.analyzers.replay.outlook import answer_scenario
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.errors import MissingInput, UsageError


@dataclass(frozen=True, slots=True)
class Regain:
    """What a fix regains of a profiled step.

    Attributes:
        fix: The fix, as a scenario of ``perfscope whatif`` is written.
        step_ns: The step that it is compared with, as it is replayed; absent where there is no answer.
        saved_ns: What the fix saves of it, likewise.
        interval_ns: Least and most that it saves, likewise.
        replay_error: How far the replay of the measured durations is from the measured step, as a share, likewise.
        assumptions: What the answer rests on.
        reason: Why there is no answer; ``""`` where there is one.
    """

    fix: str
    step_ns: float | None = None
    saved_ns: float | None = None
    interval_ns: tuple[float, float] | None = None
    replay_error: float | None = None
    assumptions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def share(self) -> float | None:
        """What the fix saves as a share of the step."""
        return None if self.saved_ns is None or not self.step_ns else self.saved_ns / self.step_ns


def what_fixes_regain(
    partials: Sequence[tuple[RankGraph, ...]], fixes: Iterable[str], undisturbed_ns: float | None = None
) -> tuple[Regain, ...]:
    """What each fix regains, one at a time; a fix that the traces cannot answer has a reason in place of figures.

    Args:
        partials: What ``perfscope.analyzers.whatif.measure`` gives for the trace of each rank.
        fixes: Scenarios: ``communication-free``, ``communication-free=DP``, ``median-host=3``, ``launch-free``.
        undisturbed_ns: The time of a step that nobody profiled, where it is known: the host is taken as fast as there.
    """
    try:
        measured = prepare([graph for partial in partials for graph in partial], undisturbed_ns)
    except MissingInput as missing:
        return tuple(Regain(fix, reason=missing.problem) for fix in fixes)
    regains = []
    for fix in fixes:
        try:
            outlook = answer_scenario(measured, fix)
        except (MissingInput, UsageError) as problem:
            regains.append(Regain(fix, reason=problem.problem))
            continue
        interval = outlook.saved_ns - outlook.uncertain_ns, outlook.saved_ns + outlook.uncertain_ns
        regains.append(
            Regain(fix, measured.replayed.step_ns, outlook.saved_ns, interval, measured.error, outlook.assumptions)
        )
    return tuple(regains)
