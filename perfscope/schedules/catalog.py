"""The pipeline schedules that have a name: which exist for which numbers, and the plan of each."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise

from perfscope.errors import UsageError
from perfscope.schedules.operations import Block, DeviceOrder, PassKind, PassOrder, linear_plan, single_block
from perfscope.schedules.zero_bubble import dualpipe_plan, zb_h1_order, zb_h2_order, zbv_plan


def gpipe_order(device: int, _devices: int, microbatches: int) -> Iterator[Block]:
    """All forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965)."""
    yield from (single_block(PassKind.FORWARD, index, device) for index in range(microbatches))
    yield from (single_block(PassKind.BACKWARD, index, device) for index in range(microbatches))


def one_f_one_b_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:
    """Forward passes until the first gradient can return, then one backward for each forward (arXiv 1806.03377)."""
    warmup = min(devices - 1 - device, microbatches)
    yield from (single_block(PassKind.FORWARD, index, device) for index in range(warmup))
    for index in range(microbatches):
        if warmup + index < microbatches:
            yield single_block(PassKind.FORWARD, warmup + index, device)
        yield single_block(PassKind.BACKWARD, index, device)


def interleaved_plan(devices: int, microbatches: int, chunks: int) -> PassOrder:
    """1F1B over v virtual stages a device, in groups of at least p micro-batches (Narayanan et al., arXiv 2104.04473).

    Where m is not a multiple of p the groups are as equal as they can be, as in torch.distributed.pipelining.
    """
    if chunks == 1:
        return linear_plan(one_f_one_b_order, devices, microbatches)
    groups = _group_microbatches(devices, microbatches)
    forwards = [(microbatch, chunk) for group in groups for chunk in range(chunks) for microbatch in group]
    backwards = [(microbatch, chunk) for group in groups for chunk in range(chunks - 1, -1, -1) for microbatch in group]

    def order(device: int) -> Iterator[Block]:
        warmup = min(2 * (devices - device - 1) + (chunks - 1) * len(groups[0]), len(forwards))
        for index in range(warmup + len(backwards)):
            if index < len(forwards):
                microbatch, chunk = forwards[index]
                yield single_block(PassKind.FORWARD, microbatch, chunk * devices + device)
            if index >= warmup:
                microbatch, chunk = backwards[index - warmup]
                yield single_block(PassKind.BACKWARD, microbatch, chunk * devices + device)

    return PassOrder(microbatches, devices * chunks, tuple(tuple(order(device)) for device in range(devices)))


def _group_microbatches(devices: int, microbatches: int) -> list[range]:
    count = max(1, microbatches // devices)
    size, larger = divmod(microbatches, count)
    starts = [index * size + min(index, larger) for index in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


class Schedule(StrEnum):
    """The pipeline schedules that are planned here."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZBV = "zbv"
    DUALPIPE = "dualpipe"


#: Orders of the schedules with one virtual stage on each device.
_LINEAR_ORDERS: dict[Schedule, DeviceOrder] = {
    Schedule.GPIPE: gpipe_order,
    Schedule.ONE_F_ONE_B: one_f_one_b_order,
    Schedule.ZB_H1: zb_h1_order,
    Schedule.ZB_H2: zb_h2_order,
}


def make_plan(schedule: Schedule, devices: int, microbatches: int, chunks: int = 1) -> PassOrder:
    """Plan one training step of p devices and m micro-batches; UsageError where the schedule does not exist for them.

    Only the interleaved schedule takes more than one virtual stage on a device (``chunks``); ZB-V always has two.
    """
    require_possible(schedule, devices, microbatches, chunks)
    if schedule in _LINEAR_ORDERS:
        return linear_plan(_LINEAR_ORDERS[schedule], devices, microbatches)
    if schedule is Schedule.INTERLEAVED:
        return interleaved_plan(devices, microbatches, chunks)
    return zbv_plan(devices, microbatches) if schedule is Schedule.ZBV else dualpipe_plan(devices, microbatches)


def require_possible(schedule: Schedule, devices: int, microbatches: int, chunks: int = 1) -> None:
    """Say why a schedule does not exist for these numbers (UsageError)."""
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


def chunks_per_device(schedule: Schedule, chunks: int) -> int:
    """Virtual stages on a device: ZB-V has two, whatever number was chosen."""
    return 2 if schedule is Schedule.ZBV else chunks
