"""When each pass of a pipeline runs: an event simulation of a plan, with the time of every pass.

A block starts when its device is free and its inputs have arrived. A forward pass needs the one of the previous stage,
a backward pass its own forward pass and the backward pass of the next stage. A weight gradient needs its input
gradient. Times are integers in a common unit, so that every sum is exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from perfscope.schedules.operations import Block, Op, PassKind, PassOrder


class Deadlock(ValueError):
    """The order can never run: devices wait for each other."""


class Timing(ABC):
    """Times of passes and transfers; by default transfers take no time."""

    @abstractmethod
    def time_of(self, op: Op) -> int:
        """Time of a pass."""

    def transfer_time(self, _op: Op, _sender: int) -> int:
        """Time from the end of a pass on its device until its result has arrived on the receiving device."""
        return 0

    def send_blocking_time(self, _op: Op) -> int:
        """Time for which sending the result of a pass keeps its own device from computing."""
        return 0


@dataclass(frozen=True, slots=True)
class UniformTiming(Timing):
    """Micro-batches that all take the same time: by virtual stage, of transfers by sending device."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    transfer: tuple[int, ...]

    def time_of(self, op: Op) -> int:
        """Time of a pass."""
        if op.kind is PassKind.FORWARD:
            return self.forward[op.stage]
        if op.kind is PassKind.BACKWARD:
            return self.backward[op.stage]
        if op.kind is PassKind.WEIGHT_GRADIENT:
            return self.weight[op.stage]
        return self.backward[op.stage] - self.weight[op.stage]

    def transfer_time(self, _op: Op, sender: int) -> int:
        """Transfer time of the sending device."""
        return self.transfer[sender]


class BlockSpan(NamedTuple):
    """One block as it ran: its operations, start and end."""

    block: Block
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PassTimeline:
    """A simulated step: for each device its blocks as they ran, in order."""

    devices: tuple[tuple[BlockSpan, ...], ...]

    @property
    def section(self) -> int:
        """From the first forward to the end of the last backward on any device: T."""
        return max((spans[-1].end for spans in self.devices if spans), default=0)

    @property
    def period(self) -> int:
        """The longest time of one device from its first to its last pass: the interval at which steps can begin.

        It is the section for schedules that begin and end on one device (GPipe, 1F1B, interleaved, DualPipe).
        Zero-bubble papers count the bubble over it, because a device that is done begins its next step.
        """
        return max((spans[-1].end - spans[0].start for spans in self.devices if spans), default=0)

    def busy(self, device: int) -> int:
        """Time for which a device computes."""
        return sum(span.end - span.start for span in self.devices[device])

    @property
    def useful(self) -> int:
        """Time of computation over all devices."""
        return sum(self.busy(device) for device in range(len(self.devices)))

    @property
    def fraction_of_total(self) -> Fraction:
        """Idle time over p x T."""
        total = len(self.devices) * self.section
        return 1 - Fraction(self.useful, total) if total else Fraction(0)

    @property
    def fraction_of_period(self) -> Fraction:
        """Idle time over p x the period."""
        total = len(self.devices) * self.period
        return 1 - Fraction(self.useful, total) if total else Fraction(0)


def to_fraction_of_ideal(fraction_of_total: Fraction) -> Fraction:
    """Convert idle time over the total time into the same idle time over the useful time.

    >>> to_fraction_of_ideal(Fraction(3, 11))
    Fraction(3, 8)
    """
    return fraction_of_total / (1 - fraction_of_total)


def simulate(plan: PassOrder, timing: Timing) -> PassTimeline:
    """Run a plan; Deadlock where the order can never run to its end."""
    run = _Simulation(plan, timing)
    ready = deque(range(plan.devices))
    while ready:
        ready.extend(run.advance(ready.popleft()))
    for device, spans in enumerate(run.spans):
        if len(spans) < len(plan.orders[device]):
            stuck = plan.orders[device][len(spans)]
            raise Deadlock(f"device {device} waits forever before {_describe(stuck)}")
    return PassTimeline(tuple(tuple(spans) for spans in run.spans))


def peak_in_flight(order: Sequence[Block]) -> int:
    """The most micro-batches whose activations a device stores at once, virtual stages counted one by one."""
    in_flight = peak = 0
    for block in order:
        in_flight += sum(op.kind is PassKind.FORWARD for op in block)
        peak = max(peak, in_flight)
        in_flight -= sum(op.kind in (PassKind.BACKWARD, PassKind.WEIGHT_GRADIENT) for op in block)
    return peak


def _describe(block: Block) -> str:
    return " with ".join(f"{op.kind}{op.microbatch} of stage {op.stage}" for op in block)


class _Simulation:
    """The state of a simulation: how far each device is, and when and where each result was produced.

    The result of a pass has a number: twice its micro-batch and stage, plus 1 for a gradient of the input. Integers in
    place of operations make a simulation three times as fast.
    """

    def __init__(self, plan: PassOrder, timing: Timing) -> None:
        self.plan = plan
        self.timing = timing
        self.spans: list[list[BlockSpan]] = [[] for _ in plan.orders]
        self.free_at = [0] * plan.devices
        results = 2 * plan.microbatches * plan.stages
        self.end: list[int | None] = [None] * results
        self.arrival = [0] * results
        self.producer = [0] * results
        self.waiting_devices: defaultdict[int, list[int]] = defaultdict(list)

    def advance(self, device: int) -> list[int]:
        woken: list[int] = []
        order, spans = self.plan.orders[device], self.spans[device]
        while len(spans) < len(order):
            block = order[len(spans)]
            start = self._find_start(block, device)
            if start is None:
                break
            end = start + sum([self.timing.time_of(op) for op in block])
            spans.append(BlockSpan(block, start, end))
            self.free_at[device] = end
            for op in block:
                if op.kind is not PassKind.WEIGHT_GRADIENT:
                    woken.extend(self._add_result(op, device, end))
        return woken

    def _add_result(self, op: Op, device: int, end: int) -> list[int]:
        result = 2 * (op.microbatch * self.plan.stages + op.stage) + (op.kind is not PassKind.FORWARD)
        self.end[result] = end
        self.arrival[result] = end + self.timing.transfer_time(op, device)
        self.producer[result] = device
        self.free_at[device] = max(self.free_at[device], end + self.timing.send_blocking_time(op))
        return self.waiting_devices.pop(result, [])

    def _find_start(self, block: Block, device: int) -> int | None:
        start = self.free_at[device]
        for op in block:
            for result in self._list_inputs(op):
                end = self.end[result]
                if end is None:
                    self.waiting_devices[result].append(device)
                    return None
                start = max(start, end if self.producer[result] == device else self.arrival[result])
        return start

    def _list_inputs(self, op: Op) -> tuple[int, ...]:
        forward = 2 * (op.microbatch * self.plan.stages + op.stage)
        if op.kind is PassKind.FORWARD:
            return (forward - 2,) if op.stage else ()
        if op.kind is PassKind.WEIGHT_GRADIENT:
            return (forward + 1,)
        return (forward,) if op.stage == self.plan.stages - 1 else (forward, forward + 3)
