"""Which rank is late in which step, how much later than the others, and why.

In training that synchronises, a step takes equally long on all ranks: those that are done wait for the last one. What a
rank does outside of these waits is its own; the late rank has most of it. Where the waits are not on the host, as on
GPUs, or the ranks are stages of a pipeline and have different work by design, only what cannot be a wait for another
rank counts: data, garbage, saves, a processor that was taken away, page faults, sleep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from perfscope.analyzers.late_ranks.excesses import MANY_FAULTS, Excesses, over_others
from perfscope.analyzers.late_ranks.parts import Part, StepParts
from perfscope.tables.columns import Bool, Float64

#: A rank is late in every step from this share of a median step on.
_PERSISTENT = 0.05
#: A single step is late from this share of a median step on.
_RARE = 0.25
#: What rare late steps must cost together, as a share of all compared steps.
_SIGNIFICANT = 0.02
#: Work that differs by this ratio is different work.
_MORE_WORK = 1.05
#: A step in which work is waited for longer by this share of a median step had a slow network.
_SLOW_NETWORK = 0.25
#: ... and by so many times the usual delay of a thread that has no processor.
_DELAYS = 2


class Cause(StrEnum):
    """Why a rank is late; the value is its key in JSON."""

    SAVE = "save"
    COMPILATION = "compilation"
    GARBAGE = "garbage"
    DATA = "data"
    CONTENTION = "contention"
    FAULTS = "faults"
    KERNEL = "kernel"
    BLOCKED = "blocked"
    WORK = "work"
    COMPUTE = "compute"
    DEVICE = "device"
    CLOCK = "clock"
    NETWORK = "network"


_CAUSE_OF_PART = {
    Part.SAVE: Cause.SAVE,
    Part.COMPILATION: Cause.COMPILATION,
    Part.GARBAGE: Cause.GARBAGE,
    Part.DATA: Cause.DATA,
    Part.NO_PROCESSOR: Cause.CONTENTION,
    Part.KERNEL: Cause.KERNEL,
    Part.BLOCKED: Cause.BLOCKED,
    Part.COMPUTE: Cause.COMPUTE,
}


@dataclass(frozen=True, slots=True)
class Lateness:
    """A rank that is late for one reason, or a network that is slow on all.

    Attributes:
        rank: The rank; absent for the network.
        is_persistent: Whether it is late in most steps; else in some.
        steps: In how many of the compared steps, and ``examples`` some of them.
        examples: The numbers of the worst of them, at most five, ascending.
        cost_ns: What that cost in all of them.
        cause: Why.
        cause_ns: How much of the cost the cause explains.
        excess_ns: What each part of these steps took longer than on the other ranks, in all.
        detail: What more is known of the cause, in words; empty for nothing.
    """

    rank: int | None
    is_persistent: bool
    steps: int
    examples: tuple[int, ...]
    cost_ns: int
    cause: Cause
    cause_ns: int
    excess_ns: dict[Part, int]
    detail: str = ""


def find_lateness(parts: StepParts, excesses: Excesses) -> list[Lateness]:
    """The late ranks, the most expensive first.

    Args:
        parts: The same steps of at least two ranks.
        excesses: By how much they are later in each.
    """
    excess, counted, over = excesses.by_part, excesses.counted, excesses.over_ns
    median_ns = float(np.median(parts.total_ns))
    usual = np.maximum(np.median(over, axis=1), 0)
    usual[usual < _PERSISTENT * median_ns] = 0
    entries: list[Lateness] = []
    for row in np.flatnonzero(usual).tolist():
        entries += _describe_persistent(parts, excess, counted, row, over[row] > usual[row] / 2, over[row])
    for row in range(len(parts.ranks)):
        beyond = over[row] - usual[row]
        late = (beyond > _RARE * median_ns) & (over[row] >= over.max(axis=0))
        if beyond[late].sum() > _SIGNIFICANT * float(parts.total_ns.max(axis=0).sum()):
            entries += _describe_by_cause(parts, excess, counted, row, late, beyond, is_known=usual[row] > 0)
    entries += _find_slow_network(parts, median_ns) if parts.times_exchange else []
    return sorted(entries, key=lambda late: -late.cost_ns)


def _describe_by_cause(
    parts: StepParts,
    excess: dict[Part, Float64],
    counted: Sequence[Part],
    row: int,
    late: Bool,
    beyond: Float64,
    *,
    is_known: bool,
) -> list[Lateness]:
    """The rare late steps of one rank, by the part that was longest in each."""
    above = np.stack([excess[part][row] for part in counted])
    if is_known:  # what is longer in every step does not explain a rare one
        above = above - np.maximum(np.median(above, axis=1), 0)[:, None]
    longest = above.argmax(axis=0)
    entries = []
    for index in range(len(counted)):
        chosen = late & (longest == index)
        if counted[index] is Part.BLOCKED and not parts.times_exchange:
            chosen &= above[index] > np.median(parts.parts_ns[Part.BLOCKED][row])
        if beyond[chosen].sum() > _SIGNIFICANT * float(parts.total_ns.max(axis=0).sum()) / 2:
            entries.append(_describe(parts, excess, counted, row, chosen, beyond, counted[index]))
    return entries


def _describe_persistent(
    parts: StepParts, excess: dict[Part, Float64], counted: Sequence[Part], row: int, late: Bool, over: Float64
) -> list[Lateness]:
    """A rank that is late in most steps: an entry for each part that explains much; costs add up to at most all."""
    sums = {part: float(excess[part][row][late].sum()) for part in counted}
    cost = float(over[late].sum())
    entries: list[Lateness] = []
    remaining = cost
    typical = {part: float(np.median(excess[part][row][late])) for part in counted}
    for part in sorted(sums, key=lambda part: -typical[part]):
        share_ns = min(typical[part], remaining / int(late.sum()))  # a few long ones are no part of most steps
        if not entries or share_ns > _PERSISTENT * float(np.median(parts.total_ns)):
            entry = _describe(parts, excess, counted, row, late, over, part)
            if entry.cause in {named.cause for named in entries}:
                continue
            cost_ns = round(min(entry.cause_ns, remaining) if len(counted) > 1 else remaining)
            entries.append(replace(entry, is_persistent=True, cost_ns=cost_ns))
            remaining -= cost_ns
    return entries


def _describe(
    parts: StepParts,
    excess: dict[Part, Float64],
    counted: Sequence[Part],
    row: int,
    chosen: Bool,
    over: Float64,
    longest: Part,
) -> Lateness:
    """One rank in some steps, late by one part."""
    sums = {part: round(float(excess[part][row][chosen].sum())) for part in counted}
    cost_ns = round(float(over[chosen].sum()))
    cause, detail, cause_ns = _CAUSE_OF_PART[longest], "", sums[longest]
    faults = float(np.median(over_others(parts.faults)[row][chosen]))
    is_kernel = longest is Part.KERNEL or (longest is Part.COMPUTE and 3 * sums.get(Part.KERNEL, 0) > sums[longest])
    if is_kernel and faults > MANY_FAULTS:
        cause, detail = Cause.FAULTS, f"{faults:.0f} more page faults in a step"
        cause_ns = sums[Part.KERNEL] + max(sums.get(Part.COMPUTE, 0), 0)
    elif longest is Part.COMPUTE:
        cause, detail = _explain_compute(parts, row, chosen)
    worst = np.flatnonzero(chosen)[np.argsort(-over[chosen], kind="stable")[:5]]
    return Lateness(
        rank=parts.ranks[row],
        is_persistent=False,
        steps=int(chosen.sum()),
        examples=tuple(sorted(parts.step[worst].tolist())),
        cost_ns=cost_ns,
        cause=cause,
        cause_ns=min(max(cause_ns, 0), cost_ns),
        excess_ns=sums,
        detail=detail,
    )


def _explain_compute(parts: StepParts, row: int, chosen: Bool) -> tuple[Cause, str]:
    """Whether a rank computes longer because it has more to compute."""
    own = float(parts.work[row][chosen].sum())
    usual = float(np.median(np.delete(parts.work, row, axis=0)[:, chosen].sum(axis=1)))
    if usual and own > _MORE_WORK * usual:
        return Cause.WORK, f"{own / usual:.2f} times the {parts.work_unit} of the others"
    return Cause.COMPUTE, f"the same {parts.work_unit}" if usual else ""


def _find_slow_network(parts: StepParts, median_ns: float) -> list[Lateness]:
    """Steps in which even the rank that waited least waited much longer than usual.

    Threads of the exchange have no processor either where the training thread has none: then only what is far
    longer than such delays shows the network.
    """
    least = parts.parts_ns[Part.EXCHANGE].min(axis=0)
    beyond = np.asarray(least - np.median(least), np.float64)
    delay_ns = parts.parts_ns[Part.NO_PROCESSOR].max(axis=0)
    usual_ns = max(_SLOW_NETWORK * median_ns, _DELAYS * float(np.median(delay_ns)))
    slow = (beyond > usual_ns) & (beyond > delay_ns)
    cost_ns = round(float(beyond[slow].sum()))
    if cost_ns <= _SIGNIFICANT * float(parts.total_ns.max(axis=0).sum()):
        return []
    worst = np.flatnonzero(slow)[np.argsort(-beyond[slow], kind="stable")[:5]]
    examples = tuple(sorted(parts.step[worst].tolist()))
    return [
        Lateness(
            rank=None,
            is_persistent=False,
            steps=int(slow.sum()),
            examples=examples,
            cost_ns=cost_ns,
            cause=Cause.NETWORK,
            cause_ns=cost_ns,
            excess_ns={Part.EXCHANGE: cost_ns},
        )
    ]
