"""Which schedule a step followed, and which micro-batch and virtual stage each of its passes belongs to.

Marked passes name theirs, so that the order itself is the plan. Without marks the pattern of forward and backward
passes on each stage is compared with those of the schedules that do not split the backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscope.errors import UsageError
from perfscope.pipeline.pieces import Piece
from perfscope.pipeline.schedules import Block, Kind, Op, Plan, Schedule, plan

_MOST_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a step followed.

    Attributes:
        schedule: Its name; absent where marks tell an order that has none here.
        chunks: Virtual stages on a device.
        plan: The order as it ran, one operation a block, as long as the passes on each stage.
    """

    schedule: Schedule | None
    chunks: int
    plan: Plan


def recognise(stages: Sequence[Sequence[Piece] | None]) -> Recognised | None:
    """Name the schedule of one step from the passes of each stage, None for one that is unknown.

    Returns:
        None where no schedule fits.
    """
    known = [pieces for pieces in stages if pieces is not None]
    marked = all(piece.stage is not None and piece.microbatch is not None for pieces in known for piece in pieces)
    return _marked(known) if marked and len(known) == len(stages) else _by_pattern(stages)


def _by_pattern(stages: Sequence[Sequence[Piece] | None]) -> Recognised | None:
    patterns = {device: [piece.kind for piece in pieces] for device, pieces in enumerate(stages) if pieces is not None}
    forwards = next(iter(patterns.values())).count(Kind.FORWARD)
    for schedule, chunks in _candidates(forwards):
        found = _try(schedule, len(stages), forwards // chunks, chunks)
        if found and all(_kinds(found.orders[device]) == pattern for device, pattern in patterns.items()):
            return Recognised(schedule, chunks, found)
    return None


def _kinds(order: Sequence[Block]) -> list[Kind]:
    return [op.kind for block in order for op in block]


def _candidates(forwards: int) -> Iterator[tuple[Schedule, int]]:
    yield Schedule.ONE_F_ONE_B, 1
    yield Schedule.GPIPE, 1
    for chunks in range(2, _MOST_CHUNKS + 1):
        if forwards % chunks == 0:
            yield Schedule.INTERLEAVED, chunks


def _try(schedule: Schedule, devices: int, microbatches: int, chunks: int) -> Plan | None:
    if microbatches == 0:
        return None
    try:
        return plan(schedule, devices, microbatches, chunks)
    except UsageError:
        return None


def _marked(stages: Sequence[Sequence[Piece]]) -> Recognised | None:
    orders = tuple(
        tuple((Op(piece.kind, piece.microbatch or 0, piece.stage or 0),) for piece in pieces) for pieces in stages
    )
    ops = [op for order in orders for (op,) in order]
    count, length = max(op.stage for op in ops) + 1, max(op.microbatch for op in ops) + 1
    if not _is_whole(ops, count * length) or count % len(stages):
        return None
    found = Plan(length, count, orders)
    chunks = count // len(stages)
    name = next(
        (schedule for schedule in Schedule if _follows(found, schedule, chunks)),
        None,
    )
    return Recognised(name, chunks, found)


def _is_whole(ops: Iterable[Op], expected: int) -> bool:
    """Every micro-batch passed every virtual stage forward and back, once."""
    seen = Counter(ops)
    kinds = Counter(op.kind for op in seen)
    backward = {(op.microbatch, op.stage) for op in seen if op.kind in (Kind.BACKWARD, Kind.INPUT)}
    return (
        max(seen.values()) == 1
        and kinds[Kind.FORWARD] == expected
        and kinds[Kind.BACKWARD] + kinds[Kind.INPUT] == expected == len(backward)
        and kinds[Kind.WEIGHT] == kinds[Kind.INPUT]
    )


def _follows(found: Plan, schedule: Schedule, chunks: int) -> bool:
    known = _try(schedule, found.devices, found.microbatches, chunks if schedule is Schedule.INTERLEAVED else 1)
    if known is None or known.stages != found.stages:
        return False
    return all(_joined(one) == _joined(other) for one, other in zip(found.orders, known.orders, strict=True))


def _joined(order: Sequence[Block]) -> list[Op]:
    """An order in which an input gradient and its weight gradient right behind it are one backward pass."""
    joined: list[Op] = []
    for op in (op for block in order for op in block):
        before = joined[-1] if joined else None
        if op.kind is Kind.WEIGHT and before == Op(Kind.INPUT, op.microbatch, op.stage):
            joined[-1] = Op(Kind.BACKWARD, op.microbatch, op.stage)
        else:
            joined.append(op)
    return joined
