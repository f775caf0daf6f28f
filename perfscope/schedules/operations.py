"""The vocabulary of a pipeline schedule: passes of micro-batches, and the order in which each device runs them.

A model is cut into ``p * v`` virtual stages on p devices. A device runs one block after the other in a fixed order,
each as soon as its inputs have arrived; that order is the schedule. Times play no part here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from msgspec import Struct


class PassKind(StrEnum):
    """BACKWARD is a whole backward pass; INPUT_GRADIENT and WEIGHT_GRADIENT are its two parts, where it is split."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


class Op(NamedTuple):
    """One pass of one micro-batch through one virtual stage, which counts from 0 along the micro-batch's own way."""

    kind: PassKind
    microbatch: int
    stage: int


#: Operations that start together and end together; a single one except for DualPipe's overlapped pairs.
Block: TypeAlias = tuple[Op, ...]
#: Makes a device's order from the device, the number of devices and the number of micro-batches.
DeviceOrder: TypeAlias = Callable[[int, int, int], Iterable[Block]]


class PassOrder(Struct, frozen=True):
    """The order of all passes of one training step: for each of the p devices its blocks.

    ``stages`` are the p * v virtual stages that a micro-batch passes.
    """

    microbatches: int
    stages: int
    orders: tuple[tuple[Block, ...], ...]

    @property
    def devices(self) -> int:
        """Devices of the pipeline, p."""
        return len(self.orders)


def single_block(kind: PassKind, microbatch: int, stage: int) -> Block:
    """A block of one operation."""
    return (Op(kind, microbatch, stage),)


def linear_plan(order: DeviceOrder, devices: int, microbatches: int) -> PassOrder:
    """A plan with one virtual stage on each device."""
    return PassOrder(
        microbatches, devices, tuple(tuple(order(device, devices, microbatches)) for device in range(devices))
    )
