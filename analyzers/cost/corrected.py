"""The device's shares of a steady-state step, from a window whose steps the profiler slowed.

A profiler slows the host, not the kernels: their own times are measured by the device. So the time that the device
computed and copied in a profiled step is divided by the step time of the run. In a window with operators
the rest of that is exposed communication and idle time together: a collective waits for ranks that the profiler slowed,
too. A light window that hardly slowed its steps has exposed communication apart; it is divided likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from perfscope.analyzers.breakdown import Breakdown, RankParts
from perfscope.analyzers.cost.result import LARGEST_REPRESENTATIVE_SLOWDOWN, Cost
from perfscope.analyzers.shared.doubt import check_share
from perfscope.analyzers.steps.result import StepTimes
from perfscope.constants import NS_PER_S
from perfscope.report import Column, Json, Section, milliseconds, percent
from perfscope.wire import LIGHT

#: A light window that slowed its steps by less changed no share by more than two points.
_LARGEST_LIGHT_SLOWDOWN = 0.02

#: Less compute beside communication hardly changes its share.
_LEAST_BESIDE = 0.01

_CAUSES = "steady-state steps that did less than the profiled ones"


@dataclass(frozen=True, slots=True)
class CorrectedShares:
    """The shares of one device; they add up to 1.

    Attributes:
        rank, device: The device, and the rank that used it.
        step_s: The step time of the run.
        compute, exposed_copy: Shares of it; absent where they would be above 1.
        exposed_communication: Likewise; absent where the profiler changed it.
        rest: Exposed communication and idle time; absent where the device was busy for longer than a steady-state step,
            so that the correction does not hold.
        beside: The part of the compute time of the profiled steps that communication ran beside.
    """

    rank: int
    device: int
    step_s: float
    compute: float | None
    exposed_copy: float | None
    exposed_communication: float | None
    rest: float | None
    beside: float = 0.0

    @property
    def idle(self) -> float | None:
        """Idle time; absent where it cannot be separated from communication, or where the correction does not hold."""
        if self.rest is None or self.exposed_communication is None:
            return None
        return self.rest - self.exposed_communication


@dataclass(frozen=True, slots=True)
class Corrected:
    """The shares of every device of windows that are not representative."""

    ranks: tuple[CorrectedShares, ...]
    has_communication: bool = False

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
                    "exposed_communication": rank.exposed_communication,
                    "idle": rank.idle,
                    "compute_beside_communication": rank.beside,
                }
                for rank in self.ranks
            ]
        }

    def sections(self) -> tuple[Section, ...]:
        """A row a device."""
        parts = ("Exposed comm.", "Idle") if self.has_communication else ("Exposed comm. + idle",)
        columns = (
            Column("Rank"),
            Column("Steady-state step (ms)", 2),
            Column("Compute (%)"),
            Column("Exposed copies (%)"),
            *(Column(f"{part} (%)") for part in parts),
        )
        rows = tuple(
            (
                str(rank.rank),
                milliseconds(rank.step_s),
                percent(rank.compute),
                percent(rank.exposed_copy),
                *(
                    (percent(rank.exposed_communication), percent(rank.idle))
                    if self.has_communication
                    else (percent(rank.rest),)
                ),
            )
            for rank in self.ranks
        )
        notes = [
            "The profiler slowed the window's steps. Here the device's own work in a profiled step is divided by the "
            "step time of the run."
        ]
        if self.has_communication:
            notes.append("Idle is the rest of that step.")
        else:
            notes[0] += (
                " Exposed communication and idle time cannot be separated: in slowed steps collectives also wait for "
                "slowed ranks."
            )
        beside = max((rank.beside for rank in self.ranks), default=0.0)
        if not self.has_communication and beside >= _LEAST_BESIDE:
            notes.append(
                f"Compute is an upper bound: up to {beside:.0%} of it ran beside communication, and beside a "
                "collective that waits for slowed ranks a kernel takes up to twice its time."
            )
        if any(rank.rest is None for rank in self.ranks):
            notes.append("n/a: the device was busy for longer than a steady-state step, so the correction fails.")
        return (Section("Device time, corrected for profiling overhead", columns, rows, tuple(notes)),)


def derive(cost: Cost, steps: StepTimes, breakdown: Breakdown) -> Corrected | None:
    """Correct the shares of the windows that the breakdown is of, if the profiler slowed them too much.

    Returns:
        None where it did not, or where no rank has both steps and a breakdown.
    """
    activities = breakdown.ranks[0].activities
    is_light = activities == LIGHT
    slowdown = cost.largest_slowdown(activities)
    if slowdown is None or slowdown <= (_LARGEST_LIGHT_SLOWDOWN if is_light else LARGEST_REPRESENTATIVE_SLOWDOWN):
        return None
    communicates = any(step.parts.communication for parts in breakdown.ranks for step in parts.steps)
    has_communication = is_light and (slowdown <= LARGEST_REPRESENTATIVE_SLOWDOWN or not communicates)
    if not steps.step_time_s:
        return None
    timed = {rank.rank for rank in steps.ranks}
    ranks = [
        _correct(parts, parts.rank, steps.step_time_s, has_communication=has_communication)
        for parts in breakdown.ranks
        if parts.rank is not None and parts.steps and parts.rank in timed
    ]
    return Corrected(tuple(ranks), has_communication) if ranks else None


def _correct(parts: RankParts, rank: int, step_s: float, *, has_communication: bool) -> CorrectedShares:
    compute, copy, communication = (
        mean(getattr(step.parts, part) for step in parts.steps) / NS_PER_S / step_s
        for part in ("compute", "exposed_copy", "exposed_communication")
    )
    rest = 1 - compute - copy
    exposed = check_share(communication, "exposed communication", _CAUSES)
    holds = rest >= (communication if has_communication else 0)
    return CorrectedShares(
        rank=rank,
        device=parts.device,
        step_s=step_s,
        compute=check_share(compute, "compute", _CAUSES).value,
        exposed_copy=check_share(copy, "exposed copies", _CAUSES).value,
        exposed_communication=exposed.value if has_communication else None,
        rest=rest if holds else None,
        beside=_share_beside(parts),
    )


def _share_beside(parts: RankParts) -> float:
    """The part of the compute time beside which the device communicated."""
    compute = sum(step.parts.compute for step in parts.steps)
    hidden = sum(step.parts.communication - step.parts.exposed_communication for step in parts.steps)
    return hidden / compute if compute else 0.0
