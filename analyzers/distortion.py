"""The device's shares of an undisturbed step, from a window whose steps the profiler slowed.

A profiler slows the host, not the kernels: their own times are measured by the device. So the time that the device was
busy in a profiled step is taken over the length of an undisturbed step of the same rank, and the rest of that is idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.breakdown import Breakdown, RankParts
from perfscope.analyzers.cost import Cost
from perfscope.analyzers.steps import StepTimes
from perfscope.report import Column, Json, Section

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class CorrectedRank:
    """The shares of one device; they add up to 1.

    Attributes:
        rank, device: Which.
        step_s: Median undisturbed step of the rank.
        compute, exposed_communication, exposed_copy: Parts of it.
        idle: The rest; absent where the device was busy for longer than that, so that the correction does not hold.
    """

    rank: int
    device: int
    step_s: float
    compute: float
    exposed_communication: float
    exposed_copy: float
    idle: float | None


@dataclass(frozen=True, slots=True)
class Corrected:
    """The shares of every device of a distorted window."""

    ranks: tuple[CorrectedRank, ...]

    def data(self) -> Json:
        """The value of ``results.corrected``."""
        return {
            "ranks": [
                {
                    "rank": rank.rank,
                    "device": rank.device,
                    "step_s": rank.step_s,
                    "compute": rank.compute,
                    "exposed_communication": rank.exposed_communication,
                    "exposed_copy": rank.exposed_copy,
                    "idle": rank.idle,
                }
                for rank in self.ranks
            ]
        }

    def sections(self) -> tuple[Section, ...]:
        """One row a device."""
        columns = (
            Column("Rank"),
            Column("Undisturbed step (ms)", 2),
            Column("Compute (%)"),
            Column("Exposed comm. (%)"),
            Column("Exposed copies (%)"),
            Column("Idle (%)"),
        )
        rows = tuple(
            (
                str(rank.rank),
                rank.step_s * 1e3,
                100 * rank.compute,
                100 * rank.exposed_communication,
                100 * rank.exposed_copy,
                None if rank.idle is None else 100 * rank.idle,
            )
            for rank in self.ranks
        )
        notes = [
            "The window's steps were slowed by the profiler. Here the device's busy time in a profiled step stands "
            "over the rank's median undisturbed step; the rest is idle. Waiting in collectives is taken as it was."
        ]
        if any(rank.idle is None for rank in self.ranks):
            notes.append("Where a device was busy for longer than an undisturbed step, its idle time is not known.")
        return (Section("Device time, corrected for the profiler", columns, rows, tuple(notes)),)


def correct(cost: Cost, steps: StepTimes, breakdown: Breakdown) -> Corrected | None:
    """Correct the shares of distorted windows; None where no window is, or nothing can be compared."""
    if not any(window.is_distorted for window in cost.windows):
        return None
    medians = {rank.rank: rank.median_s for rank in steps.ranks}
    ranks = [
        _rank(parts, median_s)
        for parts in breakdown.ranks
        if parts.rank is not None and parts.steps and (median_s := medians.get(parts.rank))
    ]
    return Corrected(tuple(ranks)) if ranks else None


def _rank(parts: RankParts, step_s: float) -> CorrectedRank:
    assert parts.rank is not None
    compute, communication, copy = (
        _mean([getattr(step.parts, name) for step in parts.steps]) / _NS_PER_S / step_s
        for name in ("compute", "exposed_communication", "exposed_copy")
    )
    idle = 1 - compute - communication - copy
    return CorrectedRank(
        rank=parts.rank,
        device=parts.device,
        step_s=step_s,
        compute=compute,
        exposed_communication=communication,
        exposed_copy=copy,
        idle=idle if idle >= 0 else None,
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
