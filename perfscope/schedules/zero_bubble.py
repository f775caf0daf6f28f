"""Schedules that split the backward pass: ZB-H1, ZB-H2, ZB-V and DualPipe.

Sources: Qi et al. 2024 (arXiv 2401.10241) and "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362);
DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437).
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.schedules.operations import Block, Op, PassKind, PassOrder, single_block


def zb_h1_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:
    """1F1B in which device d runs its weight-gradient passes d micro-batches late: the memory of 1F1B."""
    return _delay_weight_gradients(device, microbatches, warmup=devices - 1 - device, delay=device)


def zb_h2_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:
    """As H1 with twice the warm-up and twice the delay: about twice the memory, and no idle time inside."""
    return _delay_weight_gradients(device, microbatches, warmup=2 * (devices - 1 - device), delay=2 * device)


def _delay_weight_gradients(device: int, microbatches: int, warmup: int, delay: int) -> Iterator[Block]:
    warmup = min(warmup, microbatches)
    yield from (single_block(PassKind.FORWARD, index, device) for index in range(warmup))
    for index in range(microbatches):
        if warmup + index < microbatches:
            yield single_block(PassKind.FORWARD, warmup + index, device)
        yield single_block(PassKind.INPUT_GRADIENT, index, device)
        if index >= delay:
            yield single_block(PassKind.WEIGHT_GRADIENT, index - delay, device)
    yield from (
        single_block(PassKind.WEIGHT_GRADIENT, index, device)
        for index in range(max(microbatches - delay, 0), microbatches)
    )


def zbv_plan(devices: int, microbatches: int) -> PassOrder:
    """Two virtual stages a device, in a V: the first device holds the first and the last part of the model.

    The order is made for enough micro-batches to fill the pipeline; those that do not exist are left out.
    """
    filling = max(microbatches, 2 * devices - 1)

    def order(device: int) -> Iterator[Block]:
        for op in _zbv_order(device, devices, filling):
            if op.microbatch < microbatches:
                yield (op,)

    return PassOrder(microbatches, 2 * devices, tuple(tuple(order(device)) for device in range(devices)))


def _zbv_order(device: int, devices: int, microbatches: int) -> Iterator[Op]:
    """Fill, then F B W on the two virtual stages in turn, then drain with the weight gradients last."""
    down = _VirtualStage(device)
    up = _VirtualStage(2 * devices - 1 - device)
    for _ in range(2 * (devices - device) - 1):
        yield down.forward()
    for _ in range(device):
        yield up.forward()
        yield down.forward()
    for _ in range(devices - device):
        yield up.forward()
        yield from up.gradients()
    while down.forwards < microbatches or up.forwards < down.forwards:
        if down.forwards < microbatches:
            yield down.forward()
        yield from down.gradients()
        yield up.forward()
        yield from up.gradients()
    for _ in range(device):
        yield down.input_gradient()
        yield up.input_gradient()
    for _ in range(devices - device):
        yield from down.gradients()
    yield from up.remaining_weight_gradients()
    yield from down.remaining_weight_gradients()


def dualpipev_order(device: int, devices: int, microbatches: int) -> Iterator[Op]:
    """The forward passes and input gradients of DualPipeV: two virtual stages a device, in a V.

    Implementations differ in when the weight gradients follow, and in whether a forward and a backward pass overlap.
    """
    down, up = _VirtualStage(device), _VirtualStage(2 * devices - 1 - device)
    after = devices - 1 - device
    for _ in range(2 * after):
        yield down.forward()
    for _ in range(device + 1):
        yield down.forward()
        yield up.forward()
    for _ in range(after):
        yield up.input_gradient()
        yield up.forward()
    for number in range(microbatches - 2 * devices + device + 1 + after):
        if number < microbatches - 2 * devices + device + 1:
            yield down.forward()
        yield up.input_gradient()
        yield up.forward()
        yield down.input_gradient()
    for _ in range(device + 1):
        yield up.input_gradient()
        yield down.input_gradient()
    for _ in range(after):
        yield down.input_gradient()


class _VirtualStage:
    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.forwards = self.inputs = self.weights = 0

    def forward(self) -> Op:
        self.forwards += 1
        return Op(PassKind.FORWARD, self.forwards - 1, self.stage)

    def input_gradient(self) -> Op:
        self.inputs += 1
        return Op(PassKind.INPUT_GRADIENT, self.inputs - 1, self.stage)

    def weight_gradient(self) -> Op:
        self.weights += 1
        return Op(PassKind.WEIGHT_GRADIENT, self.weights - 1, self.stage)

    def gradients(self) -> Iterator[Op]:
        yield self.input_gradient()
        yield self.weight_gradient()

    def remaining_weight_gradients(self) -> Iterator[Op]:
        while self.weights < self.inputs:
            yield self.weight_gradient()


def dualpipe_plan(devices: int, microbatches: int) -> PassOrder:
    """Even micro-batches go from the first device to the last, odd ones back, through a second copy of the model.

    A forward pass overlaps a backward pass of the opposite direction (DeepSeek-V3, figure 5).
    """
    orders = tuple(tuple(_DualPipeDevice(device, devices, microbatches).order()) for device in range(devices))
    return PassOrder(microbatches, devices, orders)


class _DualPipeDevice:
    """One device of DualPipe: counters of both directions, and the phases of its order.

    Direction 0 enters at this device's own half of the pipeline and direction 1 at the opposite half, so that both
    halves follow the same phases.
    """

    def __init__(self, device: int, devices: int, microbatches: int) -> None:
        self.half = devices // 2
        self.far_half = device >= self.half
        self.depth = min(device, devices - 1 - device)
        self.per_direction = microbatches // 2
        self.devices = devices
        self.counts = {(kind, direction): 0 for kind in (PassKind.FORWARD, PassKind.BACKWARD) for direction in (0, 1)}
        self.weights: list[Op] = []

    def order(self) -> Iterator[Block]:
        outside = self.half - 1 - self.depth
        inside = self.depth + 1
        for _ in range(2 * outside):
            yield self._single(PassKind.FORWARD, 0)
        for _ in range(inside):
            yield self._single(PassKind.FORWARD, 0)
            yield self._single(PassKind.FORWARD, 1)
        for _ in range(outside):
            yield self._split(1)
            yield self._weight()
            yield self._single(PassKind.FORWARD, 1)
        yield from self._steady(self.per_direction - self.devices + inside)
        for _ in range(outside):
            yield self._single(PassKind.BACKWARD, 1)
            yield self._pair(1, 0)
        yield from self._drain(inside)
        for _ in range(outside):
            yield self._weight()
            yield self._split(0)
        while self.weights:
            yield self._weight()

    def _steady(self, rounds: int) -> Iterator[Block]:
        for index in range(rounds):
            if index == 0 and self.depth == self.half - 1:
                # The middle devices do not pair their first two: waiting for the gradient would delay the forward.
                yield self._single(PassKind.FORWARD, 0)
                yield self._single(PassKind.BACKWARD, 1)
            else:
                yield self._pair(0, 1)
            yield self._pair(1, 0)

    def _drain(self, rounds: int) -> Iterator[Block]:
        """Backward passes of both directions; the weight gradients of the second half are delayed."""
        for index in range(2 * rounds):
            direction = 1 - index % 2
            yield self._split(direction) if index >= rounds else self._single(PassKind.BACKWARD, direction)

    def _op(self, kind: PassKind, direction: int) -> Op:
        index = self.counts[kind, direction]
        self.counts[kind, direction] += 1
        entry_is_last = bool(direction) != self.far_half
        stage = self.depth if direction == 0 else self.devices - 1 - self.depth
        return Op(kind, 2 * index + entry_is_last, stage)

    def _single(self, kind: PassKind, direction: int) -> Block:
        return (self._op(kind, direction),)

    def _pair(self, forward_direction: int, backward_direction: int) -> Block:
        return (self._op(PassKind.FORWARD, forward_direction), self._op(PassKind.BACKWARD, backward_direction))

    def _split(self, direction: int) -> Block:
        gradient = self._op(PassKind.BACKWARD, direction)
        self.weights.append(Op(PassKind.WEIGHT_GRADIENT, gradient.microbatch, gradient.stage))
        return (Op(PassKind.INPUT_GRADIENT, gradient.microbatch, gradient.stage),)

    def _weight(self) -> Block:
        return (self.weights.pop(0),)
