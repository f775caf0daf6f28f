"""Recognises the schedule of a step: its name, and the micro-batch and virtual stage of each pass.

Marked passes name their micro-batch and stage, so that their order is the plan. Without marks the pattern of forward
and backward passes on each stage is compared with those of the schedules that do not split the backward pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfscope.analyzers.pipelines.rank_passes import MeasuredPass
from perfscope.errors import UsageError
from perfscope.schedules.catalog import Schedule, make_plan
from perfscope.schedules.operations import Block, Op, PassKind, Plan
from perfscope.schedules.zero_bubble import dualpipev_order

#: Names of schedules that are not in the catalog; the last splits the backward pass.
DUALPIPEV, CUSTOM, CUSTOM_ZERO_BUBBLE = "dualpipev", "custom", "zero-bubble"
_MOST_CHUNKS = 16
_INPUT_GRADIENT = {PassKind.BACKWARD: PassKind.INPUT_GRADIENT}
_PASS = re.compile(r"([FBIW])(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class RecognisedSchedule:
    """The schedule that a step followed.

    Attributes:
        schedule: Its name; absent where marks show an order that is not in the catalog.
        chunks: Virtual stages on a device.
        plan: The order as it ran, one operation a block, as long as the passes on each stage.
    """

    schedule: Schedule | None
    chunks: int
    plan: Plan

    @property
    def name(self) -> str:
        """The schedule's name; DUALPIPEV, CUSTOM or CUSTOM_ZERO_BUBBLE where it is not in the catalog."""
        if self.schedule is not None:
            return str(self.schedule)
        if _is_dualpipev(self.plan):
            return DUALPIPEV
        splits = any(
            op.kind is PassKind.WEIGHT_GRADIENT for order in self.plan.orders for block in order for op in block
        )
        return CUSTOM_ZERO_BUBBLE if splits else CUSTOM


def recognise_order(orders: Sequence[Sequence[str]]) -> RecognisedSchedule | None:
    """Recognise the schedule of passes that are written as ``F3.1``: kind, micro-batch, virtual stage.

    Returns:
        None where passes of a micro-batch are missing.
    """
    matches = [[_PASS.fullmatch(text) for text in order] for order in orders]
    if not all(matches) or any(match is None for order in matches for match in order):
        return None
    return _recognise_plan(
        tuple(
            tuple((Op(PassKind(match[1]), int(match[2]), int(match[3])),) for match in order if match is not None)
            for order in matches
        )
    )


def recognise_passes(stages: Sequence[Sequence[MeasuredPass] | None]) -> RecognisedSchedule | None:
    """Recognise the schedule of a step from the passes of each stage, None for a stage without a trace.

    Returns:
        None where no schedule fits.
    """
    traced = [passes for passes in stages if passes is not None]
    marked = all(
        measured.stage is not None and measured.microbatch is not None for passes in traced for measured in passes
    )
    return _recognise_marked(traced) if marked and len(traced) == len(stages) else _recognise_pattern(stages)


def _recognise_pattern(stages: Sequence[Sequence[MeasuredPass] | None]) -> RecognisedSchedule | None:
    patterns = {
        device: [measured.kind for measured in passes] for device, passes in enumerate(stages) if passes is not None
    }
    forwards = next(iter(patterns.values())).count(PassKind.FORWARD)
    for schedule, chunks in _list_candidates(forwards):
        plan = _try_plan(schedule, len(stages), forwards // chunks, chunks)
        if plan and all(_list_kinds(plan.orders[device]) == pattern for device, pattern in patterns.items()):
            return RecognisedSchedule(schedule, chunks, plan)
    return None


def _list_kinds(order: Sequence[Block]) -> list[PassKind]:
    return [op.kind for block in order for op in block]


def _list_candidates(forwards: int) -> Iterator[tuple[Schedule, int]]:
    yield Schedule.ONE_F_ONE_B, 1
    yield Schedule.GPIPE, 1
    for chunks in range(2, _MOST_CHUNKS + 1):
        if forwards % chunks == 0:
            yield Schedule.INTERLEAVED, chunks


def _try_plan(schedule: Schedule, devices: int, microbatches: int, chunks: int) -> Plan | None:
    if microbatches == 0:
        return None
    try:
        return make_plan(schedule, devices, microbatches, chunks)
    except UsageError:
        return None


def _recognise_marked(stages: Sequence[Sequence[MeasuredPass]]) -> RecognisedSchedule | None:
    return _recognise_plan(
        tuple(
            tuple((Op(measured.kind, measured.microbatch or 0, measured.stage or 0),) for measured in passes)
            for passes in stages
        )
    )


def _recognise_plan(orders: tuple[tuple[Block, ...], ...]) -> RecognisedSchedule | None:
    """The schedule of orders that name every pass."""
    ops = [op for order in orders for (op,) in order]
    stages, microbatches = max(op.stage for op in ops) + 1, max(op.microbatch for op in ops) + 1
    if not _is_complete(ops, stages * microbatches) or stages % len(orders):
        return None
    plan = Plan(microbatches, stages, orders)
    chunks = stages // len(orders)
    schedule = next((schedule for schedule in Schedule if _follows(plan, schedule, chunks)), None)
    return RecognisedSchedule(schedule, chunks, plan)


def _is_complete(ops: Iterable[Op], expected: int) -> bool:
    """Whether every micro-batch passed every virtual stage forward and back, once."""
    counts = Counter(ops)
    kinds = Counter(op.kind for op in counts)
    backward = {(op.microbatch, op.stage) for op in counts if op.kind in (PassKind.BACKWARD, PassKind.INPUT_GRADIENT)}
    return (
        max(counts.values()) == 1
        and kinds[PassKind.FORWARD] == expected
        and kinds[PassKind.BACKWARD] + kinds[PassKind.INPUT_GRADIENT] == expected == len(backward)
        and kinds[PassKind.WEIGHT_GRADIENT] == kinds[PassKind.INPUT_GRADIENT]
    )


def _follows(plan: Plan, schedule: Schedule, chunks: int) -> bool:
    published = _try_plan(schedule, plan.devices, plan.microbatches, chunks if schedule is Schedule.INTERLEAVED else 1)
    if published is None or published.stages != plan.stages:
        return False
    return all(
        _join_gradients(order) == _join_gradients(published_order)
        for order, published_order in zip(plan.orders, published.orders, strict=True)
    )


def _is_dualpipev(plan: Plan) -> bool:
    """Whether forward and backward passes follow DualPipeV, wherever the weight gradients are."""
    if plan.stages != 2 * plan.devices or plan.microbatches < plan.stages:
        return False
    return all(
        [
            Op(_INPUT_GRADIENT.get(op.kind, op.kind), op.microbatch, op.stage)
            for block in order
            for op in block
            if op.kind is not PassKind.WEIGHT_GRADIENT
        ]
        == list(dualpipev_order(device, plan.devices, plan.microbatches))
        for device, order in enumerate(plan.orders)
    )


def _join_gradients(order: Sequence[Block]) -> list[Op]:
    """An order in which an input gradient and its weight gradient right behind it are one backward pass."""
    joined: list[Op] = []
    for op in (op for block in order for op in block):
        previous = joined[-1] if joined else None
        if op.kind is PassKind.WEIGHT_GRADIENT and previous == Op(PassKind.INPUT_GRADIENT, op.microbatch, op.stage):
            joined[-1] = Op(PassKind.BACKWARD, op.microbatch, op.stage)
        else:
            joined.append(op)
    return joined
