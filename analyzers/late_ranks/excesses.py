"""By how much each rank is later than the others in each step, and in which of them a rank was latest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.late_ranks.parts import EVIDENCE, Part, StepParts
from perfscope.analyzers.late_ranks.peer_waits import without_peer_waits
from perfscope.tables.columns import Float64, Int64

#: For how much longer than the others a thread is blocked in backward passes, as a share of theirs: up to a third in
#: trainings where nobody was late, and 1.3 and more where a rank slept.
_LIKELY = 0.75
#: Page faults beyond the others' that explain time in the kernel.
MANY_FAULTS = 200
#: A step in which no rank is later by this share of a median step is none with a late rank.
_LATE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Excesses:
    """By how much ranks are later than the median of the others, by rank and step, in nanoseconds.

    Attributes:
        by_part: In each part but waits for other ranks.
        counted: The parts that make a rank late.
        over_ns: In all of these.
    """

    by_part: dict[Part, Float64]
    counted: tuple[Part, ...]
    over_ns: Float64


@dataclass(frozen=True, slots=True)
class LateStep:
    """The rank that was latest in a step, by how much, and the part that was longer on it by most."""

    step: int
    rank: int
    later_ns: int
    part: Part
    part_ns: int


def measure_excesses(parts: StepParts, *, counts_compute: bool) -> Excesses:
    """Compare the parts of all ranks.

    Args:
        parts: The same steps of at least two ranks.
        counts_compute: Whether a rank's own work may be compared with that of the others; else only evidence counts.
    """
    excess: dict[Part, Float64] = {
        part: over_others(parts.parts_ns[part]) for part in Part if part is not Part.EXCHANGE
    }
    if not parts.times_exchange:
        blocked_ns = parts.parts_ns[Part.BLOCKED]
        without = _with_idle if parts.idle_ns else _without_backward
        excess[Part.BLOCKED] = without(excess[Part.BLOCKED], blocked_ns, parts.idle_ns)
        excess[Part.KERNEL] = _without_driver(excess[Part.KERNEL], parts)
        _move_waits_for_threads(excess, parts.parts_ns)
    counted = tuple(part for part in excess if counts_compute or part in EVIDENCE)
    if not parts.times_exchange:
        median_ns = float(np.median(parts.total_ns))
        excess[Part.BLOCKED] = without_peer_waits(excess, counted, parts.step, median_ns)
    if counts_compute and parts.times_exchange:
        over = over_others(parts.own_ns)
    else:  # a part that is short on this rank does not make up for one that is long
        over = np.zeros(parts.total_ns.shape)
        for part in counted:
            over += np.maximum(excess[part], 0)
    return Excesses(excess, counted, over)


def find_late_steps(parts: StepParts, excesses: Excesses, most: int) -> tuple[LateStep, ...]:
    """The steps in which a rank was later than the others by most, ascending by their number."""
    latest = excesses.over_ns.max(axis=0)
    columns = np.flatnonzero(latest > _LATE * float(np.median(parts.total_ns)))
    if len(columns) > most:
        columns = columns[np.argpartition(-latest[columns], most - 1)[:most]]
    steps = []
    for column in np.sort(columns).tolist():
        row = int(excesses.over_ns[:, column].argmax())
        part = max(excesses.counted, key=lambda part: excesses.by_part[part][row, column])
        part_ns, later_ns = excesses.by_part[part][row, column], excesses.over_ns[row, column]
        steps.append(LateStep(int(parts.step[column]), parts.ranks[row], round(later_ns), part, round(part_ns)))
    return tuple(steps)


def over_others(values: Int64) -> Float64:
    """By how much each rank's value is above the median of the other ranks, by rank and step."""
    if not values.any():
        return np.broadcast_to(np.float64(0), values.shape)
    ranks = len(values)
    if ranks == 2:  # noqa: PLR2004 - a pair
        return np.asarray(values - values[::-1], np.float64)
    ordered = np.sort(values, axis=0)
    position = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    low, high = (ranks - 2) // 2, (ranks - 1) // 2
    lower = np.where(position <= low, np.take(ordered, low + 1, axis=0), np.take(ordered, low, axis=0))
    upper = np.where(position <= high, np.take(ordered, high + 1, axis=0), np.take(ordered, high, axis=0))
    return np.asarray(values - (lower + upper) / 2, np.float64)


def _move_waits_for_threads(excess: dict[Part, Float64], parts_ns: dict[Part, Int64]) -> None:
    """Count waits for a thread of the same process as what held that one up, in place.

    On GPUs another thread launches backward passes, and the one that trains is blocked meanwhile. Both run on the same
    processors: where the thread that trains took twice as long as usual for its own code, so did the other, and being
    blocked for twice as long is no sleep. It is contention by as much of that code's time as was in the run queue; the
    rest is slower code, which waits for nobody.
    """
    blocked_ns, delay_ns = parts_ns[Part.BLOCKED], parts_ns[Part.NO_PROCESSOR]
    code_ns = delay_ns + parts_ns[Part.KERNEL] + parts_ns[Part.COMPUTE]
    usual_ns, usual_delay_ns, usual_excess_ns = (
        np.median(times, axis=1)[:, None] for times in (code_ns, delay_ns, excess[Part.BLOCKED])
    )
    # What a rank is blocked longer than the others in most steps is no wait for that thread.
    beyond_ns = excess[Part.BLOCKED] - np.maximum(usual_excess_ns, 0)
    of_all_ns = blocked_ns - np.maximum(over_others(blocked_ns), 0)
    usually_blocked_ns = np.median(of_all_ns, axis=1)[:, None]
    longer_ns = np.maximum(code_ns - usual_ns, 0)
    held_ns = np.clip(beyond_ns, 0, usually_blocked_ns * longer_ns / np.maximum(usual_ns, 1))
    queued = np.clip((delay_ns - usual_delay_ns) / np.maximum(longer_ns, 1), 0, 1)
    excess[Part.BLOCKED] = np.asarray(excess[Part.BLOCKED] - held_ns, np.float64)
    excess[Part.NO_PROCESSOR] = np.asarray(excess[Part.NO_PROCESSOR] + held_ns * queued, np.float64)


def _with_idle(excess: Float64, blocked_ns: Int64, idle_ns: tuple[float, ...]) -> Float64:
    """What a rank is blocked longer than usual, and in every step for as long as its whole process is idle.

    The thread that trains waits while another launches the backward pass, or comes no further because the device is
    far behind: that thread works or spins then.
    """
    usual = np.maximum(np.median(excess, axis=1), 0)
    idle = np.clip(np.array(idle_ns), 0, np.median(blocked_ns, axis=1))
    longer = np.maximum(over_others(np.rint(idle).astype(np.int64)[:, None]), 0)
    return np.asarray(excess - usual[:, None] + longer, np.float64)


def _without_driver(excess: Float64, parts: StepParts) -> Float64:
    """Time in the kernel that is no wait for the device: with page faults, or of a host for which its device waits.

    A thread that comes no further because its device is far behind asks for it in the driver: so does a rank that
    waits for the late one.
    """
    leads = np.array(parts.leads_host or (False,) * len(excess))
    return np.where(leads[:, None] | (over_others(parts.faults) > MANY_FAULTS), excess, 0.0)


def _without_backward(excess: Float64, blocked_ns: Int64, _idle_ns: tuple[float, ...]) -> Float64:
    """What a rank is blocked longer than the others, where that is more than backward passes differ.

    On GPUs another thread launches backward passes, and the one that trains waits for it: that is no sleep. Stages of a
    pipeline have different ones.
    """
    usual = np.median(excess, axis=1)
    usual_ns = np.median(blocked_ns, axis=1) - usual
    usual[usual > _LIKELY * usual_ns] = 0
    return np.asarray(excess - np.maximum(usual, 0)[:, None], np.float64)
