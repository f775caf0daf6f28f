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
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from math import lcm

from perfscope.analyzers.pipelines.rank_passes import MeasuredPass, RankStep, Transfer
from perfscope.schedules.operations import Block, Op, PassKind, Plan
from perfscope.schedules.simulator import Timeline, Timing, simulate


@dataclass(frozen=True, slots=True)
class StageParts:
    """The section's time on one stage, in nanoseconds; useful time and the last four add up to the section.

    ``forward`` and ``weight`` are the parts of the useful time of forward passes and of separate weight-gradient
    passes. ``schedule``, ``imbalance``, ``transfer`` and ``host`` are absent where the schedule was not recognised;
    ``idle``, their sum, is absent where the section is unknown.
    """

    useful: int
    forward: int
    weight: int
    idle: int | None
    schedule: int | None = None
    imbalance: int | None = None
    transfer: int | None = None
    host: int | None = None


@dataclass(frozen=True, slots=True)
class StepParts:
    """The decomposition of one step of one pipeline.

    Attributes:
        section_ns: T; absent without stage 0.
        start_ns: When it began, on the wall clock.
        stages: The parts of each stage; absent for a stage without a trace.
        theory: Idle share of p x T for equal stages with these mean times, without transfers and host gaps.
        ideal: The simulated step with that share.
        ticks_per_ns: Unit of ``ideal``.
    """

    section_ns: int | None
    start_ns: int
    stages: tuple[StageParts | None, ...]
    theory: Fraction | None = None
    ideal: Timeline | None = None
    ticks_per_ns: int = 1


@dataclass(frozen=True, slots=True)
class _MeasuredTiming(Timing):
    """The passes and transfers with their measured times."""

    work: dict[Op, int]
    transfer: dict[Op, int]
    send_blocking: dict[Op, int]

    def time_of(self, op: Op) -> int:
        return self.work[op]

    def transfer_time(self, op: Op, _sender: int) -> int:
        return self.transfer.get(op, 0)

    def send_blocking_time(self, op: Op) -> int:
        return self.send_blocking.get(op, 0)


@dataclass(frozen=True, slots=True)
class _MeanTiming(Timing):
    """All stages and micro-batches with the mean time of each kind of pass."""

    work: dict[PassKind, int]

    def time_of(self, op: Op) -> int:
        return self.work[op.kind]


def sum_idle_time(stages: Sequence[Sequence[MeasuredPass] | None]) -> StepParts:
    """The section and the idle time, which need no schedule; without stage 0 neither is known."""
    traced = [measured for passes in stages if passes is not None for measured in passes]
    if stages[0] is None:
        start = min(measured.start_ns for measured in traced)
        section = None
    else:
        start = min(measured.start_ns for measured in stages[0] if measured.kind is PassKind.FORWARD)
        section = max(measured.end_ns for measured in traced if measured.kind is not PassKind.FORWARD) - start
    return StepParts(
        section, start, tuple(None if passes is None else _sum_stage(passes, section) for passes in stages)
    )


def _sum_stage(passes: Sequence[MeasuredPass], section: int | None) -> StageParts:
    useful = sum(measured.work_ns for measured in passes)
    return StageParts(
        useful=useful,
        forward=sum(measured.work_ns for measured in passes if measured.kind is PassKind.FORWARD),
        weight=sum(measured.work_ns for measured in passes if measured.kind is PassKind.WEIGHT_GRADIENT),
        idle=None if section is None else section - useful,
    )


def compare_with_theory(plan: Plan, stages: Sequence[Sequence[MeasuredPass] | None]) -> StepParts:
    """The section and the idle time beside those of equal stages with the same mean times; stages may be missing."""
    work = {
        op: measured.work_ns
        for order, passes in zip(plan.orders, stages, strict=True)
        if passes is not None
        for (op,), measured in zip(order, passes, strict=True)
    }
    mean, ticks = _average_by_kind(work)
    ideal = simulate(plan, _MeanTiming(mean))
    return replace(sum_idle_time(stages), theory=ideal.fraction_of_total, ideal=ideal, ticks_per_ns=ticks)


def decompose(plan: Plan, stages: Sequence[RankStep]) -> StepParts:
    """Split the idle time of one step.

    Args:
        plan: The order in which the passes ran.
        stages: The step on each stage, its passes in that order.
    """
    passes = {
        op: measured
        for order, stage in zip(plan.orders, stages, strict=True)
        for (op,), measured in zip(order, stage.passes, strict=True)
    }
    base = compare_with_theory(plan, [stage.passes for stage in stages])
    assert base.section_ns is not None
    assert base.ideal is not None
    work = {op: measured.work_ns for op, measured in passes.items()}
    without_transfers = simulate(plan, _MeasuredTiming(work, {}, {})).section
    transfers = _estimate_transfer_times(plan, passes, [stage.transfers for stage in stages])
    blocking = _find_blocking_sends(plan, passes, transfers)
    with_transfers = simulate(plan, _MeasuredTiming(work, transfers, blocking)).section
    beyond = base.section_ns - with_transfers
    host = beyond
    if any(stage.transfers for stage in stages):
        held = {op: time for order, stage in zip(plan.orders, stages, strict=True) for op, time in _hold(order, stage)}
        gaps = simulate(plan, _MeasuredTiming(held, transfers, blocking)).section - with_transfers
        host = min(gaps, beyond) if beyond > 0 else beyond
    parts = []
    for device, stage in enumerate(stages):
        stage_parts = _sum_stage(stage.passes, base.section_ns)
        schedule = round(Fraction(base.ideal.section - base.ideal.busy(device), base.ticks_per_ns))
        parts.append(
            replace(
                stage_parts,
                schedule=schedule,
                imbalance=without_transfers - stage_parts.useful - schedule,
                transfer=with_transfers - without_transfers + beyond - host,
                host=host,
            )
        )
    return replace(base, stages=tuple(parts))


def _average_by_kind(work: dict[Op, int]) -> tuple[dict[PassKind, int], int]:
    """Mean time of each kind of pass in ticks, and how many ticks a nanosecond has, so that means are integers."""
    by_kind: defaultdict[PassKind, list[int]] = defaultdict(list)
    for op, time in work.items():
        by_kind[op.kind].append(time)
    ticks = lcm(*(len(times) for times in by_kind.values()))
    return {kind: sum(times) * ticks // len(times) for kind, times in by_kind.items()}, ticks


def _estimate_transfer_times(
    plan: Plan, passes: dict[Op, MeasuredPass], transfers: Sequence[Sequence[Transfer]]
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
        send = _find_send(transfers[sender], passes[op])
        receive = _find_receive(transfers[receiver], passes[reader])
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


def _list_crossings(plan: Plan, device_of: dict[Op, int]) -> list[tuple[Op, Op]]:
    """Each operation whose result is needed on a different device, with the operation that needs it."""
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


def _hold(order: Sequence[Block], stage: RankStep) -> Iterator[tuple[Op, int]]:
    """How long each pass held its stage, by itself: until its end, from when the device ran nothing else before it."""
    passes = [(measured.start_ns, measured.end_ns) for measured in stage.passes]
    events = sorted([*passes, *((transfer.start_ns, transfer.end_ns) for transfer in stage.transfers)])
    starts = [start for start, _ in events]
    latest = list(accumulate((end for _, end in events), max))
    for (op,), measured in zip(order, stage.passes, strict=True):
        before = bisect_left(starts, measured.start_ns)
        idle = measured.start_ns - latest[before - 1] if before else 0
        yield op, measured.end_ns - measured.start_ns + max(idle, 0)


def _find_send(transfers: Sequence[Transfer], measured: MeasuredPass) -> Transfer | None:
    """The first transfer behind a pass that may be a send."""
    return next((send for send in transfers if send.position > measured.last and send.operation != "recv"), None)


def _find_receive(transfers: Sequence[Transfer], measured: MeasuredPass) -> Transfer | None:
    """The last transfer in front of a pass that may be a receive."""
    return next(
        (
            receive
            for receive in reversed(transfers)
            if receive.position < measured.first and receive.operation != "send"
        ),
        None,
    )


def _find_blocking_sends(plan: Plan, passes: dict[Op, MeasuredPass], transfers: dict[Op, int]) -> dict[Op, int]:
    """Transfers that kept their sender from computing: its next pass began behind them."""
    blocking = {}
    for order in plan.orders:
        for (op,), (following,) in pairwise(order):
            if op in transfers and passes[following].start_ns >= passes[op].end_ns + transfers[op]:
                blocking[op] = transfers[op]
    return blocking
