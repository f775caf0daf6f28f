"""The steps that took longest, each with the part that made it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.wall_clock.ledger import Ledger, Part
from perfscope.constants import NS_PER_S
from perfscope.report import in_unit
from perfscope.result import Doc, Figures, InUnit, figure
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.steps import FIRST_STEP, SLOW, WINDOW, Steps

_MOST_STEPS = 5

UNEXPLAINED = "unexplained"
_FIRST_STEP, _WINDOW = "first step", "profiler window"
_GARBAGE = "garbage collection"
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
#: The same of what another rank did.
_CAUSES_OF_PEERS = {
    "save": _CAUSES[Part.SAVES],
    "validation": _CAUSES[Part.VALIDATION],
    "generation": _CAUSES[Part.GENERATION],
    "compilation": _CAUSES[Part.COMPILATION],
    "garbage": _GARBAGE,
    FIRST_STEP: _FIRST_STEP,
    WINDOW: _WINDOW,
}


class SlowStep(Figures, frozen=True):
    """A step that took much longer than the median one."""

    step: Annotated[int, Doc("Its number, from 1.")]
    rank: Annotated[int, Doc("The rank on which it took longest.")]
    time_ns: int
    over_median_ns: int
    cause: Annotated[str, Doc("What explains more than half of that, or ``unexplained``.")]
    cause_ns: int | None
    s = InUnit("time_ns", NS_PER_S, "Its time with everything in it, the boundary before it included.")
    over_median_s = InUnit("over_median_ns", NS_PER_S, "By how much that exceeds the median step of the rank.")

    @figure
    def cause_s(self) -> float | None:
        """How much of it that is; None where it is unexplained."""
        return in_unit(self.cause_ns, NS_PER_S)


def find_slowest_steps(ledgers: Sequence[tuple[Ledger, Steps]]) -> tuple[SlowStep, ...]:
    """The slowest steps over all ranks, the slowest first; each on the rank on which it took longest."""
    slowest: dict[int, SlowStep] = {}
    for ledger, steps in ledgers:
        for slow in _slow_steps(ledger, steps):
            known = slowest.get(slow.step)
            if known is None or slow.time_ns > known.time_ns:
                slowest[slow.step] = slow
    ranked = sorted(slowest.values(), key=lambda slow: (-slow.time_ns, slow.step))[:_MOST_STEPS]
    tables = {ledger.rank: steps for ledger, steps in ledgers}
    return tuple(_explain_by_peer(slow, tables[slow.rank]) if slow.cause == UNEXPLAINED else slow for slow in ranked)


def _explain_by_peer(slow: SlowStep, steps: Steps) -> SlowStep:
    """The step with what another rank did besides training as its cause, where that explains it."""
    for stall in steps.peer_stalls:
        if stall.step == slow.step and 2 * stall.wait_ns > slow.over_median_ns:
            cause = f"{_CAUSES_OF_PEERS[stall.kind]} on rank {stall.rank}"
            return replace(slow, cause=cause, cause_ns=min(stall.wait_ns, slow.over_median_ns))
    return slow


def _slow_steps(ledger: Ledger, steps: Steps) -> list[SlowStep]:
    times = ledger.step_ns
    usual = steps.steady if steps.steady.any() else np.ones(len(times), np.bool_)
    median = int(np.median(times[usual]))
    candidates = np.flatnonzero(times > SLOW * median)
    rows = candidates[np.argsort(-times[candidates], kind="stable")[:_MOST_STEPS]]
    excess = _excess_by_cause(ledger, steps, usual, rows) if len(rows) else {}
    slow = []
    for index, row in enumerate(rows.tolist()):
        over = int(times[row]) - median
        cause, cause_ns = max(
            ((cause, int(column[index])) for cause, column in excess.items()), key=lambda pair: pair[1]
        )
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


def _excess_by_cause(ledger: Ledger, steps: Steps, usual: Bool, rows: Int64) -> dict[str, Int64]:
    """By cause, how much longer some steps spent on it than a median step."""
    excess = {
        cause: _excess(ledger, [part for part in _CAUSES if _CAUSES[part] == cause], usual, rows)
        for cause in dict.fromkeys([*_CAUSES.values(), _FIRST_STEP, UNEXPLAINED])
    }
    own = _excess(ledger, [Part.FIRST_STEP, Part.STEPS, Part.WINDOW_STEPS], usual, rows)
    in_window, is_first = np.asarray(steps.window[rows] != ""), np.asarray(steps.step[rows] == 1)
    garbage = np.ma.filled(steps.garbage_ns, 0)[rows]
    excess[_GARBAGE] = np.where(~in_window & ~is_first, garbage, 0)
    for cause, chosen in (
        (_FIRST_STEP, is_first),
        (_WINDOW, in_window & ~is_first),
        (UNEXPLAINED, ~in_window & ~is_first),
    ):
        excess[cause] = excess[cause] + np.where(chosen, own - excess[_GARBAGE], 0)
    return excess


def _excess(ledger: Ledger, parts: Sequence[Part], usual: Bool, rows: Int64) -> Int64:
    """How much longer some steps spent on some parts than a median step."""
    spent = np.zeros(len(usual), np.int64)
    for part in parts:
        if ledger.by_step[part].any():
            spent += ledger.by_step[part]
    return np.asarray(spent[rows] - (int(np.median(spent[usual])) if spent.any() else 0), np.int64)
