"""The order in which each device of a pipeline works: GPipe, 1F1B and interleaved 1F1B.

A model is cut into ``p * v`` virtual stages. A device runs one block of work after the other in a fixed order, each as
soon as its inputs have arrived; the order is the schedule. Times play no part here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from perfscope.errors import UsageError


class Schedule(StrEnum):
    """The schedules that are known by name."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZBV = "zbv"
    DUALPIPE = "dualpipe"


#: Schedules that run the weight gradient apart from the gradient of the input.
SPLITTING = frozenset({Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZBV, Schedule.DUALPIPE})


class Kind(StrEnum):
    """What an operation does with a micro-batch.

    BACKWARD is the whole backward pass; INPUT and WEIGHT are its two parts where a schedule splits it.
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Op(NamedTuple):
    """One operation.

    Attributes:
        kind: What it does.
        microbatch: Which micro-batch, from 0.
        stage: The virtual stage in that micro-batch's own way through the model, from 0 to p * v - 1.
    """

    kind: Kind
    microbatch: int
    stage: int


#: Operations that start together and end together; one operation but for DualPipe's overlapped pairs.
Block: TypeAlias = tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole order of work of one training step.

    Attributes:
        microbatches: Micro-batches in the step, m.
        stages: Virtual stages that a micro-batch passes, p * v.
        orders: For each of the p devices its blocks in order.
    """

    microbatches: int
    stages: int
    orders: tuple[tuple[Block, ...], ...]

    @property
    def devices(self) -> int:
        """Devices of the pipeline, p."""
        return len(self.orders)


def plan(schedule: Schedule, devices: int, microbatches: int, chunks: int = 1) -> Plan:
    """Order the work of a named schedule.

    Args:
        schedule: Which one.
        devices: Pipeline stages, p.
        microbatches: Micro-batches of one pipeline in a step, m.
        chunks: Virtual stages on a device, v; only the interleaved schedule takes more than one (ZB-V has two always).

    Raises:
        UsageError: The schedule does not exist for these numbers.
    """
    check(schedule, devices, microbatches, chunks)
    from perfscope.schedules import zero_bubble

    make: Callable[[], Plan] = {
        Schedule.GPIPE: lambda: _linear(gpipe_order, devices, microbatches),
        Schedule.ONE_F_ONE_B: lambda: _linear(one_f_one_b_order, devices, microbatches),
        Schedule.INTERLEAVED: lambda: interleaved(devices, microbatches, chunks),
        Schedule.ZB_H1: lambda: _linear(zero_bubble.h1_order, devices, microbatches),
        Schedule.ZB_H2: lambda: _linear(zero_bubble.h2_order, devices, microbatches),
        Schedule.ZBV: lambda: zero_bubble.zbv(devices, microbatches),
        Schedule.DUALPIPE: lambda: zero_bubble.dualpipe(devices, microbatches),
    }[schedule]
    return make()


def check(schedule: Schedule, devices: int, microbatches: int, chunks: int = 1) -> None:
    """Say why a schedule does not exist for these numbers.

    Raises:
        UsageError: It does not.
    """
    if chunks > 1 and schedule is not Schedule.INTERLEAVED:
        raise UsageError(
            f"the schedule {schedule} has no virtual stages to choose",
            hint="--virtual-stages is for --schedule interleaved",
        )
    if schedule is Schedule.INTERLEAVED and chunks > 1 and microbatches < devices:
        raise UsageError(
            f"the interleaved schedule needs at least as many micro-batches as stages, not {microbatches} for {devices}"
        )
    if schedule is Schedule.DUALPIPE and (devices % 2 or microbatches % 2 or microbatches < 2 * devices):
        raise UsageError(
            f"DualPipe does not exist for {devices} stages and {microbatches} micro-batches",
            hint="it needs an even number of stages and an even number of micro-batches, at least twice the stages",
        )


def chunks_of(schedule: Schedule, chunks: int) -> int:
    """Parts that a device's share of the model is cut into: ZB-V cuts it in two whatever is asked."""
    return 2 if schedule is Schedule.ZBV else chunks


def single(kind: Kind, microbatch: int, stage: int) -> Block:
    """A block of one operation."""
    return (Op(kind, microbatch, stage),)


def gpipe_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:  # noqa: ARG001 - orders share a form
    """All forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965)."""
    yield from (single(Kind.FORWARD, index, device) for index in range(microbatches))
    yield from (single(Kind.BACKWARD, index, device) for index in range(microbatches))


def one_f_one_b_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:
    """Forward passes until the first gradient can return, then one backward for each forward (arXiv 1806.03377)."""
    warmup = min(devices - 1 - device, microbatches)
    yield from (single(Kind.FORWARD, index, device) for index in range(warmup))
    for index in range(microbatches):
        if warmup + index < microbatches:
            yield single(Kind.FORWARD, warmup + index, device)
        yield single(Kind.BACKWARD, index, device)


def interleaved(devices: int, microbatches: int, chunks: int) -> Plan:
    """1F1B over v chunks a device, in groups of at least p micro-batches (Narayanan et al. 2021, arXiv 2104.04473).

    Where m is no multiple of p the groups are as equal as they can be, as in torch.distributed.pipelining.
    """
    if chunks == 1:
        return _linear(one_f_one_b_order, devices, microbatches)
    groups = _groups(devices, microbatches)
    forwards = [(one, chunk) for group in groups for chunk in range(chunks) for one in group]
    backwards = [(one, chunk) for group in groups for chunk in range(chunks - 1, -1, -1) for one in group]

    def order(device: int) -> Iterator[Block]:
        warmup = min(2 * (devices - device - 1) + (chunks - 1) * len(groups[0]), len(forwards))
        for index in range(warmup + len(backwards)):
            if index < len(forwards):
                microbatch, chunk = forwards[index]
                yield single(Kind.FORWARD, microbatch, chunk * devices + device)
            if index >= warmup:
                microbatch, chunk = backwards[index - warmup]
                yield single(Kind.BACKWARD, microbatch, chunk * devices + device)

    return Plan(microbatches, devices * chunks, tuple(tuple(order(device)) for device in range(devices)))


def _groups(devices: int, microbatches: int) -> list[range]:
    """As many groups as hold p micro-batches each, the larger ones first."""
    count = max(1, microbatches // devices)
    size, larger = divmod(microbatches, count)
    starts = [index * size + min(index, larger) for index in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def _linear(order: Callable[[int, int, int], Iterable[Block]], devices: int, microbatches: int) -> Plan:
    """One chunk a device: virtual stage = device."""
    return Plan(microbatches, devices, tuple(tuple(order(device, devices, microbatches)) for device in range(devices)))
