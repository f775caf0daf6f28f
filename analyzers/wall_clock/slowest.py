"""The steps that took longest, each with the part that made it so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.wall_clock.ledger import Ledger, Part
from perfscope.constants import NS_PER_S
from perfscope.report import Json
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.steps import Steps

_MOST_STEPS = 5
#: A step is slow from so many medians on.
_SLOW = 1.5

UNEXPLAINED = "unexplained"
_FIRST_STEP, _WINDOW = "first step", "profiler window"
#: What is said of a part as the cause of a slow step; the step's own time is not a cause.
_CAUSES = {
    Part.DATA_WAIT: "data wait",
    Part.COMPILATION: "compilation",
    Part.VALIDATION: "validation",
    Part.VALIDATION_WAIT: "validation",
    Part.GENERATION: "generation",
    Part.SAVES: "checkpoint save",
    Part.BETWEEN: "between steps, unattributed",
    Part.WINDOW_START: _WINDOW,
    Part.WINDOW_STOP: _WINDOW,
    Part.WINDOW_EXPORT: _WINDOW,
    Part.HOOKS: "hooks of perfscope",
}


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that took much longer than the median one.

    Attributes:
        step: Its number.
        rank: The rank on which it took longest.
        time_ns: Its time with everything in it, the boundary before it included.
        over_median_ns: By how much that exceeds the median step of the rank.
        cause: What explains more than half of that, or ``unexplained``.
        cause_ns: How much of it that is; absent where it is unexplained.
    """

    step: int
    rank: int
    time_ns: int
    over_median_ns: int
    cause: str
    cause_ns: int | None

    def data(self) -> dict[str, Json]:
        """The step for JSON."""
        return {
            "step": self.step,
            "rank": self.rank,
            "s": self.time_ns / NS_PER_S,
            "over_median_s": self.over_median_ns / NS_PER_S,
            "cause": self.cause,
            "cause_s": None if self.cause_ns is None else self.cause_ns / NS_PER_S,
        }


def find_slowest_steps(ledgers: Sequence[tuple[Ledger, Steps]]) -> tuple[SlowStep, ...]:
    """The slowest steps over all ranks, the slowest first; each on the rank on which it took longest."""
    slowest: dict[int, SlowStep] = {}
    for ledger, steps in ledgers:
        for slow in _slow_steps(ledger, steps):
            known = slowest.get(slow.step)
            if known is None or slow.time_ns > known.time_ns:
                slowest[slow.step] = slow
    return tuple(sorted(slowest.values(), key=lambda slow: (-slow.time_ns, slow.step))[:_MOST_STEPS])


def _slow_steps(ledger: Ledger, steps: Steps) -> list[SlowStep]:
    times = ledger.step_ns
    usual = steps.steady if steps.steady.any() else np.ones(len(times), np.bool_)
    median = int(np.median(times[usual]))
    if not (times > _SLOW * median).any():
        return []
    excess = _excess_by_cause(ledger, steps, usual)
    slow = []
    for row in np.argsort(-times, kind="stable")[:_MOST_STEPS].tolist():
        over = int(times[row]) - median
        if times[row] <= _SLOW * median:
            continue
        cause, cause_ns = max(((cause, int(column[row])) for cause, column in excess.items()), key=lambda pair: pair[1])
        is_explained = cause != UNEXPLAINED and 2 * cause_ns > over
        slow.append(
            SlowStep(
                step=int(ledger.step[row]),
                rank=ledger.rank,
                time_ns=int(times[row]),
                over_median_ns=over,
                cause=cause if is_explained else UNEXPLAINED,
                cause_ns=min(cause_ns, over) if is_explained else None,
            )
        )
    return slow


def _excess_by_cause(ledger: Ledger, steps: Steps, usual: Bool) -> dict[str, Int64]:
    """By cause, how much longer each step spent on it than a median step."""
    none = np.zeros(len(steps), np.int64)
    spent: dict[str, Int64] = dict.fromkeys([*_CAUSES.values(), _FIRST_STEP, UNEXPLAINED], none)
    for part, cause in _CAUSES.items():
        spent[cause] = spent[cause] + ledger.by_step[part]
    excess = {
        cause: column - int(np.median(column[usual])) if column.any() else column for cause, column in spent.items()
    }
    own = ledger.by_step[Part.FIRST_STEP] + ledger.by_step[Part.STEPS] + ledger.by_step[Part.WINDOW_STEPS]
    own = own - int(np.median(own[usual]))
    in_window, is_first = np.asarray(steps.window != ""), np.asarray(steps.step == 1)
    for cause, rows in (
        (_FIRST_STEP, is_first),
        (_WINDOW, in_window & ~is_first),
        (UNEXPLAINED, ~in_window & ~is_first),
    ):
        excess[cause] = excess[cause] + np.where(rows, own, 0)
    return excess
