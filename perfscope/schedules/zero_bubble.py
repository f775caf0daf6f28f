"""The order of work of schedules that split the backward pass: ZB-H1, ZB-H2, ZB-V and DualPipe.

The gradient of the input is needed by the stage before and comes first; the gradient of the weights is needed by
nobody and fills what would be idle. Sources: Qi et al. 2024, "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241) and
"Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362); DeepSeek-AI 2024, DeepSeek-V3 (arXiv 2412.19437).
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.schedules.orders import Block, Kind, Op, Plan, single


def h1_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:
    """1F1B with the weight gradients of a device put off by as many micro-batches as its place: memory as 1F1B's."""
    return _put_off(device, microbatches, warmup=devices - 1 - device, put_off=device)


def h2_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:
    """As H1 with twice the forwards in front and twice the delay: about twice the memory, and no idle time inside."""
    return _put_off(device, microbatches, warmup=2 * (devices - 1 - device), put_off=2 * device)


def _put_off(device: int, microbatches: int, warmup: int, put_off: int) -> Iterator[Block]:
    warmup = min(warmup, microbatches)
    yield from (single(Kind.FORWARD, index, device) for index in range(warmup))
    for index in range(microbatches):
        if warmup + index < microbatches:
            yield single(Kind.FORWARD, warmup + index, device)
        yield single(Kind.INPUT, index, device)
        if index >= put_off:
            yield single(Kind.WEIGHT, index - put_off, device)
    yield from (single(Kind.WEIGHT, index, device) for index in range(max(microbatches - put_off, 0), microbatches))


def zbv(devices: int, microbatches: int) -> Plan:
    """Two chunks a device that lie in a V: the first device holds the first and the last part of the model.

    The order is made for enough micro-batches to fill the pipeline; those that do not exist are left out.
    """
    filling = max(microbatches, 2 * devices - 1)

    def order(device: int) -> Iterator[Block]:
        for name in _zbv_names(device, devices, filling):
            if name.microbatch < microbatches:
                yield (name,)

    return Plan(microbatches, 2 * devices, tuple(tuple(order(device)) for device in range(devices)))


def _zbv_names(device: int, devices: int, microbatches: int) -> Iterator[Op]:
    """Fill, then F B W on either chunk in turn, then drain with the weight gradients last."""
    down = _Chunk(device)
    up = _Chunk(2 * devices - 1 - device)
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
    yield from up.weights_left()
    yield from down.weights_left()


class _Chunk:
    """One virtual stage on a device, which names its next operation of each kind."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.forwards = self.inputs = self.weights = 0

    def forward(self) -> Op:
        self.forwards += 1
        return Op(Kind.FORWARD, self.forwards - 1, self.stage)

    def input_gradient(self) -> Op:
        self.inputs += 1
        return Op(Kind.INPUT, self.inputs - 1, self.stage)

    def weight_gradient(self) -> Op:
        self.weights += 1
        return Op(Kind.WEIGHT, self.weights - 1, self.stage)

    def gradients(self) -> Iterator[Op]:
        yield self.input_gradient()
        yield self.weight_gradient()

    def weights_left(self) -> Iterator[Op]:
        while self.weights < self.inputs:
            yield self.weight_gradient()


def dualpipe(devices: int, microbatches: int) -> Plan:
    """Micro-batches enter at both ends; a forward of one direction runs together with a backward of the other.

    Even micro-batches go from the first device to the last, odd ones back, through a second copy of the model. The
    phases are those of the published schedule (DeepSeek-V3, figure 5).
    """
    orders = tuple(tuple(_DualDevice(device, devices, microbatches).order()) for device in range(devices))
    return Plan(microbatches, devices, orders)


class _DualDevice:
    """One device of DualPipe: counters of both directions, and the phases of its order.

    Direction 0 enters at this device's own half of the pipeline and direction 1 at the other, so that both halves
    follow the same phases.
    """

    def __init__(self, device: int, devices: int, microbatches: int) -> None:
        self.half = devices // 2
        self.far_half = device >= self.half
        self.depth = min(device, devices - 1 - device)
        self.each_way = microbatches // 2
        self.devices = devices
        self.counts = {(kind, way): 0 for kind in (Kind.FORWARD, Kind.BACKWARD) for way in (0, 1)}
        self.weights: list[Op] = []

    def order(self) -> Iterator[Block]:
        outside = self.half - 1 - self.depth
        inside = self.depth + 1
        for _ in range(2 * outside):
            yield self._alone(Kind.FORWARD, 0)
        for _ in range(inside):
            yield self._alone(Kind.FORWARD, 0)
            yield self._alone(Kind.FORWARD, 1)
        for _ in range(outside):
            yield self._split(1)
            yield self._weight()
            yield self._alone(Kind.FORWARD, 1)
        yield from self._steady(self.each_way - self.devices + inside)
        for _ in range(outside):
            yield self._alone(Kind.BACKWARD, 1)
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
                yield self._alone(Kind.FORWARD, 0)
                yield self._alone(Kind.BACKWARD, 1)
            else:
                yield self._pair(0, 1)
            yield self._pair(1, 0)

    def _drain(self, rounds: int) -> Iterator[Block]:
        """Backward passes of both ways; the weight gradients of the second half are put off."""
        for index in range(2 * rounds):
            make = self._split if index >= rounds else self._backward
            yield make(1 - index % 2)

    def _op(self, kind: Kind, way: int) -> Op:
        index = self.counts[kind, way]
        self.counts[kind, way] += 1
        entry_is_last = bool(way) != self.far_half
        stage = self.depth if way == 0 else self.devices - 1 - self.depth
        return Op(kind, 2 * index + entry_is_last, stage)

    def _alone(self, kind: Kind, way: int) -> Block:
        return (self._op(kind, way),)

    def _backward(self, way: int) -> Block:
        return self._alone(Kind.BACKWARD, way)

    def _pair(self, forward_way: int, backward_way: int) -> Block:
        return (self._op(Kind.FORWARD, forward_way), self._op(Kind.BACKWARD, backward_way))

    def _split(self, way: int) -> Block:
        gradient = self._op(Kind.BACKWARD, way)
        self.weights.append(Op(Kind.WEIGHT, gradient.microbatch, gradient.stage))
        return (Op(Kind.INPUT, gradient.microbatch, gradient.stage),)

    def _weight(self) -> Block:
        return (self.weights.pop(0),)
