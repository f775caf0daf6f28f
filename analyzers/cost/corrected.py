"""The device's shares of an undisturbed step, from a window whose steps the profiler slowed.

A profiler slows the host, not the kernels: their own times are measured by the device. So the time that the device
computed and copied in a profiled step is taken over the length of an undisturbed step of the same rank. The rest of
that is exposed communication and idle time together: a collective waits for ranks that the profiler slowed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers.breakdown import Breakdown, RankParts
from perfscope.analyzers.cost import Cost
from perfscope.analyzers.steps import StepTimes
from perfscope.constants import NS_PER_S
from perfscope.report import Column, Json, Section


@dataclass(frozen=True, slots=True)
class CorrectedRank:
    """The shares of one device; they add up to 1.

    Attributes:
        rank, device: Which.
        step_s: Median undisturbed step of the rank.
        compute, exposed_copy: Parts of it.
        rest: Exposed communication and idle time; absent where the device was busy for longer than an undisturbed step,
            so that the correction does not hold.
    """

    rank: int
    device: int
    step_s: float
    compute: float
    exposed_copy: float
    rest: float | None


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
                    "exposed_copy": rank.exposed_copy,
                    "exposed_communication_and_idle": rank.rest,
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
            Column("Exposed copies (%)"),
            Column("Exposed comm. and idle (%)"),
        )
        rows = tuple(
            (
                str(rank.rank),
                rank.step_s * 1e3,
                100 * rank.compute,
                100 * rank.exposed_copy,
                None if rank.rest is None else 100 * rank.rest,
            )
            for rank in self.ranks
        )
        notes = [
            "The window's steps were slowed by the profiler. Here the device's own work in a profiled step stands over "
            "the rank's median undisturbed step. How the rest divides the slowed steps do not tell: collectives wait "
            "for ranks that were slowed."
        ]
        if any(rank.rest is None for rank in self.ranks):
            notes.append("Where a device worked for longer than an undisturbed step, the rest is not known.")
        return (Section("Device time, corrected for the profiler", columns, rows, tuple(notes)),)


def derive(cost: Cost, steps: StepTimes, breakdown: Breakdown) -> Corrected | None:
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
    compute, copy = (
        _mean([getattr(step.parts, name) for step in parts.steps]) / NS_PER_S / step_s
        for name in ("compute", "exposed_copy")
    )
    rest = 1 - compute - copy
    return CorrectedRank(
        rank=parts.rank,
        device=parts.device,
        step_s=step_s,
        compute=compute,
        exposed_copy=copy,
        rest=rest if rest >= 0 else None,
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
