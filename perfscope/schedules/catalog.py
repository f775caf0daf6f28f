"""The pipeline schedules that have a name: which exist for which numbers, the plan of each, and its bubble by formula.

Formulas assume equal stages and no transfer time. Two denominators are in use. *Of the total* is idle time over the
whole step. *Of the ideal* is idle time over useful time, (p - 1) / m for 1F1B. They differ by a factor of 2 where m is
about p. F, B and W are the times of one micro-batch on one stage: forward pass, gradient of the input, weight gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise

from msgspec import Struct

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


class StageTimes(Struct, frozen=True):
    """Times of one micro-batch on each of p equal stages: F, B and W."""

    forward: Fraction
    input_gradient: Fraction
    weight_gradient: Fraction

    @property
    def total(self) -> Fraction:
        """F + B + W."""
        return self.forward + self.input_gradient + self.weight_gradient


class ClosedForm(Struct, frozen=True):
    """The formula for the idle time of a stage, evaluated in the unit of the stage times; absent with a reason."""

    formula: str
    source: str
    useful: Fraction
    bubble: Fraction | None
    reason: str | None = None

    @property
    def fraction_of_total(self) -> Fraction | None:
        """Idle over idle and useful."""
        return None if self.bubble is None else self.bubble / (self.bubble + self.useful)

    @property
    def fraction_of_ideal(self) -> Fraction | None:
        """Idle over useful."""
        return None if self.bubble is None else self.bubble / self.useful


_NARAYANAN, _QI = "Narayanan et al. 2021, arXiv 2104.04473, section", "Qi et al. 2024, arXiv"
#: The formula of each schedule, and its source.
_FORMS = {
    Schedule.GPIPE: ("(p-1)(F+B+W)", "Huang et al. 2019, arXiv 1811.06965"),
    Schedule.ONE_F_ONE_B: ("(p-1)(F+B+W)", f"{_NARAYANAN} 2.2.1"),
    Schedule.INTERLEAVED: ("(p-1)(F+B+W)/v", f"{_NARAYANAN} 2.2.2"),
    Schedule.ZB_H1: ("(p-1)(F+B-W)", f"{_QI} 2401.10241, table 2"),
    Schedule.ZB_H2: ("(p-1)(F+B-2W)", f"{_QI} 2401.10241, table 2"),
    Schedule.ZBV: ("0 at F=B=W", f"{_QI} 2405.15362"),
    Schedule.DUALPIPE: (
        "(p/2-1)(F&B+Bfull-3W), F&B=F+B+W, Bfull=B+W",
        "DeepSeek-AI 2024, arXiv 2412.19437, table 2",
    ),
}


def closed_form(schedule: Schedule, devices: int, microbatches: int, times: StageTimes, chunks: int = 1) -> ClosedForm:
    """The idle time of a stage by the schedule's formula, with ``chunks`` virtual stages on a device."""
    reason = _find_limitation(schedule, devices, microbatches, times, chunks)
    formula, source = _FORMS[schedule]
    return ClosedForm(
        formula=formula,
        source=source,
        useful=microbatches * times.total,
        bubble=_bubble(schedule, devices, times, chunks) if reason is None else None,
        reason=reason,
    )


def _bubble(schedule: Schedule, devices: int, times: StageTimes, chunks: int) -> Fraction:
    forward, inputs, weights = times.forward, times.input_gradient, times.weight_gradient
    if schedule is Schedule.ZB_H1:
        return (devices - 1) * (forward + inputs - weights)
    if schedule is Schedule.ZB_H2:
        return (devices - 1) * (forward + inputs - 2 * weights)
    if schedule is Schedule.ZBV:
        return Fraction(0)
    if schedule is Schedule.DUALPIPE:
        return (Fraction(devices, 2) - 1) * (times.total + inputs + weights - 3 * weights)
    return (devices - 1) * times.total / chunks


def _find_limitation(schedule: Schedule, devices: int, microbatches: int, times: StageTimes, chunks: int) -> str | None:
    if schedule is Schedule.INTERLEAVED and chunks > 1 and microbatches % devices:
        return f"it needs micro-batches that are a multiple of the stages, not {microbatches} and {devices}"
    if schedule is Schedule.ZBV and not times.forward == times.input_gradient == times.weight_gradient:
        return "it is published for F = B = W only"
    fewest = {Schedule.ZB_H1: devices, Schedule.ZB_H2: 2 * devices - 1, Schedule.ZBV: 2 * devices - 1}
    if microbatches < fewest.get(schedule, 1):
        return f"it needs at least {fewest[schedule]} micro-batches to fill the pipeline"
    if _bubble(schedule, devices, times, 1) < 0:
        return "it is negative: the weight gradient takes too long"
    return None
