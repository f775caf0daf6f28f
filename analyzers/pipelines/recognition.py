"""Which schedule a step followed, and which micro-batch and virtual stage each of its passes belongs to.

Marked passes name theirs, so that the order itself is the plan. Without marks the pattern of forward and backward
passes on each stage is compared with those of the schedules that do not split the backward pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscope.analyzers.pipelines.pieces import Piece
from perfscope.errors import UsageError
from perfscope.schedules.orders import Block, Kind, Op, Plan, Schedule, plan

#: What orders without a name of their own are called; the second splits the backward pass.
OTHER, OTHER_ZERO_BUBBLE = "custom", "zero-bubble"
_MOST_CHUNKS = 16
_PASS = re.compile(r"([FBIW])(\d+)\.(\d+)")


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

    @property
    def name(self) -> str:
        """The schedule's name; OTHER or OTHER_ZERO_BUBBLE where it has none here."""
        if self.schedule is not None:
            return str(self.schedule)
        splits = any(op.kind is Kind.WEIGHT for order in self.plan.orders for block in order for op in block)
        return OTHER_ZERO_BUBBLE if splits else OTHER


def of_order(orders: Sequence[Sequence[str]]) -> Recognised | None:
    """Name the schedule of passes that are written as ``F3.1``: kind, micro-batch, virtual stage.

    Returns:
        None where micro-batches are not whole.
    """
    ops = [[_PASS.fullmatch(text) for text in order] for order in orders]
    if not all(ops) or any(match is None for order in ops for match in order):
        return None
    return _planned(
        tuple(
            tuple((Op(Kind(match[1]), int(match[2]), int(match[3])),) for match in order if match is not None)
            for order in ops
        )
    )


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
    return _planned(
        tuple(tuple((Op(piece.kind, piece.microbatch or 0, piece.stage or 0),) for piece in own) for own in stages)
    )


def _planned(orders: tuple[tuple[Block, ...], ...]) -> Recognised | None:
    """The schedule of orders that name every pass."""
    ops = [op for order in orders for (op,) in order]
    count, length = max(op.stage for op in ops) + 1, max(op.microbatch for op in ops) + 1
    if not _is_whole(ops, count * length) or count % len(orders):
        return None
    found = Plan(length, count, orders)
    chunks = count // len(orders)
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
