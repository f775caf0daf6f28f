"""The device's shares of a steady-state step, from a window whose steps the profiler slowed.

A profiler slows the host, not the kernels: their own times are measured by the device. So the time that the device
computed and copied in a profiled step is divided by a steady-state step of the same rank. The rest of that is exposed
communication and idle time together: a collective waits for ranks that the profiler slowed, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from perfscope.analyzers.breakdown import Breakdown, RankParts
from perfscope.analyzers.cost.result import Cost
from perfscope.analyzers.steps.result import StepTimes
from perfscope.constants import NS_PER_S
from perfscope.report import Column, Json, Section, milliseconds, percent


@dataclass(frozen=True, slots=True)
class CorrectedShares:
    """The shares of one device; they add up to 1.

    Attributes:
        rank, device: The device, and the rank that used it.
        step_s: Median steady-state step of the rank.
        compute, exposed_copy: Shares of it.
        rest: Exposed communication and idle time; absent where the device was busy for longer than a steady-state step,
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
    """The shares of every device of windows that are not representative."""

    ranks: tuple[CorrectedShares, ...]

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
        """A row a device."""
        columns = (
            Column("Rank"),
            Column("Steady-state step (ms)", 2),
            Column("Compute (%)"),
            Column("Exposed copies (%)"),
            Column("Exposed comm. + idle (%)"),
        )
        rows = tuple(
            (
                str(rank.rank),
                milliseconds(rank.step_s),
                percent(rank.compute),
                percent(rank.exposed_copy),
                percent(rank.rest),
            )
            for rank in self.ranks
        )
        notes = [
            "The profiler slowed the window's steps. Here the device's own work in a profiled step is divided by the "
            "rank's median steady-state step. Exposed communication and idle time cannot be separated: in slowed steps "
            "collectives also wait for slowed ranks."
        ]
        if any(rank.rest is None for rank in self.ranks):
            notes.append("n/a: the device was busy for longer than a steady-state step, so the correction fails.")
        return (Section("Device time, corrected for profiling overhead", columns, rows, tuple(notes)),)


def derive(cost: Cost, steps: StepTimes, breakdown: Breakdown) -> Corrected | None:
    """Correct the shares of windows that are not representative.

    Returns:
        None where every window is representative, or where no rank has both steps and a breakdown.
    """
    if cost.largest_distortion is None:
        return None
    medians = {rank.rank: rank.median_s for rank in steps.ranks}
    ranks = [
        _correct(parts, parts.rank, median_s)
        for parts in breakdown.ranks
        if parts.rank is not None and parts.steps and (median_s := medians.get(parts.rank))
    ]
    return Corrected(tuple(ranks)) if ranks else None


def _correct(parts: RankParts, rank: int, step_s: float) -> CorrectedShares:
    compute = mean(step.parts.compute for step in parts.steps) / NS_PER_S / step_s
    copy = mean(step.parts.exposed_copy for step in parts.steps) / NS_PER_S / step_s
    rest = 1 - compute - copy
    return CorrectedShares(
        rank=rank,
        device=parts.device,
        step_s=step_s,
        compute=compute,
        exposed_copy=copy,
        rest=rest if rest >= 0 else None,
    )
