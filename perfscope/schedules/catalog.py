"""The pipeline schedules that have a name: which exist for which numbers, and the plan of each."""

from __future__ import annotations

from enum import StrEnum

from perfscope.errors import UsageError
from perfscope.schedules.one_f_one_b import gpipe_order, interleaved_plan, one_f_one_b_order
from perfscope.schedules.operations import DeviceOrder, Plan, linear_plan
from perfscope.schedules.zero_bubble import dualpipe_plan, zb_h1_order, zb_h2_order, zbv_plan


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


def make_plan(schedule: Schedule, devices: int, microbatches: int, chunks: int = 1) -> Plan:
    """Plan one training step.

    Args:
        schedule: The schedule's name.
        devices: Pipeline stages, p.
        microbatches: Micro-batches of one pipeline in a step, m.
        chunks: Virtual stages on a device, v; only the interleaved schedule takes more than one (ZB-V always has two).

    Raises:
        UsageError: The schedule does not exist for these numbers.
    """
    require_possible(schedule, devices, microbatches, chunks)
    if schedule in _LINEAR_ORDERS:
        return linear_plan(_LINEAR_ORDERS[schedule], devices, microbatches)
    if schedule is Schedule.INTERLEAVED:
        return interleaved_plan(devices, microbatches, chunks)
    return zbv_plan(devices, microbatches) if schedule is Schedule.ZBV else dualpipe_plan(devices, microbatches)


def require_possible(schedule: Schedule, devices: int, microbatches: int, chunks: int = 1) -> None:
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


def chunks_per_device(schedule: Schedule, chunks: int) -> int:
    """Virtual stages on a device: ZB-V has two, whatever number was chosen."""
    return 2 if schedule is Schedule.ZBV else chunks
