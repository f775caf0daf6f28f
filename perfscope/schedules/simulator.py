"""When each piece of work of a pipeline runs: an event simulation of a plan with given times.

A device takes its blocks in the plan's order. A block starts when the device is free and its inputs have arrived: a
forward needs the forward of the stage before, a backward its own forward and the backward of the stage after, a
weight gradient its own input gradient. What crosses devices arrives its transfer time later.
Times are integers in any one unit, so that every sum is exact.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

from perfscope.schedules.orders import Block, Kind, Op, Plan


class Deadlock(ValueError):
    """The order can never run: devices wait for each other."""


class Timing(Protocol):
    """How long everything takes; ``Costs`` is the simple case in which micro-batches are alike."""

    def of(self, op: Op) -> int:
        """Time of one operation."""
        ...

    def transfer_of(self, op: Op, sender: int) -> int:
        """Time for which what an operation made is under way from the device that made it to another one."""
        ...

    def held_by(self, op: Op) -> int:
        """Time for which sending what an operation made keeps its own device from working on."""
        ...


@dataclass(frozen=True, slots=True)
class Costs:
    """What one micro-batch costs; every one costs the same, and sending keeps nobody from working.

    Attributes:
        forward: Time of the forward pass on each virtual stage.
        backward: Time of the backward pass on each virtual stage, the weight gradient included.
        weight: The part of it that is the weight gradient.
        transfer: Time for which what each device sends is under way, by sending device.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    transfer: tuple[int, ...]

    def of(self, op: Op) -> int:
        """Time of one operation."""
        if op.kind is Kind.FORWARD:
            return self.forward[op.stage]
        if op.kind is Kind.BACKWARD:
            return self.backward[op.stage]
        if op.kind is Kind.WEIGHT:
            return self.weight[op.stage]
        return self.backward[op.stage] - self.weight[op.stage]

    def transfer_of(self, op: Op, sender: int) -> int:  # noqa: ARG002 - a part of Timing
        """Time for which what a device sends is under way."""
        return self.transfer[sender]

    def held_by(self, op: Op) -> int:  # noqa: ARG002 - a part of Timing
        """Nothing: a send runs beside the work."""
        return 0


class Span(NamedTuple):
    """One block as it ran: its operations, start and end."""

    block: Block
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated step.

    Attributes:
        devices: For each device its blocks as they ran, in order.
    """

    devices: tuple[tuple[Span, ...], ...]

    @property
    def section(self) -> int:
        """From the first forward to the end of the last backward on any device: T."""
        return max((spans[-1].end for spans in self.devices if spans), default=0)

    @property
    def period(self) -> int:
        """The longest time of one device from its first to its last work: how often a step can begin.

        It is the section for schedules that begin and end on one device (GPipe, 1F1B, interleaved, DualPipe).
        Zero-bubble papers count against it, because a device whose work is done begins its next step.
        """
        return max((spans[-1].end - spans[0].start for spans in self.devices if spans), default=0)

    def busy(self, device: int) -> int:
        """Time for which a device works."""
        return sum(span.end - span.start for span in self.devices[device])

    @property
    def useful(self) -> int:
        """Time of work over all devices."""
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


def of_ideal(fraction_of_total: Fraction) -> Fraction:
    """The same idle time over the useful time instead of over the total.

    >>> of_ideal(Fraction(3, 11))
    Fraction(3, 8)
    """
    return fraction_of_total / (1 - fraction_of_total)


def simulate(plan: Plan, costs: Timing) -> Timeline:
    """Run a plan.

    Raises:
        Deadlock: The order can never run to its end.
    """
    run = _Run(plan, costs)
    ready = deque(range(plan.devices))
    while ready:
        ready.extend(run.advance(ready.popleft()))
    for device, spans in enumerate(run.spans):
        if len(spans) < len(plan.orders[device]):
            stuck = plan.orders[device][len(spans)]
            raise Deadlock(f"device {device} waits for ever before {_name(stuck)}")
    return Timeline(tuple(tuple(spans) for spans in run.spans))


def peak_in_flight(order: Sequence[Block]) -> int:
    """The most micro-batches whose activations a device holds at once, chunks counted one by one."""
    held = peak = 0
    for block in order:
        held += sum(op.kind is Kind.FORWARD for op in block)
        peak = max(peak, held)
        held -= sum(op.kind in (Kind.BACKWARD, Kind.WEIGHT) for op in block)
    return peak


def _name(block: Block) -> str:
    return " with ".join(f"{op.kind}{op.microbatch} of stage {op.stage}" for op in block)


class _Run:
    """The state of a simulation: how far each device is, and what has been produced when and where.

    What an operation produces has a number: twice its micro-batch and stage, plus 1 for a gradient of the input.
    Integers in place of operations make a simulation three times as fast.
    """

    def __init__(self, plan: Plan, costs: Timing) -> None:
        self.plan = plan
        self.costs = costs
        self.spans: list[list[Span]] = [[] for _ in plan.orders]
        self.free = [0] * plan.devices
        results = 2 * plan.microbatches * plan.stages
        self.end: list[int | None] = [None] * results
        self.arrival = [0] * results
        self.maker = [0] * results
        self.waiting: defaultdict[int, list[int]] = defaultdict(list)

    def advance(self, device: int) -> list[int]:
        """Run a device until it must wait; returns the devices that its results wake."""
        woken: list[int] = []
        order, spans = self.plan.orders[device], self.spans[device]
        while len(spans) < len(order):
            block = order[len(spans)]
            start = self._start(block, device)
            if start is None:
                break
            end = start + sum([self.costs.of(op) for op in block])
            spans.append(Span(block, start, end))
            self.free[device] = end
            for op in block:
                if op.kind is not Kind.WEIGHT:
                    woken.extend(self._produce(op, device, end))
        return woken

    def _produce(self, op: Op, device: int, end: int) -> list[int]:
        result = 2 * (op.microbatch * self.plan.stages + op.stage) + (op.kind is not Kind.FORWARD)
        self.end[result] = end
        self.arrival[result] = end + self.costs.transfer_of(op, device)
        self.maker[result] = device
        self.free[device] = max(self.free[device], end + self.costs.held_by(op))
        return self.waiting.pop(result, [])

    def _start(self, block: Block, device: int) -> int | None:
        start = self.free[device]
        for op in block:
            for need in self._needs(op):
                end = self.end[need]
                if end is None:
                    self.waiting[need].append(device)
                    return None
                start = max(start, end if self.maker[need] == device else self.arrival[need])
        return start

    def _needs(self, op: Op) -> tuple[int, ...]:
        own = 2 * (op.microbatch * self.plan.stages + op.stage)
        if op.kind is Kind.FORWARD:
            return (own - 2,) if op.stage else ()
        if op.kind is Kind.WEIGHT:
            return (own + 1,)
        return (own,) if op.stage == self.plan.stages - 1 else (own, own + 3)
