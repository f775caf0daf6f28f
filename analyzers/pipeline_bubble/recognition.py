"""Recognises the schedule of a step: its name, and the micro-batch and virtual stage of each pass.

Marked passes name their micro-batch and stage, so that their order is the plan. Without marks the pattern of forward
and backward passes on each stage is compared with those of the schedules that do not split the backward pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from perfscope.analyzers.pipeline_bubble.rank_passes import MeasuredPass
from perfscope.errors import UsageError
from perfscope.schedules.catalog import Schedule, make_plan
from perfscope.schedules.operations import Block, Op, PassKind, PassOrder
from perfscope.schedules.zero_bubble import dualpipev_order

#: Names of schedules that are not in the catalog; the last splits the backward pass.
DUALPIPEV, CUSTOM, CUSTOM_ZERO_BUBBLE = "dualpipev", "custom", "zero-bubble"
_PASS = re.compile(r"([FBIW])(\d+)\.(\d+)")


class RecognisedSchedule(Struct, frozen=True):
    """The schedule that a step followed: its order as it ran, one operation a block, and virtual stages on a device."""

    name: str
    chunks: int
    plan: PassOrder


def recognise_order(orders: Sequence[Sequence[str]]) -> RecognisedSchedule | None:
    """The schedule of passes that are written as ``F3.1``: kind, micro-batch, virtual stage; None where some miss."""
    matches = [[_PASS.fullmatch(text) for text in order] for order in orders]
    ops = [[Op(PassKind(one[1]), int(one[2]), int(one[3])) for one in order if one] for order in matches]
    return _recognise_plan(ops) if all(orders) and all(map(all, matches)) else None


def recognise_passes(stages: Sequence[Sequence[MeasuredPass]]) -> RecognisedSchedule | None:
    """The schedule of a step, from the passes of each stage; None where none fits."""
    ops = [
        [
            Op(measured.kind, measured.microbatch, measured.stage)
            for measured in passes
            if measured.microbatch is not None and measured.stage is not None
        ]
        for passes in stages
    ]
    if [*map(len, ops)] == [*map(len, stages)]:
        return _recognise_plan(ops)
    patterns = [[measured.kind for measured in passes] for passes in stages]
    forwards = patterns[0].count(PassKind.FORWARD)
    for schedule, chunks in _list_candidates(forwards):
        plan = _try_plan(schedule, len(stages), forwards // chunks, chunks)
        if plan and [[op.kind for op in _flat(order)] for order in plan.orders] == patterns:
            return RecognisedSchedule(str(schedule), chunks, plan)
    return None


def _flat(order: Sequence[Block]) -> list[Op]:
    return [op for block in order for op in block]


def _list_candidates(forwards: int) -> Iterator[tuple[Schedule, int]]:
    yield Schedule.ONE_F_ONE_B, 1
    yield Schedule.GPIPE, 1
    for chunks in range(2, forwards + 1):
        if forwards % chunks == 0:
            yield Schedule.INTERLEAVED, chunks


def _try_plan(schedule: Schedule, devices: int, microbatches: int, chunks: int) -> PassOrder | None:
    try:
        return make_plan(schedule, devices, microbatches, chunks) if microbatches else None
    except UsageError:
        return None


def _recognise_plan(orders: Sequence[Sequence[Op]]) -> RecognisedSchedule | None:
    ops = Counter(op for order in orders for op in order)
    stages, microbatches = max(op.stage for op in ops) + 1, max(op.microbatch for op in ops) + 1
    kinds = Counter(op.kind for op in ops)
    gradients = {(op.microbatch, op.stage) for op in ops if op.kind in (PassKind.BACKWARD, PassKind.INPUT_GRADIENT)}
    is_complete = (  # every micro-batch passed every virtual stage forward and back, once
        max(ops.values()) == 1
        and kinds[PassKind.FORWARD] == stages * microbatches == len(gradients)
        and kinds[PassKind.BACKWARD] + kinds[PassKind.INPUT_GRADIENT] == len(gradients)
        and kinds[PassKind.WEIGHT_GRADIENT] == kinds[PassKind.INPUT_GRADIENT]
    )
    if not is_complete or stages % len(orders):
        return None
    plan = PassOrder(microbatches, stages, tuple(tuple((op,) for op in order) for order in orders))
    chunks = stages // len(orders)
    named = next((str(schedule) for schedule in Schedule if _follows(plan, schedule, chunks)), None)
    if named is None:
        unnamed = CUSTOM_ZERO_BUBBLE if kinds[PassKind.WEIGHT_GRADIENT] else CUSTOM
        named = DUALPIPEV if _is_dualpipev(plan) else unnamed
    return RecognisedSchedule(named, chunks, plan)


def _follows(plan: PassOrder, schedule: Schedule, chunks: int) -> bool:
    published = _try_plan(schedule, plan.devices, plan.microbatches, chunks if schedule is Schedule.INTERLEAVED else 1)
    return (
        published is not None
        and published.stages == plan.stages
        and [*map(_join_gradients, plan.orders)] == [*map(_join_gradients, published.orders)]
    )


def _is_dualpipev(plan: PassOrder) -> bool:
    if plan.stages != 2 * plan.devices or plan.microbatches < plan.stages:
        return False
    return all(
        [
            op._replace(kind=PassKind.INPUT_GRADIENT) if op.kind is PassKind.BACKWARD else op
            for op in _flat(order)
            if op.kind is not PassKind.WEIGHT_GRADIENT
        ]
        == list(dualpipev_order(device, plan.devices, plan.microbatches))
        for device, order in enumerate(plan.orders)
    )


def _join_gradients(order: Sequence[Block]) -> list[Op]:
    joined: list[Op] = []
    for op in _flat(order):
        if op.kind is PassKind.WEIGHT_GRADIENT and joined[-1:] == [op._replace(kind=PassKind.INPUT_GRADIENT)]:
            joined[-1] = op._replace(kind=PassKind.BACKWARD)
        else:
            joined.append(op)
    return joined
