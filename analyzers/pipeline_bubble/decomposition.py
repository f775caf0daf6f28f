"""Decomposes the bubble of one measured step into its causes, in integers that add up.

T runs from the first forward pass of stage 0 to the end of the last backward pass on any stage. It is built up in
steps, each of which adds a cause of idle time:

- a simulation of equal stages with the mean times of all passes: the cost of the schedule alone.
- a simulation of the passes with their measured times: the cost of unequal stages and micro-batches.
- the same with transfers: their own time, without the time for which NCCL's kernels wait for the peer.
- the same with the gaps in which a device ran nothing at all, within passes and right before them: what the host cost.
- the measured step: the rest belongs to transfers, whose kernels ran longer than their own time says. Where the traces
  show no transfer, it is among the host's.

The increase of a stage's idle time in each step is the part of the added cause. So the parts add up to the measured
idle time. Imbalance is negative on a slow stage, which idles less than an equal stage would.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import lcm
from typing import Annotated, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.pipeline_bubble.rank_passes import MeasuredPass, PassesOfStep, Transfer
from perfscope.constants import NS_PER_US
from perfscope.result import Doc, Figures, InUnit, InUnitIfKnown, Result, figure
from perfscope.schedules.operations import Block, Op, PassKind, PassOrder
from perfscope.schedules.simulator import PassTimeline, Timing, simulate

#: Nanoseconds, also a mean of several steps; absent where unknown.
Time: TypeAlias = int | Fraction | None


class StageParts(Figures, frozen=True):
    """One stage in one step: ``useful + schedule + imbalance + transfer + host`` is the section exactly.

    The parts of the idle time are absent where the schedule was not recognised.
    """

    stage: Annotated[int, Doc("Its number.")]
    useful: int | Fraction
    forward: int | Fraction
    weight: int | Fraction
    idle: int | Fraction
    schedule: Time = None
    imbalance: Time = None
    transfer: Time = None
    host: Time = None
    useful_us = InUnit("useful", NS_PER_US, "Time of its passes.")
    schedule_us = InUnitIfKnown("schedule", NS_PER_US, "Idle time of the schedule alone, for equal stages.")
    imbalance_us = InUnitIfKnown(
        "imbalance", NS_PER_US, "Idle time because stages and micro-batches are unequal; negative on a slow stage."
    )
    transfer_us = InUnitIfKnown("transfer", NS_PER_US, "Idle time for transfers themselves.")
    host_us = InUnitIfKnown("host", NS_PER_US, "The rest, in which the host did not keep the device busy.")
    idle_us = InUnit("idle", NS_PER_US, "The sum of these four.")


class StageShares(Result, frozen=True):
    """A result with the parts of a bubble over p x T."""

    stages: Annotated[tuple[Any, ...], Doc("Each stage in a mean step.")]
    section: Any

    @figure
    def schedule_fraction_of_total(self) -> float | None:
        """The part of the schedule."""
        return self.share_of("schedule")

    @figure
    def imbalance_fraction_of_total(self) -> float | None:
        """The part of unequal stages."""
        return self.share_of("imbalance")

    @figure
    def p(self) -> int:
        """Stages."""
        return len(self.stages)

    def sum_of(self, part: str) -> Fraction | None:
        """A part of all stages; absent where that of one is."""
        times = [getattr(stage, part) for stage in self.stages]
        return None if None in times else Fraction(sum(times))

    def share_of(self, part: str) -> float | None:
        """The same over p x T."""
        total = self.sum_of(part)
        return None if total is None else float(total / (self.p * self.section))


class BubbleParts(Struct, frozen=True):
    """The decomposition of one step of one pipeline, which began at ``start_ns`` on the wall clock.

    ``theory`` is the idle share of p x T for equal stages with these mean times, without transfers and host gaps.
    ``ideal`` is the simulated step with that share, in ticks.
    """

    section_ns: int
    start_ns: int
    stages: tuple[StageParts, ...]
    theory: Fraction | None = None
    ideal: PassTimeline | None = None
    ticks_per_ns: int = 1


class MeasuredTiming(Timing):
    """The time of each pass, and of its transfer, for which a send may keep its own device from computing."""

    def __init__(
        self, work: Mapping[Op, int], transfer: Mapping[Op, int] = {}, send_blocking: Mapping[Op, int] = {}
    ) -> None:
        self.work, self.transfer, self.send_blocking = work, transfer, send_blocking

    def time_of(self, op: Op) -> int:
        """Time of a pass."""
        return self.work[op]

    def transfer_time(self, op: Op, _sender: int) -> int:
        """Time of its transfer."""
        return self.transfer.get(op, 0)

    def send_blocking_time(self, op: Op) -> int:
        """Time for which sending its result blocks its device."""
        return self.send_blocking.get(op, 0)


def sum_idle_time(stages: Sequence[Sequence[MeasuredPass]]) -> BubbleParts:
    """The section and the idle time, which need no schedule."""
    start = min(measured.start_ns for measured in stages[0] if measured.kind is PassKind.FORWARD)
    ends = (one.end_ns for passes in stages for one in passes if one.kind is not PassKind.FORWARD)
    section = max(ends) - start
    return BubbleParts(section, start, tuple(_sum_stage(stage, passes, section) for stage, passes in enumerate(stages)))


def _sum_stage(stage: int, passes: Sequence[MeasuredPass], section: int) -> StageParts:
    work: Counter[PassKind] = Counter()
    for measured in passes:
        work[measured.kind] += measured.work_ns
    useful = work.total()
    return StageParts(stage, useful, work[PassKind.FORWARD], work[PassKind.WEIGHT_GRADIENT], section - useful)


def decompose(plan: PassOrder, stages: Sequence[PassesOfStep]) -> BubbleParts:
    """Split the idle time of one step; the passes of each stage are in the order of ``plan``."""
    passes = {
        op: measured
        for order, stage in zip(plan.orders, stages, strict=True)
        for (op,), measured in zip(order, stage.passes, strict=True)
    }
    base = sum_idle_time([stage.passes for stage in stages])
    work = {op: measured.work_ns for op, measured in passes.items()}
    mean, ticks = _average_by_kind(work)
    ideal = simulate(plan, MeasuredTiming({op: mean[op.kind] for op in work}))
    without_transfers = simulate(plan, MeasuredTiming(work)).section
    transfers = _estimate_transfer_times(plan, passes, [stage.transfers for stage in stages])
    blocking = _find_blocking_sends(plan, passes, transfers)
    with_transfers = simulate(plan, MeasuredTiming(work, transfers, blocking)).section
    beyond = base.section_ns - with_transfers
    host = beyond
    if any(stage.transfers for stage in stages):
        held = {op: time for order, stage in zip(plan.orders, stages, strict=True) for op, time in _hold(order, stage)}
        gaps = simulate(plan, MeasuredTiming(held, transfers, blocking)).section - with_transfers
        host = min(gaps, beyond) if beyond > 0 else beyond
    parts = []
    for own in base.stages:
        schedule = round(Fraction(ideal.section - ideal.busy(own.stage), ticks))
        imbalance = without_transfers - int(own.useful) - schedule
        transfer = with_transfers - without_transfers + beyond - host
        parts.append(replace(own, schedule=schedule, imbalance=imbalance, transfer=transfer, host=host))
    return replace(base, stages=tuple(parts), theory=ideal.fraction_of_total, ideal=ideal, ticks_per_ns=ticks)


def _average_by_kind(work: dict[Op, int]) -> tuple[dict[PassKind, int], int]:
    by_kind: defaultdict[PassKind, list[int]] = defaultdict(list)
    for op, time in work.items():
        by_kind[op.kind].append(time)
    ticks = lcm(*(len(times) for times in by_kind.values()))
    return {kind: sum(times) * ticks // len(times) for kind, times in by_kind.items()}, ticks


def _estimate_transfer_times(
    plan: PassOrder, passes: dict[Op, MeasuredPass], transfers: Sequence[Sequence[Transfer]]
) -> dict[Op, int]:
    """For each operation whose result crosses devices the time of that transfer alone.

    Of a paired send and receive the shorter kernel waited less. A kernel that names no peer may send and receive at
    once, and both are then long. In this case the shortest pair in the same direction counts, because all micro-batches
    have the same size. No transfer takes longer than the time between the two passes that it connects.
    """
    device_of = {op: device for device, order in enumerate(plan.orders) for (op,) in order}
    pairs: defaultdict[tuple[int, int, PassKind], list[tuple[Op, Op, int, bool]]] = defaultdict(list)
    for op, reader in _list_crossings(plan, device_of):
        sender, receiver = device_of[op], device_of[reader]
        # The first transfer after a pass that may be a send, and the last one before a pass that may be a receive.
        sends = (one for one in transfers[sender] if one.position > passes[op].last and one.operation != "recv")
        receives = (one for one in transfers[receiver][::-1] if one.position < passes[reader].first)
        send, receive = next(sends, None), next((one for one in receives if one.operation != "send"), None)
        if send and receive:
            shorter = min(send.end_ns - send.start_ns, receive.end_ns - receive.start_ns)
            is_named = bool(send.operation and receive.operation)
            pairs[sender, receiver, reader.kind].append((op, reader, shorter, is_named))
    times = {}
    for members in pairs.values():
        shortest = min(time for _, _, time, _ in members)
        for op, reader, time, is_named in members:
            gap = max(passes[reader].start_ns - passes[op].end_ns, 0)
            times[op] = min(time if is_named else shortest, gap)
    return times


def _list_crossings(plan: PassOrder, device_of: dict[Op, int]) -> list[tuple[Op, Op]]:
    gradients = (PassKind.BACKWARD, PassKind.INPUT_GRADIENT)
    backward = {(op.microbatch, op.stage): op for op in device_of if op.kind in gradients}
    crossings = []
    for op, device in device_of.items():
        reader: Op | None = None
        if op.kind is PassKind.FORWARD and op.stage + 1 < plan.stages:
            reader = Op(PassKind.FORWARD, op.microbatch, op.stage + 1)
        elif op.kind in gradients and op.stage:
            reader = backward[op.microbatch, op.stage - 1]
        if reader is not None and device_of[reader] != device:
            crossings.append((op, reader))
    return crossings


def _hold(order: Sequence[Block], stage: PassesOfStep) -> Iterator[tuple[Op, int]]:
    passes = [(measured.start_ns, measured.end_ns) for measured in stage.passes]
    events = sorted([*passes, *((transfer.start_ns, transfer.end_ns) for transfer in stage.transfers)])
    starts = [start for start, _ in events]
    latest = list(accumulate((end for _, end in events), max))
    for (op,), measured in zip(order, stage.passes, strict=True):
        before = bisect_left(starts, measured.start_ns)
        idle = measured.start_ns - latest[before - 1] if before else 0
        yield op, measured.end_ns - measured.start_ns + max(idle, 0)


def _find_blocking_sends(plan: PassOrder, passes: dict[Op, MeasuredPass], transfers: dict[Op, int]) -> dict[Op, int]:
    blocking = {}
    for order in plan.orders:
        for (op,), (following,) in pairwise(order):
            if op in transfers and passes[following].start_ns >= passes[op].end_ns + transfers[op]:
                blocking[op] = transfers[op]
    return blocking
