"""Whether a profiler window slowed the steps after it: a test that accounts for autocorrelation and drift.

Steps are no independent draws: a slow one is followed by slow ones. So the standard error of a least-squares estimate
is that of a first-order autoregression. It is larger by ``sqrt((1 + r) / (1 - r))``. Here ``r`` is the correlation of
neighbouring residuals (Box and Jenkins, "Time series analysis", 1970). A training that drifts, as on a
GPU that warms up, differs on both sides of a window, too. So a second interval is of the jump at the window, fitted
together with a straight line. A difference counts where both intervals lie above 0 and it is large enough to matter.
"""

from __future__ import annotations

from enum import StrEnum
from math import sqrt
from typing import Annotated

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.report import SMALLEST_CHANGE
from perfscope.result import Doc, Figures, figure
from perfscope.tables.columns import Float64, Int64
from perfscope.tables.steps import FEWEST_STEPS
from perfscope.units import format_count

#: Fewer steps before a window may all lie in one quiet spell of the machine: they blame no window.
_FEWEST_TO_BLAME = 10
#: Of a normal distribution: 99 % lie within.
_DEVIATIONS = 2.576
_MOST_CORRELATED = 0.95
#: Steps on each side that are compared: those next to the window, which drift moves least.
_MOST_COMPARED = 200
#: Values further from the median than so many median absolute deviations (four standard deviations) are drawn in.
_FARTHEST = 5.93


class Effect(StrEnum):
    """What the steps after a window are, compared with those before it."""

    SLOWER = "slower"
    FASTER = "faster"
    DRIFT = "drift"
    NO_DIFFERENCE = "no difference found"
    UNTESTED = "untested"


class WindowEffect(Figures, frozen=True):
    """Whether a window slowed the steps after it: by intervals that account for autocorrelation and drift."""

    verdict: Annotated[Effect, Doc("``slower``, ``faster``, ``drift``, ``no difference found`` or ``untested``.")]
    before: Annotated[int, Doc("Steps before the window that are compared.")]
    after: Annotated[int, Doc("Steps after it that are compared.")]
    before_s: Annotated[float | None, Doc("Their median before it.")]
    after_s: Annotated[float | None, Doc("Their median after it.")]
    change_low: Annotated[float | None, Doc("Lower end of the interval of ``change``; None where untested.")] = None
    change_high: Annotated[float | None, Doc("Upper end of it.")] = None
    reason: Annotated[str | None, Doc("Why it is untested; None where it was tested.")] = None

    @figure
    def change(self) -> float | None:
        """``after_s / before_s - 1``; None of one step on a side."""
        if not self.before_s or self.after_s is None or min(self.before, self.after) <= 1:
            return None
        return self.after_s / self.before_s - 1


def compare_sides(step: Int64, wall_ns: Int64, kind: Int64, window_step: int) -> WindowEffect:
    """Compare the steady-state steps before a window with the steps of the same kind after it."""
    is_before = step < window_step
    before, after = wall_ns[is_before], wall_ns[~is_before]
    sides = int(is_before.sum()), int((~is_before).sum())
    medians = _median_s(before), _median_s(after)
    common = _common_kind(kind[is_before], kind[~is_before])
    reason = _obstacle(*sides, has_common_kind=common is not None)
    if reason:
        return WindowEffect(Effect.UNTESTED, *sides, *medians, reason=reason)
    rows = kind == common
    before, after = wall_ns[is_before & rows][-_MOST_COMPARED:], wall_ns[~is_before & rows][:_MOST_COMPARED]
    steps = np.concatenate([step[is_before & rows][-_MOST_COMPARED:], step[~is_before & rows][:_MOST_COMPARED]])
    base = float(np.median(before))
    difference = float(np.median(after)) / base - 1
    values = np.concatenate([_draw_in(before / base), _draw_in(after / base)])
    level, is_after = np.ones(len(values)), np.arange(len(values)) >= len(before)
    distance = (steps - window_step) / max(int(np.abs(steps - window_step).max()), 1)
    with_drift = np.stack([level, distance, is_after], axis=1)
    correlation = _correlate(values - with_drift @ np.linalg.pinv(with_drift) @ values)
    jump_low, jump, jump_high = _fit_last(values, with_drift, correlation)
    low, _, high = _fit_last(values, np.stack([level, is_after], axis=1), correlation)
    if difference >= SMALLEST_CHANGE and low > 0:
        is_jump = jump_low > 0 and jump >= SMALLEST_CHANGE / 2 and sides[0] >= _FEWEST_TO_BLAME
        verdict = Effect.SLOWER if is_jump else Effect.DRIFT
    elif difference <= -SMALLEST_CHANGE and high < 0:
        verdict = Effect.FASTER if jump_high < 0 else Effect.DRIFT
    else:
        verdict = Effect.NO_DIFFERENCE
    return WindowEffect(verdict, *sides, *medians, change_low=low, change_high=high)


def _median_s(wall_ns: Int64) -> float | None:
    return float(np.median(wall_ns)) / NS_PER_S if len(wall_ns) else None


def _common_kind(before: Int64, after: Int64) -> int | None:
    kinds, counts_before = np.unique(before, return_counts=True)
    counts = [min(count, int((after == kind).sum())) for kind, count in zip(kinds, counts_before.tolist(), strict=True)]
    most = max(counts, default=0)
    return int(kinds[counts.index(most)]) if most >= FEWEST_STEPS else None


def _obstacle(before: int, after: int, *, has_common_kind: bool) -> str:
    if min(before, after) < FEWEST_STEPS:
        return (
            f"{format_count(before, 'steady-state step')} before the first window and {after:,} after it: a test "
            f"needs at least {FEWEST_STEPS} on each side"
        )
    if not has_common_kind:
        return "the steps on the two sides of the first window differ in kind, in micro-batches or skipped updates"
    return ""


def _draw_in(values: Float64) -> Float64:
    """Values without outliers: no farther from the median than some deviations."""
    middle = np.median(values)
    reach = _FARTHEST * np.median(np.abs(values - middle))
    return np.asarray(np.clip(values, middle - reach, middle + reach) if reach else values, np.float64)


def _correlate(residuals: Float64) -> float:
    """The correlation of neighbouring residuals; that of few is too small by a share of it."""
    spread = float(residuals @ residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / spread if spread else 0.0
    return min(max(correlation, 0.0) + (1 + 3 * max(correlation, 0.0)) / len(residuals), _MOST_CORRELATED)


def _fit_last(values: Float64, design: Float64, correlation: float) -> tuple[float, float, float]:
    solve = np.linalg.pinv(design)
    coefficients = solve @ values
    residuals = values - design @ coefficients
    variance = float(residuals @ residuals) / max(len(values) - design.shape[1], 1)
    variance *= (1 + correlation) / (1 - correlation) * float(solve[-1] @ solve[-1])
    estimate, reach = float(coefficients[-1]), _DEVIATIONS * sqrt(variance)
    return estimate - reach, estimate, estimate + reach
