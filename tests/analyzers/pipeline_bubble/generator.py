"""Turns a simulated schedule into the traces that its ranks would have written.

Around the passes lies what real steps have: a barrier, zero_grad long before the first pass, preparation right before
stage 0's first forward pass, an optimizer behind the last backward pass, and NCCL kernels that spin while they wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfscope.schedules.operations import Op, PassKind, PassOrder
from perfscope.schedules.simulator import Timing, simulate
from tests.sources.traces import making

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_FORWARD = ("embedding", "gemm_forward", "activation", "gemm_forward")
_BACKWARD = ("Memset (Device)", "gemm_backward", "activation_backward", "gemm_backward")
_BEFORE = 30_000_000
_AFTER = 5_000_000
_LAUNCH = 100


def pytorch_marks(op: Op) -> str | None:
    """As torch.distributed.pipelining's runtime marks its actions."""
    return f"PP:{op.stage}{op.kind}{op.microbatch}"


def no_marks(op: Op) -> str | None:
    """As Schedule1F1B leaves them: none."""
    return None


@dataclass
class Job:
    """A pipeline job to write traces of.

    Attributes:
        plan, timing: What the simulator is given.
        idle: Time at the front of each pass in which the device waits for the host, of the pass's simulated time.
        mark: Names the annotation around a pass.
        steps: How many training steps.
        names_peers: Whether the transfers name their peers, as DeepSpeed's do.
        groups: Of each rank the process groups of its trace's head.
        rank_of: The rank of a device; the device itself by default.
        world_size: Ranks of the job; as many as devices by default.
        silent: A pass that launches nothing.
        clock_ns: How far each device's clock is ahead.
        first_step: The profiler's number of the first step.
        extra: More events, by device: a function of the step's beginning, its first pass's beginning and its end.
    """

    plan: PassOrder
    timing: Timing
    idle: int = 0
    mark: Any = no_marks
    steps: int = 2
    names_peers: bool = False
    groups: Sequence[Mapping[str, Any]] = ()
    rank_of: Mapping[int, int] = field(default_factory=dict)
    world_size: int | None = None
    clock_ns: Mapping[int, int] = field(default_factory=dict)
    first_step: int = 6
    hosts: Mapping[int, str] = field(default_factory=dict)
    extra: Mapping[int, Any] = field(default_factory=dict)
    silent: Op | None = None

    def rank(self, device: int) -> int:
        return self.rank_of.get(device, device)


class _Writer:
    """Events of one rank; what is added first is launched first."""

    def __init__(self) -> None:
        self.events: list[making.Event] = []
        self.count = 0
        self.launched = 0
        self.zero = 0
        self.free = 0

    def launch(
        self, name: str, start: int, end: int, thread: int = making.MAIN, args: Mapping[str, Any] | None = None
    ) -> None:
        self.count += 1
        self.launched += _LAUNCH
        self.events.append(
            making.call("cudaLaunchKernel", self.launched, self.launched + _LAUNCH // 2, launch=self.count, tid=thread)
        )
        if name.startswith("Mem"):
            self.events.append(making.copy(name, start, end, launch=self.count, category="gpu_memset"))
        else:
            stream: Any = {"stream": 19 if name == SEND_RECV else 7}
            self.events.append(making.kernel(name, start, end, launch=self.count, **stream, **(args or {})))


def write_job(job: Job, folder: Path) -> list[Path]:
    """Write one trace a device and return the files."""
    paths = []
    for device in range(job.plan.devices):
        head: dict[str, Any] = {
            **making.distributed(job.rank(device), job.world_size or job.plan.devices, job.groups),
            "baseTimeNanoseconds": 1_790_000_000_000_000_000 + job.clock_ns.get(device, 0),
        }
        if device in job.hosts:
            head["host_name"] = job.hosts[device]
        path = folder / f"rank{job.rank(device)}.pt.trace.json"
        paths.append(making.write(path, _events(job, device), **head))
    return paths


def _events(job: Job, device: int) -> list[making.Event]:
    writer = _Writer()
    timeline = simulate(job.plan, job.timing)
    shift = job.clock_ns.get(device, 0)
    length = _BEFORE + timeline.section + _AFTER
    for step in range(job.steps):
        base = step * length - shift
        writer.launched = base
        _step(job, device, writer, base + _BEFORE, timeline)
        writer.events.append(making.step(job.first_step + step, base, base + length - 1000))
    return writer.events


def _step(job: Job, device: int, writer: _Writer, zero: int, timeline: Any) -> None:
    spans = timeline.devices[device]
    writer.launch("Memset (Device)", zero - 29_000_000, zero - 28_999_000)
    writer.launch("zero_grad", zero - 28_900_000 + 100_000 * device, zero - 28_800_000 + 100_000 * device)
    writer.launch(ALL_REDUCE, zero - 20_000_000 + 1000 * device, zero - 1_000_000)
    if device == 0:
        writer.launch("prepare_batch", zero - 5000, zero)
    made = {op: (span.end, owner) for owner, own in enumerate(timeline.devices) for span in own for op in span.block}
    writer.zero, writer.free = zero, zero - 900_000
    for span in spans:
        (op,) = span.block
        _receive(job, device, writer, op, made)
        writer.free = zero + span.end
        _pass(job, writer, op, zero + span.start + job.idle, writer.free)
        _send(job, device, writer, op, made)
    end = zero + timeline.section
    if device in job.extra:
        job.extra[device](writer, zero, end)
    writer.launch("optimizer_update", end + 1000, end + 3_000_000)


def _pass(job: Job, writer: _Writer, op: Op, start: int, end: int) -> None:
    forward = op.kind is PassKind.FORWARD
    names: tuple[str, ...] = _FORWARD if forward else _BACKWARD
    began = writer.launched + _LAUNCH
    if op == job.silent:
        names = ()
    edges = [start + (end - start) * place // len(names) for place in range(len(names) + 1)] if names else []
    for name, left, right in zip(names, edges, edges[1:], strict=False):
        writer.launch(name, left, right, making.MAIN if forward else making.AUTOGRAD)
    mark = job.mark(op)
    if mark is not None:
        writer.events.append(making.span("user_annotation", mark, began - _LAUNCH // 2, writer.launched + _LAUNCH // 2))


def _gradient(op: Op, stage: int, made: Mapping[Op, Any]) -> Op:
    whole = Op(PassKind.BACKWARD, op.microbatch, stage)
    return whole if whole in made else Op(PassKind.INPUT_GRADIENT, op.microbatch, stage)


def _receive(job: Job, device: int, writer: _Writer, op: Op, made: Mapping[Op, Any]) -> None:
    """NCCL's kernel spins from when the device is free, at least for the transfer itself, until the data is there."""
    if op.kind is PassKind.FORWARD and op.stage:
        source = Op(PassKind.FORWARD, op.microbatch, op.stage - 1)
    elif op.kind in (PassKind.BACKWARD, PassKind.INPUT_GRADIENT) and op.stage + 1 < job.plan.stages:
        source = _gradient(op, op.stage + 1, made)
    else:
        return
    end, owner = made[source]
    if owner != device:
        moving = job.timing.transfer_time(source, owner)
        arrival = writer.zero + end + moving
        told = {"Collective name": "recv", "Src Rank": job.rank(owner)} if job.names_peers else {}
        writer.launch(SEND_RECV, min(writer.free, arrival - moving), arrival, args=told)


def _send(job: Job, device: int, writer: _Writer, op: Op, made: Mapping[Op, Any]) -> None:
    if op.kind is PassKind.FORWARD and op.stage + 1 < job.plan.stages:
        reader = Op(PassKind.FORWARD, op.microbatch, op.stage + 1)
    elif op.kind in (PassKind.BACKWARD, PassKind.INPUT_GRADIENT) and op.stage:
        reader = _gradient(op, op.stage - 1, made)
    else:
        return
    owner = made[reader][1]
    if owner != device:
        told = {"Collective name": "send", "Dst Rank": job.rank(owner)} if job.names_peers else {}
        writer.launch(SEND_RECV, writer.free, writer.free + job.timing.transfer_time(op, device), args=told)
