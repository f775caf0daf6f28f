"""Where the bubble of one measured step came from, in integers that add up.

T, from the first forward pass of stage 0 to the end of the last backward pass on any stage, is built up in four steps,
each a simulation with one thing more:

- equal stages with the mean times of all passes: what the schedule alone costs;
- the passes as they were: what it costs that stages and micro-batches differ;
- the transfers between them: their own time, not the waiting that NCCL's kernels do for the other side;
- the step as it was measured: the rest, time in which the host did not keep the device fed.

A stage's idle time in one of them less that in the one before is its part; the last and the first add up to what was
measured. Imbalance is negative on a slow stage, which idles less than its equal would.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import lcm

from perfscope.analyzers.pipelines.pieces import Piece, Transfer
from perfscope.schedules.orders import Kind, Op, Plan
from perfscope.schedules.simulator import Timeline, simulate


@dataclass(frozen=True, slots=True)
class StageParts:
    """Where the section went on one stage, in nanoseconds; useful time and the last four add up to the section.

    Of the useful time ``forward`` is that of forward passes, and ``weight`` that of weight gradients that ran apart.
    ``schedule`` and what follows are absent where the schedule was not recognised; ``idle``, which they add up to, is
    absent where the section is unknown.
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
    """One step of one pipeline.

    Attributes:
        section_ns: T; absent without stage 0.
        start_ns: When it began, on the wall clock.
        stages: Each stage by itself; absent for one without a trace.
        theory: Idle share of p x T for equal stages with these mean times, without transfers and host gaps.
        ideal: The simulated step that ``theory`` is of.
        ticks_per_ns: Unit of ``ideal``.
    """

    section_ns: int | None
    start_ns: int
    stages: tuple[StageParts | None, ...]
    theory: Fraction | None = None
    ideal: Timeline | None = None
    ticks_per_ns: int = 1


@dataclass(frozen=True, slots=True)
class _Measured:
    """The passes as they were: a Timing of the simulator."""

    work: dict[Op, int]
    transfer: dict[Op, int]
    held: dict[Op, int]

    def of(self, op: Op) -> int:
        return self.work[op]

    def transfer_of(self, op: Op, sender: int) -> int:  # noqa: ARG002 - a part of Timing
        return self.transfer.get(op, 0)

    def held_by(self, op: Op) -> int:
        return self.held.get(op, 0)


@dataclass(frozen=True, slots=True)
class _Equal:
    """Every stage and micro-batch alike: a Timing of the simulator."""

    work: dict[Kind, int]

    def of(self, op: Op) -> int:
        return self.work[op.kind]

    def transfer_of(self, op: Op, sender: int) -> int:  # noqa: ARG002 - a part of Timing
        return 0

    def held_by(self, op: Op) -> int:  # noqa: ARG002 - a part of Timing
        return 0


def without_schedule(stages: Sequence[Sequence[Piece] | None]) -> StepParts:
    """The section and the idle time, which need no schedule; without stage 0 there is neither."""
    known = [piece for pieces in stages if pieces is not None for piece in pieces]
    if stages[0] is None:
        start = min(piece.start_ns for piece in known)
        return StepParts(None, start, tuple(None if own is None else _stage(own, None) for own in stages))
    start = min(piece.start_ns for piece in stages[0] if piece.kind is Kind.FORWARD)
    section = max(piece.end_ns for piece in known if piece.kind is not Kind.FORWARD) - start
    return StepParts(section, start, tuple(None if own is None else _stage(own, section) for own in stages))


def _stage(pieces: Sequence[Piece], section: int | None) -> StageParts:
    useful = sum(piece.work_ns for piece in pieces)
    return StageParts(
        useful=useful,
        forward=sum(piece.work_ns for piece in pieces if piece.kind is Kind.FORWARD),
        weight=sum(piece.work_ns for piece in pieces if piece.kind is Kind.WEIGHT),
        idle=None if section is None else section - useful,
    )


def equal_stages(plan: Plan, stages: Sequence[Sequence[Piece] | None]) -> StepParts:
    """What can be said where stages are missing: the section, and the theory from the passes that are there."""
    work = {
        op: piece.work_ns
        for order, own in zip(plan.orders, stages, strict=True)
        if own is not None
        for (op,), piece in zip(order, own, strict=True)
    }
    mean, ticks = _mean(work)
    ideal = simulate(plan, _Equal(mean))
    return replace(without_schedule(stages), theory=ideal.fraction_of_total, ideal=ideal, ticks_per_ns=ticks)


def decompose(plan: Plan, stages: Sequence[Sequence[Piece]], transfers: Sequence[Sequence[Transfer]]) -> StepParts:
    """Split the idle time of one step.

    Args:
        plan: The order in which the passes ran.
        stages: The passes of each stage, in that order.
        transfers: The transfers of each stage, in the order of launch.
    """
    pieces = {
        op: piece
        for order, own in zip(plan.orders, stages, strict=True)
        for (op,), piece in zip(order, own, strict=True)
    }
    base = equal_stages(plan, stages)
    assert base.section_ns is not None
    assert base.ideal is not None
    work = {op: piece.work_ns for op, piece in pieces.items()}
    as_they_were = simulate(plan, _Measured(work, {}, {})).section
    moving = transfer_times(plan, pieces, transfers)
    moved = simulate(plan, _Measured(work, moving, _held(plan, pieces, moving))).section
    parts = []
    for device, own in enumerate(stages):
        stage = _stage(own, base.section_ns)
        schedule = round(Fraction(base.ideal.section - base.ideal.busy(device), base.ticks_per_ns))
        parts.append(
            replace(
                stage,
                schedule=schedule,
                imbalance=as_they_were - stage.useful - schedule,
                transfer=moved - as_they_were,
                host=base.section_ns - moved,
            )
        )
    return replace(base, stages=tuple(parts))


def _mean(work: dict[Op, int]) -> tuple[dict[Kind, int], int]:
    """Mean time of each kind of pass in ticks, and how many ticks a nanosecond has, so that every mean is whole."""
    by_kind: defaultdict[Kind, list[int]] = defaultdict(list)
    for op, time in work.items():
        by_kind[op.kind].append(time)
    ticks = lcm(*(len(times) for times in by_kind.values()))
    return {kind: sum(times) * ticks // len(times) for kind, times in by_kind.items()}, ticks


def transfer_times(plan: Plan, pieces: dict[Op, Piece], transfers: Sequence[Sequence[Transfer]]) -> dict[Op, int]:
    """For each operation whose result crosses devices the time of that transfer alone.

    Of a paired send and receive the shorter kernel waited less. A kernel that names no peer may send one thing and
    receive another at once, so that both are long; there the shortest pair of the same way counts, because all
    micro-batches have one size. No transfer takes longer than the time between the two passes that it joins.
    """
    device_of = {op: device for device, order in enumerate(plan.orders) for (op,) in order}
    pairs: defaultdict[tuple[int, int, Kind], list[tuple[Op, Op, int, bool]]] = defaultdict(list)
    for op, reader in _crossings(plan, device_of):
        sender, receiver = device_of[op], device_of[reader]
        sent = _sent(transfers[sender], pieces[op])
        received = _received(transfers[receiver], pieces[reader])
        if sent and received:
            shorter = min(sent.end_ns - sent.start_ns, received.end_ns - received.start_ns)
            named = bool(sent.operation and received.operation)
            pairs[sender, receiver, reader.kind].append((op, reader, shorter, named))
    found = {}
    for members in pairs.values():
        shortest = min(time for _, _, time, _ in members)
        for op, reader, time, named in members:
            between = max(pieces[reader].start_ns - pieces[op].end_ns, 0)
            found[op] = min(time if named else shortest, between)
    return found


def _crossings(plan: Plan, device_of: dict[Op, int]) -> list[tuple[Op, Op]]:
    """Each operation that another device needs, with the operation that needs it."""
    backward = {(op.microbatch, op.stage): op for op in device_of if op.kind in (Kind.BACKWARD, Kind.INPUT)}
    found = []
    for op, device in device_of.items():
        reader: Op | None = None
        if op.kind is Kind.FORWARD and op.stage + 1 < plan.stages:
            reader = Op(Kind.FORWARD, op.microbatch, op.stage + 1)
        elif op.kind in (Kind.BACKWARD, Kind.INPUT) and op.stage:
            reader = backward[op.microbatch, op.stage - 1]
        if reader is not None and device_of[reader] != device:
            found.append((op, reader))
    return found


def _sent(transfers: Sequence[Transfer], piece: Piece) -> Transfer | None:
    """The first transfer behind a pass that may be a send."""
    return next((one for one in transfers if one.place > piece.last and one.operation != "recv"), None)


def _received(transfers: Sequence[Transfer], piece: Piece) -> Transfer | None:
    """The last transfer in front of a pass that may be a receive."""
    return next((one for one in reversed(transfers) if one.place < piece.first and one.operation != "send"), None)


def _held(plan: Plan, pieces: dict[Op, Piece], moving: dict[Op, int]) -> dict[Op, int]:
    """Transfers that kept their sender from working: those behind which its next pass began."""
    held = {}
    for order in plan.orders:
        for (op,), (following,) in pairwise(order):
            if op in moving and pieces[following].start_ns >= pieces[op].end_ns + moving[op]:
                held[op] = moving[op]
    return held
