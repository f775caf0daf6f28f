"""What fixes regain, for whoever proposes them: the answer of the replay, its interval, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct

from perfscope.analyzers.replay.changes import Scenario
from perfscope.analyzers.replay.measured import Measured, prepare
from perfscope.analyzers.replay.outlook import answer_scenario, apply_scenario
from perfscope.analyzers.replay.rank_graph import RankGraph
from perfscope.constants import NS_PER_US
from perfscope.errors import MissingInput, UsageError
from perfscope.report import Json, in_unit


class Regain(Struct, frozen=True):
    """What a fix regains of a profiled step.

    Attributes:
        fix: The fix, as a scenario of ``perfscope whatif`` is written.
        step_ns: The step that it is compared with, as it is replayed; absent where there is no answer.
        saved_ns: What the fix saves of it, likewise.
        interval_ns: Least and most that it saves, likewise.
        noise_ns: How far the replayed step may be off whatever is changed, by its error and by how much the measured
            steps differ, likewise: less of a saving is none.
        replay_error: How far the replay of the measured durations is from the measured step, as a share, likewise.
        assumptions: What the answer rests on.
        reason: Why there is no answer; ``""`` where there is one.
    """

    fix: str
    step_ns: float | None = None
    saved_ns: float | None = None
    interval_ns: tuple[float, float] | None = None
    noise_ns: float | None = None
    replay_error: float | None = None
    assumptions: tuple[str, ...] = ()
    reason: str = ""

    @property
    def share(self) -> float | None:
        """What the fix saves as a share of the step."""
        return None if self.saved_ns is None or not self.step_ns else self.saved_ns / self.step_ns

    def data(self) -> Json:
        """The answer in JSON; microseconds."""
        return {
            "scenario": self.fix,
            "step_us": in_unit(self.step_ns, NS_PER_US),
            "saved_us": in_unit(self.saved_ns, NS_PER_US),
            "interval_us": None if self.interval_ns is None else [ns / NS_PER_US for ns in self.interval_ns],
            "noise_us": in_unit(self.noise_ns, NS_PER_US),
            "replay_error": self.replay_error,
            "assumptions": list(self.assumptions),
            "reason": self.reason or None,
        }


#: What a cause costs where its fix regains more: a CUDA graph also lets kernels follow each other faster.
_OF_CAUSES = {
    "launch-free": Scenario("launch-free", "", "the host launches without taking time", "host_changes", "free_host")
}


class Fixes:
    """Answers what fixes of one job regain; the job is prepared when it is asked for the first time.

    Args:
        partials: What ``perfscope.analyzers.replay.graphs.measure`` gives for the trace of each rank.
        undisturbed_ns: The time of a step that nobody profiled, where it is known: the host is taken as fast as there.
    """

    def __init__(self, partials: Sequence[tuple[RankGraph, ...]], undisturbed_ns: float | None = None) -> None:
        self._graphs = [graph for partial in partials for graph in partial]
        self._undisturbed_ns = undisturbed_ns

    @cached_property
    def _measured(self) -> Measured | MissingInput:
        try:
            return prepare(self._graphs, self._undisturbed_ns)
        except MissingInput as missing:
            return missing

    def regain(self, fix: str) -> Regain:
        """What a fix regains; one that the traces cannot answer has a reason in place of figures.

        Args:
            fix: A scenario: ``communication-free``, ``communication-free=DP``, ``median-host=3``, ``launch-free``.
        """
        measured = self._measured
        if isinstance(measured, MissingInput):
            return Regain(fix, reason=measured.problem)
        try:
            cause = _OF_CAUSES.get(fix)
            outlook = apply_scenario(measured, cause, "") if cause else answer_scenario(measured, fix)
        except (MissingInput, UsageError) as problem:
            return Regain(fix, reason=problem.problem)
        interval = outlook.saved_ns - outlook.uncertain_ns, outlook.saved_ns + outlook.uncertain_ns
        return Regain(
            fix,
            step_ns=measured.replayed.step_ns,
            saved_ns=outlook.saved_ns,
            interval_ns=interval,
            noise_ns=measured.uncertain_ns,
            replay_error=measured.error,
            assumptions=outlook.assumptions,
        )
